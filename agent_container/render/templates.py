"""The only door to jinja2: foreign text (squid, unbound, nftables, HTML) from templates and values that cannot break
out.

A template sees nothing but the values of one call; an undefined name is an error. For what has no quoting that holds,
each value is a word of a fixed alphabet or a tuple of such words; in HTML every value is escaped. What the values mean
is the caller's affair.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent_container.resources import data_dir

if TYPE_CHECKING:
    from jinja2 import Environment

# Names, addresses, paths, networks, squid's %-codes and lists of them. No quote, newline, `;`, `#` or `$`, and braces
# only in squid's own codes: none of the three languages can be left with what remains.
_WORD = re.compile(r"[A-Za-z0-9_./:%>{}\[\]=, -]*", re.ASCII)
_BRACES = re.compile(r"%(?:note|>)?\{[A-Za-z0-9_-]{1,64}\}|%\{|%>\{")

Value = str | int | bool | tuple[str, ...]


class UnsafeValue(ValueError):
    """A value that could end the statement it stands in; a bug of the caller, never a user's mistake."""


def render_template(name: str, values: Mapping[str, Value]) -> str:
    """The text of `templates/<name>` with `values`.

    Raises:
        UnsafeValue: for a value outside the alphabet.
    """
    for key, value in values.items():
        for word in (value,) if not isinstance(value, tuple) else value:
            _check(key, word)
    return _environment().get_template(name).render(**values)


def render_page(name: str, values: Mapping[str, object]) -> str:
    """The HTML of `templates/<name>`, every value escaped, in elements and in quoted attributes alike."""
    return _environment(html=True).get_template(name).render(**values)


def read_asset(name: str) -> str:
    """A file of `templates/` as it is."""
    return (data_dir() / "templates" / name).read_text(encoding="utf-8")


def _check(key: str, word: str | int | bool) -> None:
    text = str(word)
    if not _WORD.fullmatch(text) or re.search(r"[{}]", _BRACES.sub("", text)):
        raise UnsafeValue(f"{key}: {text[:80]!r} cannot stand in a rendered file")


def _environment(*, html: bool = False) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(data_dir() / "templates"),
        undefined=StrictUndefined,
        autoescape=html,  # noqa: S701 - elsewhere the alphabet above is what keeps values inside their statement
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
