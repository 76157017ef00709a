"""Request paths on hosts that hold a credential: which are plain enough that proxy and server must read them alike,
and which a binding's template covers. `/v1/messages/../../who` and `%2e%2e` carried the real token to another path in
a prototype."""

from __future__ import annotations

import re

MAX_PATH = 8192
_ESCAPE = re.compile(r"%(..?)?")
_HEX = re.compile(r"[0-9a-fA-F]{2}")
# `.`, `/`, `\`, a percent sign (a second decoding would make one of those of it), `;`, NUL and controls, overlong
# UTF-8.
_BAD_ESCAPES = frozenset({0x2E, 0x2F, 0x5C, 0x25, 0x3B, 0x23, 0x3F, 0x7F, 0xC0, 0xC1}) | frozenset(range(0x20))
_PLAIN = re.compile(r"[A-Za-z0-9._~!$&'()*+,=:@%/-]*", re.ASCII)
_VISIBLE = re.compile(r"[\x21-\x5b\x5d-\x7e]*", re.ASCII)  # no backslash either
_TEMPLATE_SEGMENT = re.compile(r"[A-Za-z0-9._~!$&'()+,=:@-]+|\*{1,2}", re.ASCII)


def split_query(raw: str) -> str:
    """The path alone, without query and fragment."""
    return raw.split("?", 1)[0].split("#", 1)[0]


def path_is_plain(raw: str) -> bool:
    """Whether a raw request path (query included) can be read in one way only.

    Refused: dot segments, `//`, backslashes, path parameters, escapes of dots, slashes, percent signs or controls,
    escapes cut short, a fragment, bytes outside RFC 3986's set, and anything that does not begin with `/`."""
    if not raw.startswith("/") or len(raw) > MAX_PATH or "#" in raw:
        return False
    if not _VISIBLE.fullmatch(raw):
        return False
    path = split_query(raw)
    if "//" in path or not _PLAIN.fullmatch(path):
        return False
    for escape in _ESCAPE.finditer(path):
        digits = escape.group(1) or ""
        if not _HEX.fullmatch(digits) or int(digits, 16) in _BAD_ESCAPES:
            return False
    return not any(segment in {".", ".."} for segment in path.split("/"))


def template_is_valid(template: str) -> bool:
    """Whether a template is `/` and plain segments, `*` for any one segment, `**` as the last for any rest."""
    if not template.startswith("/") or not path_is_plain(template):
        return False
    segments = template[1:].split("/")
    if "**" in segments[:-1]:
        return False
    return template == "/" or all(_TEMPLATE_SEGMENT.fullmatch(segment) for segment in segments)


def match_path(template: str, path: str) -> bool:
    """Whether a plain raw path (query ignored) fits the template: `*` is one segment, a last `**` one segment or
    more."""
    if not path_is_plain(path):
        return False
    wanted = template.split("/")
    given = split_query(path).split("/")
    if wanted[-1] == "**":
        wanted = wanted[:-1]
        if len(given) <= len(wanted) or not given[len(wanted)]:
            return False
        given = given[: len(wanted)]
    if len(wanted) != len(given):
        return False
    return all(want == got or (want == "*" and got != "") for want, got in zip(wanted, given, strict=True))
