"""The kinds of credential that are known: where each may be used, the variable that agents look for, and its shape.

No kind covers a path that mints or lists credentials: who holds the placeholder could otherwise have the service hand
out a real one. Where the defaults are too narrow, the user binds a `generic` credential by hand.
"""

from __future__ import annotations

import hashlib
import string
import zlib
from dataclasses import dataclass

BEARER = "Bearer {}"
BASIC = "Basic b64(*:{})"
_GITHUB_REPO = "/repos/*/*"


@dataclass(frozen=True)
class KindPlace:
    """Another place where the same secret works: git over https beside a forge's API."""

    hosts: tuple[str, ...]
    methods: tuple[str, ...]
    paths: tuple[str, ...]
    header: str
    formats: tuple[str, ...]


@dataclass(frozen=True)
class CredentialKind:
    """One row of the table; the fields are those of a binding."""

    name: str
    hosts: tuple[str, ...]
    methods: tuple[str, ...]
    paths: tuple[str, ...]
    header: str
    formats: tuple[str, ...]
    env: tuple[str, ...]
    prefix: str
    """What real ones begin with: some programs refuse a key without it."""
    length: int
    """Characters of a placeholder, those of a real one."""
    port: int = 443
    model: bool = False
    """Whether it is the key of a model service: what the limits of model use count."""
    notice: tuple[str, ...] = ()
    """What its user should know, in words: the vendor's terms."""
    more: tuple[KindPlace, ...] = ()
    checksum: bool = False
    """Whether real ones end in a checksum that programs look at."""
    repositories: bool = False
    """Whether it can be bound to repositories by name."""


_TABLE = (
    CredentialKind(
        name="anthropic",
        hosts=("api.anthropic.com",),
        methods=("POST",),
        paths=("/v1/messages", "/v1/messages/count_tokens"),
        header="x-api-key",
        formats=("{}",),
        env=("ANTHROPIC_API_KEY",),
        prefix="sk-ant-api03-",
        length=108,
        model=True,
    ),
    CredentialKind(
        name="anthropic-oauth",
        hosts=("api.anthropic.com",),
        methods=("POST",),
        paths=("/v1/messages", "/v1/messages/count_tokens"),
        header="Authorization",
        formats=(BEARER,),
        env=("CLAUDE_CODE_OAUTH_TOKEN",),
        prefix="sk-ant-oat01-",
        length=108,
        model=True,
        notice=(
            "a subscription's token is for its own subscriber, in Claude Code, within the limits of the plan;",
            "for anything that serves others or runs unattended, Anthropic's terms ask for an API key.",
        ),
    ),
    CredentialKind(
        name="openai",
        hosts=("api.openai.com",),
        methods=("POST",),
        paths=("/v1/responses", "/v1/chat/completions"),
        header="Authorization",
        formats=(BEARER,),
        env=("OPENAI_API_KEY", "CODEX_API_KEY"),
        prefix="sk-proj-",
        length=164,
        model=True,
    ),
    CredentialKind(
        name="google",
        hosts=("generativelanguage.googleapis.com",),
        methods=("GET", "POST"),
        paths=("/v1beta/models", "/v1beta/models/*"),
        header="x-goog-api-key",
        formats=("{}",),
        env=("GEMINI_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY"),
        prefix="AIzaSy",
        length=39,
        model=True,
    ),
    CredentialKind(
        name="openrouter",
        hosts=("openrouter.ai",),
        methods=("POST",),
        paths=("/api/v1/chat/completions", "/api/v1/responses", "/api/v1/messages"),
        header="Authorization",
        formats=(BEARER,),
        env=("OPENROUTER_API_KEY",),
        prefix="sk-or-v1-",
        length=73,
        model=True,
    ),
    # Left out on purpose: /repos/*/*/keys, /user/keys, .../access_tokens, actions/runners (they mint), secrets, hooks,
    # and /graphql, whose mutations cannot be told apart by path. Without PATCH and DELETE no repository is made public
    # or removed.
    CredentialKind(
        name="github",
        hosts=("api.github.com",),
        methods=("GET", "HEAD", "POST", "PUT"),
        paths=(
            "/user",
            "/rate_limit",
            "/search/issues",
            "/search/code",
            _GITHUB_REPO,
            f"{_GITHUB_REPO}/branches",
            f"{_GITHUB_REPO}/branches/*",
            f"{_GITHUB_REPO}/commits",
            f"{_GITHUB_REPO}/commits/**",
            f"{_GITHUB_REPO}/compare/**",
            f"{_GITHUB_REPO}/contents/**",
            f"{_GITHUB_REPO}/git/**",
            f"{_GITHUB_REPO}/issues",
            f"{_GITHUB_REPO}/issues/**",
            f"{_GITHUB_REPO}/labels",
            f"{_GITHUB_REPO}/pulls",
            f"{_GITHUB_REPO}/pulls/**",
            f"{_GITHUB_REPO}/releases",
            f"{_GITHUB_REPO}/releases/**",
            f"{_GITHUB_REPO}/tags",
            f"{_GITHUB_REPO}/actions/runs",
            f"{_GITHUB_REPO}/actions/runs/**",
            f"{_GITHUB_REPO}/check-runs/**",
        ),
        header="Authorization",
        formats=(BEARER, "token {}"),
        env=("GH_TOKEN", "GITHUB_TOKEN"),
        prefix="ghp_",
        length=40,
        # Smart HTTP alone: the dumb protocol is not served, and LFS answers with further credentials.
        more=(
            KindPlace(
                hosts=("github.com",),
                methods=("GET", "POST"),
                paths=("/*/*/info/refs", "/*/*/git-upload-pack", "/*/*/git-receive-pack"),
                header="Authorization",
                formats=(BASIC,),
            ),
        ),
        checksum=True,
        repositories=True,
        notice=("who holds a token that may push can change what your CI runs; bind it: --repo OWNER/NAME",),
    ),
    # Reading packages, and no more: /-/npm/v1/tokens and /-/user/* mint. Which host it is, the user says.
    CredentialKind(
        name="npm",
        hosts=(),
        methods=("GET", "HEAD"),
        paths=("/*", "/*/*", "/*/-/*", "/*/*/-/*"),
        header="Authorization",
        formats=(BEARER,),
        env=("NPM_TOKEN",),
        prefix="npm_",
        length=40,
        checksum=True,
    ),
    CredentialKind(
        name="pypi",
        hosts=(),
        methods=("GET", "HEAD"),
        paths=("/simple/**", "/packages/**"),
        header="Authorization",
        formats=(BASIC,),
        env=("PYPI_TOKEN",),
        prefix="pypi-",
        length=179,
    ),
    CredentialKind(
        name="generic",
        hosts=(),
        methods=("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"),
        paths=(),
        header="Authorization",
        formats=(BEARER,),
        env=(),
        prefix="placeholder-",
        length=52,
    ),
    CredentialKind(
        name="generic-basic",
        hosts=(),
        methods=("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"),
        paths=(),
        header="Authorization",
        formats=(BASIC,),
        env=(),
        prefix="placeholder-",
        length=52,
    ),
)
KINDS = {kind.name: kind for kind in _TABLE}

