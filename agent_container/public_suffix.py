"""Whether anybody can register a name right below a domain (https://publicsuffix.org): a wildcard over one allows
everybody. The list is the one that the library brings; it is as old as the installed version, and no network is asked.
The sidecar has a short list of its own for what it must refuse by itself."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

_OPERATED = frozenset({"githubusercontent.com"})
"""On the list so that browsers keep its names apart; the names themselves are all its operator's."""


@lru_cache(maxsize=256)
def is_public_suffix(domain: str) -> bool:
    """Whether a canonical name (A-labels) is a public suffix, private ones such as github.io included."""
    if domain in _OPERATED:
        return False
    from publicsuffixlist import PSLFILE, PublicSuffixList

    # Only the lines of its own top level: reading all ten thousand takes longer than the rest of a command.
    tops = {end.encode() for end in (domain.rpartition(".")[2], _unicode(domain.rpartition(".")[2]))}
    with Path(PSLFILE).open("rb") as lines:
        ours = [line for line in lines if line.rstrip().rpartition(b".")[2] in tops]
    return PublicSuffixList(ours).is_public(domain)


def _unicode(label: str) -> str:
    try:
        return label.encode("ascii").decode("idna")
    except UnicodeError:
        return label
