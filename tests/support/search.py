"""Looking for a secret wherever it must not be: as it is, coded, turned round and halved."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

EVERY_FILE = r"""
env
cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/task/*/environ
find / \( -path /proc -o -path /sys -o -path /usr \) -prune -o -type f -readable -print0 | xargs -0 cat
"""


def forms(secret: bytes) -> list[bytes]:
    """The bytes as they are, in base64 at every alignment, in hexadecimal, turned round, and halved."""
    found = [secret, secret[::-1], secret.hex().encode(), secret.hex().upper().encode(), secret[: len(secret) // 2]]
    found += [secret[len(secret) // 2 :]]
    for shift in range(3):
        whole = base64.b64encode(bytes(shift) + secret + bytes(3 - (shift + len(secret)) % 3))
        inner = whole[4 : (len(secret) + shift) // 3 * 4 - 4]  # without what the neighbours take part in
        found += [inner, inner.translate(bytes.maketrans(b"+/", b"-_"))]
    assert all(len(form) > 16 for form in found)
    return found


class Search:
    """Looks for a secret in whatever it is given, and for the placeholder, to prove that it looks."""

    def __init__(self, *needles: bytes) -> None:
        self._needles = [form for needle in needles for form in forms(needle)]
        self._overlap = max(map(len, self._needles))

    def bytes(self, data: bytes, where: str) -> None:
        found = [needle[:4] for needle in self._needles if needle in data]
        assert not found, f"the secret is in {where}"

    def tree(self, top: Path, *, but: Path | None = None) -> int:
        files = [path for path in top.rglob("*") if path.is_file() and (but is None or but not in path.parents)]
        for path in files:
            self.bytes(bytes(path.name, "utf-8", "surrogateescape") + b"\0" + path.read_bytes(), str(path))
        return len(files)

    def output(self, argv: list[str], where: str) -> int:
        """The output of a command, too long to hold."""
        total, tail = 0, b""
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            while chunk := process.stdout.read(1 << 22):
                self.bytes(tail + chunk, where)
                total, tail = total + len(chunk), chunk[-self._overlap :]
        return total