_ALPHABET = string.ascii_letters + string.digits
_BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
CHECKSUM_DIGITS = 6


def make_decoy(kind: str, entropy: bytes) -> str:
    """A placeholder in the shape of the real thing, from at least 16 random bytes; the same bytes give the same one."""
    if len(entropy) < 16:
        raise ValueError("a placeholder needs at least 16 bytes of entropy")
    row = KINDS[kind]
    number = int.from_bytes(hashlib.shake_256(b"agent-container decoy\0" + kind.encode() + b"\0" + entropy).digest(256))
    body = []
    for _ in range(row.length - len(row.prefix)):
        number, digit = divmod(number, len(_ALPHABET))
        body.append(_ALPHABET[digit])
    if row.checksum:
        body[-CHECKSUM_DIGITS:] = checksum("".join(body[:-CHECKSUM_DIGITS]))
    return row.prefix + "".join(body)


def checksum(body: str) -> str:
    """The last digits of GitHub's and npm's tokens: the CRC-32 of what stands between prefix and them, in base 62
    (https://github.blog/2021-04-05-behind-githubs-new-authentication-token-formats/)."""
    number = zlib.crc32(body.encode("ascii"))
    digits = []
    for _ in range(CHECKSUM_DIGITS):
        number, digit = divmod(number, len(_BASE62))
        digits.append(_BASE62[digit])
    return "".join(reversed(digits))


def in_repositories(paths: tuple[str, ...], repositories: tuple[str, ...]) -> tuple[str, ...]:
    """The templates of a forge, for these repositories (`OWNER/NAME`) alone. What looks across repositories goes."""
    found = []
    for path in paths:
        if path.startswith("/search/"):
            continue
        if path.startswith(_GITHUB_REPO):
            found += [f"/repos/{repo}{path.removeprefix(_GITHUB_REPO)}" for repo in repositories]
        elif path.startswith("/*/*/"):
            found += [f"/{repo}{end}/{path.removeprefix('/*/*/')}" for repo in repositories for end in ("", ".git")]
        else:
            found.append(path)
    return tuple(found)
