"""A key out of a passphrase: scrypt, its parameters stored beside what it opens, and the least accepted of them.

The floor is checked on reading: a document that says less was not written by this tool, and a guesser would be glad of
it. Also the places that a passphrase may come from without standing in an argument or a variable.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent_container.errors import StoreError, UsageError
from agent_container.store.writer import read_file

COST = 2**17
"""scrypt's N: 128 MiB and about half a second a guess (RFC 7914; OWASP's password storage sheet)."""
LEAST_COST = 2**16
MOST_COST = 2**20
BLOCK = 8
SALT_BYTES = 16
KEY_BYTES = 32
LEAST_CHARACTERS = 8
MOST_BYTES = 1024
FILE_VARIABLE = "AGENT_CONTAINER_PASSPHRASE_FILE"
HOW = "--passphrase-file FILE, --passphrase-fd N, or the variable AGENT_CONTAINER_PASSPHRASE_FILE with a file's name"


@dataclass(frozen=True)
class Stretching:
    """How a passphrase becomes a key."""

    salt: bytes
    cost: int = COST
    block: int = BLOCK
    lanes: int = 1

    def derive(self, passphrase: bytes) -> bytes:
        """The key, 32 bytes."""
        from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

        return Scrypt(salt=self.salt, length=KEY_BYTES, n=self.cost, r=self.block, p=self.lanes).derive(passphrase)

    def row(self) -> dict[str, object]:
        """For the key document."""
        salt = base64.b64encode(self.salt).decode("ascii")
        return {"name": "scrypt", "n": self.cost, "r": self.block, "p": self.lanes, "salt": salt}


def read_stretching(row: object, *, where: Path) -> Stretching:
    """The parameters in a key document. Raises StoreError when they are none, below the floor, or beyond reason."""
    hint = f"put {where} back from a backup"
    damaged = StoreError(f"{where} does not say how its passphrase becomes a key", hint=hint)
    if not isinstance(row, dict) or row.get("name") != "scrypt":
        raise damaged
    cost, block, lanes = row.get("n"), row.get("r"), row.get("p")
    try:
        salt = base64.b64decode(str(row.get("salt")), validate=True)
    except binascii.Error:
        raise damaged from None
    if not (isinstance(cost, int) and isinstance(block, int) and isinstance(lanes, int)):
        raise damaged
    found = f"scrypt n={cost} r={block} p={lanes}, salt of {len(salt)} bytes"
    if cost < LEAST_COST or cost & (cost - 1) or block < BLOCK or lanes < 1 or len(salt) < SALT_BYTES:
        raise StoreError(
            f"{where} makes its passphrase cheap to guess: {found}",
            details=(f"the least is n={LEAST_COST} r={BLOCK} p=1, {SALT_BYTES} bytes; somebody has changed the file",),
            hint=hint,
        )
    if cost > MOST_COST or block > 4 * BLOCK or lanes > 16:
        raise StoreError(f"{where} asks for more memory than a passphrase is worth: {found}", hint=hint)
    return Stretching(salt, cost, block, lanes)


def new_stretching() -> Stretching:
    """Parameters for a new passphrase."""
    return Stretching(os.urandom(SALT_BYTES))


def checked_passphrase(passphrase: bytes) -> bytes:
    """A passphrase that may become a key. Raises UsageError; the message never holds it."""
    if len(passphrase.decode("utf-8", "replace")) < LEAST_CHARACTERS:
        raise UsageError(f"a passphrase has at least {LEAST_CHARACTERS} characters; better are five random words")
    if len(passphrase) > MOST_BYTES or b"\n" in passphrase or b"\0" in passphrase:
        raise UsageError(f"a passphrase is one line of at most {MOST_BYTES} bytes")
    return passphrase


class Passphrases:
    """Where this call takes the store's passphrase from: a file descriptor, a file, or its user. Asked at most once."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        fd: int | None = None,
        file: Path | None = None,
        ask: Callable[[str], str] | None = None,
    ) -> None:
        named = environ.get(FILE_VARIABLE)
        self._fd = fd
        self._file = file or (Path(named) if named else None)
        self._ask = ask
        self._known: bytes | None = None

    @property
    def known(self) -> bytes | None:
        """The passphrase when it was needed, for a process that goes on in this one's place."""
        return self._known

    def current(self) -> bytes:
        """The one that opens the store. Raises UsageError when nobody can say it."""
        if self._known is None:
            self._known = self._given() or self._asked("passphrase of the credential store:")
        return self._known

    def new(self) -> bytes:
        """One to be set; a person types it twice."""
        given = self._given()
        if given is not None:
            return checked_passphrase(given)
        first = checked_passphrase(self._asked("new passphrase of the credential store:"))
        if self._asked("the same once more:") != first:
            raise UsageError("the two are not the same; nothing was changed")
        return first

    def replaced(self, passphrase: bytes) -> None:
        """From now on it is this one."""
        self._known = passphrase

    def _asked(self, question: str) -> bytes:
        if self._ask is None:
            raise UsageError("the credential store is locked with a passphrase, and nobody can be asked", hint=HOW)
        return self._ask(question).encode("utf-8", "surrogateescape")

    def _given(self) -> bytes | None:
        if self._fd is not None:
            try:
                with os.fdopen(os.dup(self._fd), "rb") as stream:
                    body = stream.read(MOST_BYTES + 2)
            except OSError as error:
                raise UsageError(f"file descriptor {self._fd} cannot be read: {error.strerror}") from None
            if not body and self._known is not None:
                return self._known  # a pipe gives it once
        elif self._file is not None:
            found = read_file(self._file, max_bytes=MOST_BYTES + 2)
            if found is None:
                raise UsageError(f"there is no {self._file} to read the passphrase from")
            if self._file.stat().st_mode & 0o077:
                raise UsageError(
                    f"others can read the passphrase in {self._file}", hint=f"chmod 600 {self._file}, and set another"
                )
            body = found
        else:
            return None
        passphrase = body.removesuffix(b"\n").removesuffix(b"\r")
        if not passphrase:
            raise UsageError("the passphrase is empty")
        return passphrase
