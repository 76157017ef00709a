"""The texts of a spec that have a grammar of their own: ranges, durations, sizes, images, packages, paths, names.

Each function takes what the user wrote and returns its canonical form, or raises ValueError with what was expected (the
loader adds where it stands and what was found). The grammar of hosts is the sidecar's: one form in every layer.
"""

from __future__ import annotations

import posixpath
import re
from difflib import get_close_matches
from ipaddress import IPv6Network, ip_network

from agent_egress.floors import METADATA, NEVER, Network, parse_network, subnet
from agent_egress.identity import OWN_DOMAIN
from agent_egress.names import canonical_pattern
from agent_egress.paths import template_is_valid
from agent_egress.repositories import pattern_problem

_ULA = IPv6Network("fc00::/7")

_DURATION = re.compile(r"(?:(\d{1,4})d)?(?:(\d{1,5})h)?(?:(\d{1,6})m)?(?:(\d{1,8})s)?")
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([kmgt])(?:i?b)?", re.IGNORECASE)
_IMAGE_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_IMAGE_HOST = rf"(?:{_IMAGE_LABEL}(?:\.{_IMAGE_LABEL})*(?::[0-9]{{1,5}})?/)?"
_IMAGE_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE_TAG = r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
_IMAGE = re.compile(rf"{_IMAGE_HOST}{_IMAGE_PART}(?:/{_IMAGE_PART})*{_IMAGE_TAG}")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]{0,98}[a-z0-9+](=[A-Za-z0-9][A-Za-z0-9.+~:-]{0,99})?")
_SLUG = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@\[\]-]{0,127}")
_METHOD = re.compile(r"[A-Z]{3,10}")
_PLACEHOLDER = re.compile(r"(?<![$%{\\])\{([A-Za-z][A-Za-z_-]*)\}(?!\})")
_CODE = re.compile(r"""["'`$()\[\];<>|&\\]""")
_WORDS_FOR_TASK = frozenset(
    ("prompt", "user_prompt", "instruction", "instructions", "message", "question", "query", "request", "goal", "input")
)
TASK = "task"
"""What `{task}` is called in a command of one's own."""

RESERVED_TARGETS = (
    *(
        "/bin",
        "/boot",
        "/dev",
        "/etc",
        "/lib",
        "/lib32",
        "/lib64",
        "/libx32",
        "/proc",
        "/root",
        "/run",
        "/sbin",
        "/sys",
    ),
    *("/usr", "/var", "/opt/agent-container", "/workspace", "/memory"),
)
RESERVED_EXACTLY = ("/", "/home", "/home/agent", "/opt", "/tmp")  # noqa: S108 - a path in the sandbox


def parse_range(text: str) -> str:
    """A CIDR range in canonical form; an address alone is a range of one. Raises: ValueError."""
    network = parse_network(text)
    least = 8 if network.version == 4 or subnet(network, _ULA) else 16
    if network.prefixlen < least:
        raise ValueError(f"the range is too wide; at least /{least}")
    return str(network)


def parse_pattern(text: str) -> str:
    """A host, `*.domain`, an address or a CIDR range, in canonical form. Raises: ValueError."""
    pattern = canonical_pattern(text)
    if f".{pattern.removeprefix('*.')}".endswith((".localhost", f".{OWN_DOMAIN}")):
        raise ValueError("never leaves the sandbox")
    return parse_range(pattern) if "/" in pattern else pattern


def network_of(pattern: str) -> Network | None:
    """The range that a canonical pattern names; none when it names hosts."""
    try:
        return ip_network(pattern)
    except ValueError:
        return None


def is_metadata(pattern: str) -> bool:
    """Whether a canonical pattern is a range or address among those that cloud metadata is served from."""
    network = network_of(pattern)
    return network is not None and any(subnet(network, taboo) for taboo in METADATA)


def never_reachable(pattern: str) -> bool:
    """Whether a canonical pattern is a range or address wholly within those that no rule opens."""
    network = network_of(pattern)
    return network is not None and any(subnet(network, taboo) for taboo in NEVER)


def parse_duration(text: str) -> int:
    """Seconds of `2h`, `15m`, `90s`, `1d`, `1h30m`. Raises: ValueError."""
    match = _DURATION.fullmatch(text.strip())
    if not match or not text.strip():
        raise ValueError("expected a duration such as 2h, 15m, 90s or 1h30m")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if not 1 <= total <= 7 * 86_400:
        raise ValueError("expected between 1s and 7d")
    return total


