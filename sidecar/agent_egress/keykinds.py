"""Keys of known kinds: how each begins, and what a whole one looks like. A kind's literal is searched for at the speed
of a search; its expression is tried only where the literal stands. The forms are those that the services document, or
print; a kind without a fixed beginning is not here."""

from __future__ import annotations

import re
from dataclasses import dataclass

PEM_HEAD = b"-----BEGIN "
PEM_SPAN = 128
"""Bytes from the beginning of a private key to where it is told from a mention of one."""


@dataclass(frozen=True)
class Kind:
    """One kind of key, or several with the same literal."""

    names: tuple[str, ...]
    """One for each group of `whole`."""
    literal: bytes
    """In no text often, and long enough for a quick search."""
    whole: re.Pattern[bytes]
    back: int = 0
    """Bytes from the beginning to the literal."""

    def at(self, text: bytes, literal_at: int) -> re.Match[bytes] | None:
        """A whole key whose literal stands here."""
        start = literal_at - self.back
        if self.back < 0:
            start = text.rfind(PEM_HEAD, max(0, literal_at - PEM_SPAN), literal_at)
        return self.whole.match(text, start) if start >= 0 else None

    def name(self, found: re.Match[bytes]) -> str:
        """Which of the kinds it is."""
        return self.names[(found.lastindex or 1) - 1]


def _kind(names: str, literal: str, whole: str, back: int = 0) -> Kind:
    return Kind(tuple(names.split()), literal.encode("ascii"), re.compile(whole.encode("ascii")), back)


_WORD = "[A-Za-z0-9_-]"
_START = f"(?<!{_WORD})"
_ANTHROPIC = f"(sk-ant-[a-z]{{3,12}}[0-9]{{2}}-{_WORD}{{40,255}})"
_OPENAI = f"(sk-(?:proj|svcacct|admin)-{_WORD}{{40,255}})"
_SLACK = "xox[abeoprs]-(?:[0-9]-)?[0-9A-Za-z-]{20,255}"
_ENDED = r"(?:\s|\\{1,2}[nr]){1,8}"
KINDS = (
    _kind("aws-access-key", "IA", r"(?<![A-Z0-9])A[KS]IA[A-Z2-7]{16}(?![A-Z0-9])", back=2),
    _kind("github-token", "gh", r"gh[pousr]_[A-Za-z0-9]{36,255}"),
    _kind("github-token", "github_pat_", r"github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}"),
    _kind("gitlab-token", "glpat-", f"glpat-{_WORD}{{20,255}}"),
    _kind("anthropic-key openai-key", "sk-", f"{_START}(?:{_ANTHROPIC}|{_OPENAI})"),
    # The older form holds base64 of "OpenAI" in its middle.
    _kind("openai-key", "T3BlbkFJ", r"sk-[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}", back=23),
    _kind("google-key", "AIza", f"{_START}AIza{_WORD}{{35}}(?!{_WORD})"),
    _kind("google-oauth-secret", "GOCSPX-", f"GOCSPX-{_WORD}{{28}}"),
    _kind("slack-token", "xox", _SLACK),
    _kind("slack-token", "xapp-", r"xapp-[0-9]-[A-Z0-9]{8,16}-[0-9]{8,16}-[a-z0-9]{32,128}"),
    _kind("npm-token", "npm_", f"{_START}npm_[A-Za-z0-9]{{36}}"),
    _kind("pypi-token", "pypi-AgEI", f"pypi-AgEI{_WORD}{{50,255}}"),
    _kind("stripe-key", "k_live_", r"[sr]k_live_[A-Za-z0-9]{20,255}", back=1),
    _kind("huggingface-token", "hf_", f"{_START}hf_[A-Za-z]{{34}}"),
    # With the beginning of its body: program text that only names the header is no key.
    _kind(
        "private-key",
        "PRIVATE KEY",
        rf"-----BEGIN (?:[A-Z0-9]{{2,9}} )?PRIVATE KEY(?:-----{_ENDED}[A-Za-z0-9+/=]{{32}}| BLOCK-----{_ENDED})",
        back=-1,
    ),
)
