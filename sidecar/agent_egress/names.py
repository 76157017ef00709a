"""Host names in one canonical form: lower case, no final dot, A-labels (IDNA); and the grammar of the patterns that a
rule may hold. Every layer compares these strings byte for byte. What a pattern allows is decided in `policy`."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address

from agent_egress.floors import Address, parse_network


class NameRefused(ValueError):
    """A text that is no host name or pattern; the message says why and, where there is one, the right spelling."""


_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
# Mapped to other letters by IDNA 2003 (which Python has) and kept by IDNA 2008 (which browsers use): two different
# hosts.
_AMBIGUOUS = frozenset("\u00df\u03c2\u200c\u200d")

# Under these anybody can register a name, so a wildcard over one is a wildcard over everybody.
_SECOND_LEVEL_TEXT = """
    ac co com edu gen go gob gov govt id in info ltd me mil name ne net nhs nic nom or org plc police sch school web
"""
_SECOND_LEVEL = frozenset(_SECOND_LEVEL_TEXT.split())
_SHARED_TEXT = """
    amazonaws.com appspot.com azureedge.net azurewebsites.net blob.core.windows.net blogspot.com cloudapp.net
    cloudfront.net deno.dev duckdns.org fastly.net firebaseapp.com fly.dev github.io gitlab.io glitch.me
    herokuapp.com netlify.app ngrok.app ngrok.dev ngrok.io ngrok-free.app onrender.com pages.dev r2.dev repl.co
    run.app s3.amazonaws.com sslip.io nip.io storage.googleapis.com supabase.co surge.sh trycloudflare.com vercel.app
    web.app workers.dev
"""
_SHARED = frozenset(_SHARED_TEXT.split())


@lru_cache(maxsize=4096)
def canonical_name(text: str) -> str:
    """The canonical form of a host name.

    Raises:
        NameRefused: for anything else: an address in any spelling, a wildcard, an odd character, a label or name too
        long."""
    name = text[:-1] if text.endswith(".") else text
    if not name or len(name) > 1000:
        raise NameRefused("empty or too long for a host name")
    if not name.isascii():
        name = ".".join(_a_label(label) for label in name.split("."))
    name = name.lower()
    if len(name) > 253:
        raise NameRefused("longer than 253 characters")
    labels = name.split(".")
    for label in labels:
        if not _LABEL.fullmatch(label):
            raise NameRefused(f"{label!r} is no part of a host name")
    # The WHATWG rule: what ends in a number is an address to some client (0x7f.1, 127.1, 2130706433).
    if _NUMBER.fullmatch(labels[-1]):
        raise NameRefused("looks like an address, and is not one in its usual spelling")
    return name


def _a_label(label: str) -> str:
    if _AMBIGUOUS & set(label):
        raise NameRefused(f"{label!r} means different hosts to different programs: write its xn-- form")
    try:
        encoded = label.encode("idna").decode("ascii")
    except UnicodeError as error:
        raise NameRefused(f"{label!r} cannot be written as a host name") from error
    if "." in encoded:
        raise NameRefused(f"{label!r} hides a dot")
    return encoded


@lru_cache(maxsize=4096)
def literal_address(text: str) -> Address | None:
    """The address that the text spells in canonical form, brackets allowed around IPv6; None when it is none."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    address: Address
    try:
        address = IPv6Address(bare) if ":" in bare else IPv4Address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and (address.ipv4_mapped or address.scope_id):
        return None
    return address if str(address) == bare else None


@lru_cache(maxsize=4096)
def canonical_host(text: str) -> str:
    """A host as a rule or receipt writes it: a canonical name, or an address without brackets. Raises: NameRefused."""
    address = literal_address(text)
    return canonical_name(text) if address is None else str(address)


def canonical_pattern(text: str) -> str:
    """The canonical form of what a rule may name: a host, `*.` and a domain, an address, or a CIDR.

    Raises:
        NameRefused: with what is wrong and, where one can tell, what to write.
    """
    if text != text.strip() or not text:
        raise NameRefused("empty, or with spaces around it")
    if "://" in text:
        host = text.split("://", 1)[1].split("/", 1)[0]
        raise NameRefused(f"a URL; rules name hosts: write {host}")
    if "@" in text:
        raise NameRefused("has a user part; rules name hosts: write what stands after the @")
    if "," in text:
        raise NameRefused("one host an entry: write a list")
    if re.fullmatch(r"[0-9a-fA-F:.]+/[0-9]+", text) or literal_address(text) is not None:
        return _canonical_network(text)
    if "/" in text:
        raise NameRefused(f"has a path; rules name hosts: write {text.split('/', 1)[0]}")
    if text.startswith("["):
        raise NameRefused("write an IPv6 address without brackets, and its ports under `ports`")
    if text.count(":") == 1:
        host, _, port = text.partition(":")
        raise NameRefused(f"ports go under `ports`: write {{host: {host}, ports: [{port}]}}")
    if ":" in text:
        return _canonical_network(text)
    if text.startswith("*."):
        return "*." + _wildcard_base(text[2:])
    if "*" in text:
        raise NameRefused("a wildcard is `*.` and a domain, nothing else")
    return canonical_name(text)


def _canonical_network(text: str) -> str:
    try:
        network = parse_network(text)
    except ValueError as error:
        raise NameRefused(f"not an address or range in its usual spelling: {error}") from error
    return str(network) if "/" in text else str(network.network_address)


def _wildcard_base(text: str) -> str:
    base = canonical_name(text)
    labels = base.split(".")
    if len(labels) < 2:
        raise NameRefused("a wildcard over a whole top-level domain: name the domain")
    country_wide = len(labels) == 2 and len(labels[1]) == 2 and labels[0] in _SECOND_LEVEL
    if country_wide or base in _SHARED:
        raise NameRefused(f"anybody can have a name below {base}: name the hosts")
    return base


def canonical_header(text: str) -> str:
    """A header's name in its one spelling: squid's notes are compared letter by letter, HTTP's names are not."""
    return "-".join(part[:1].upper() + part[1:].lower() for part in text.split("-"))