def parse_size(text: str) -> int:
    """Bytes of `4g`, `512m`, `1.5g`; a unit is 1024 of the one below. Raises: ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError("expected a size such as 4g or 512m")
    return int(float(match[1]) * 1024 ** ("kmgt".index(match[2].lower()) + 1))


def parse_image(text: str) -> str:
    """An image reference (distribution's grammar), without anything that a Dockerfile would read as a flag."""
    if len(text) > 255 or not _IMAGE.fullmatch(text):
        raise ValueError("expected an image reference such as debian:trixie-slim or ghcr.example/team/base@sha256:...")
    return text


def parse_package(text: str) -> str:
    """A Debian package name, optionally `=version` (Debian policy 5.6.1 and 5.6.12)."""
    if not _PACKAGE.fullmatch(text):
        raise ValueError("expected a package name such as ripgrep or ripgrep=14.1.0-1")
    return text


def parse_command(text: str) -> str:
    """A line for `sh -c` at build. Raises: ValueError when empty, or when it begins like a Dockerfile flag."""
    if not text.strip():
        raise ValueError("expected a command")
    if text.lstrip().startswith("--"):
        raise ValueError("a command cannot begin with `--`: a Dockerfile reads that as a flag of RUN")
    if "\x00" in text:
        raise ValueError("a NUL character is not allowed")
    return text


def parse_argument(text: str) -> str:
    """A word of a command of one's own. What was meant as a placeholder and is none would reach the agent as it stands.

    Only words for a task in braces of their own are taken for that: `${HOME}`, `%{http_code}`, `{{prompt}}`, and braces
    among what only code has (quotes, brackets, `$`) belong to the command. Raises: ValueError.
    """
    if not _CODE.search(text):
        for name in _PLACEHOLDER.findall(text):
            low = name.lower()
            if name != TASK and (low in _WORDS_FOR_TASK or get_close_matches(low, [TASK], cutoff=0.75)):
                raise ValueError(f"{{{name}}} is not a placeholder; did you mean `{{{TASK}}}`")
    return text


def parse_name(text: str) -> str:
    """A name for people: one printable line."""
    if not text.strip() or len(text) > 64 or not text.isprintable() or text.startswith("-"):
        raise ValueError("expected 1 to 64 printable characters, not beginning with `-`")
    return text


def parse_slug(text: str) -> str:
    """A name that files and options carry."""
    if not _SLUG.fullmatch(text):
        raise ValueError("expected lower-case letters, digits and `-`, at most 40")
    return text


def parse_model(text: str) -> str:
    """A model's name, which becomes an argument of the agent's command."""
    if not _MODEL.fullmatch(text):
        raise ValueError("expected a model's name such as claude-sonnet-4-5")
    return text


def parse_method(text: str) -> str:
    """An HTTP method; TRACE and CONNECT would show or tunnel a credential."""
    if not _METHOD.fullmatch(text) or text in ("TRACE", "CONNECT"):
        raise ValueError("expected an HTTP method in capitals, not TRACE or CONNECT")
    return text


def parse_url_path(text: str) -> str:
    """A path template of a credential: `*` is one segment, a last `**` any rest."""
    if not template_is_valid(text):
        raise ValueError("expected a path such as /v1/messages or /v1/items/*, without a query")
    return text


def parse_ref(text: str) -> str:
    """A full ref, or all below one."""
    problem = pattern_problem(text)
    if problem is not None:
        raise ValueError("expected a full ref such as refs/heads/main, or refs/heads/agent/*")
    return text


def parse_inner_path(text: str) -> str:
    """A path below the workspace; `*`, `?` and `[...]` match within one component."""
    _check_path(text)
    path = posixpath.normpath(text)
    if text.startswith(("/", "~")) or path == "." or path.split("/")[0] == ".." or path.startswith("-"):
        raise ValueError("expected a path below the workspace, such as config/prod.env")
    return path


def parse_source(text: str) -> str:
    """A host path to mount; made absolute and checked against the host by the workspace."""
    _check_path(text)
    if ":" in text:
        raise ValueError("`:` in a mount's path cannot be passed to every engine; rename or link the directory")
    return text


def parse_target(text: str) -> str:
    """An absolute path in the sandbox that covers nothing of the image's or the tool's."""
    _check_path(text)
    path = posixpath.normpath(text)
    if not path.startswith("/") or path.startswith("//") or ":" in path or ".." in text.split("/"):
        raise ValueError("expected an absolute path in the sandbox, such as /data")
    if path in RESERVED_EXACTLY or any(path == top or path.startswith(top + "/") for top in RESERVED_TARGETS):
        raise ValueError(f"{path} belongs to the image or the tool; expected a path such as /data")
    return path


def _check_path(text: str) -> None:
    if not text or len(text) > 4096 or not text.isprintable():
        raise ValueError("expected a path without invisible characters")
