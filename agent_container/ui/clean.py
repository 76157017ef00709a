"""Text that came from a sandbox, made safe to print: no escape sequence, no control character, no hidden turn of
direction.

Everything that is printed passes here, ours too; the rule needs no knowledge of where a string came from.
"""

from __future__ import annotations

import re
import unicodedata

# Invisible, or able to change how neighbours are shown (Trojan Source, CVE-2021-42574). U+200D stays: emoji need it.
_HIDDEN = frozenset(
    [
        *(
            0x00AD,
            0x061C,
            0x115F,
            0x1160,
            0x17B4,
            0x17B5,
            0x180E,
            0x200B,
            0x200C,
            0x200E,
            0x200F,
            0x3164,
            0xFEFF,
            0xFFA0,
        ),
        *range(0x2028, 0x202F),
        *range(0x2060, 0x2070),
        *range(0xFFF9, 0xFFFC),
        *range(0xE0000, 0xE0080),
    ]
)
_PLAIN = re.compile(r"[ -~]*")


def clean(text: str, *, lines: bool = False) -> str:
    """`text` with what is not plainly visible written out as `\\x1b`; with `lines`, newlines and tabs stay."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join(_shown(char, lines=lines) for char in text)


def one_line(text: str, *, width: int) -> str:
    """`text` on one line of at most `width` characters, runs of white space joined."""
    joined = clean(" ".join(text[: width * 8].split()))
    return joined if len(joined) <= width else joined[: max(width - 1, 0)] + "…"


def _shown(char: str, *, lines: bool) -> str:
    if " " <= char <= "~" or (lines and char in "\n\t"):
        return char
    code = ord(char)
    if code not in _HIDDEN and unicodedata.category(char) not in ("Cc", "Cs", "Cn", "Co"):
        return char
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
