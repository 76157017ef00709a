"""Changing what the store is locked with, so that a crash at any step leaves a store that opens.

A new data key under the new lock; the document with both data keys in one write, from which moment the new lock opens
everything; every file sealed anew; the document without the former key; last the former lock's remains. Before the
first document the old lock opens all, after it the new one. Done again, it goes on where it stopped.
"""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from agent_container.errors import AgentContainerError, StoreError
from agent_container.store.datakeys import DOCUMENT, FIRST_FILE, KEY_BYTES, DataKey, DataKeys, entry_name
from agent_container.store.keydoc import KeyDocument, LockKind, key_id, parse_document
from agent_container.store.passphrase import Passphrases, new_stretching
from agent_container.store.writer import read_file

SLOTS = ("a", "b")


@dataclass(frozen=True)
class Relocked:
    """What a change of the lock did."""

    lock: LockKind
    key: str
    """Id of the data key in force."""
    resealed: int
    left: tuple[str, ...]
    """Files that no known key opens: left as they are."""


def relock(
    keys: DataKeys,
    lock: LockKind,
    *,
    passphrases: Passphrases,
    reseal: Callable[[Sequence[DataKey]], tuple[int, tuple[str, ...]]],
    abandon: bool = False,
) -> Relocked:
    """Locks the store with `lock`. The caller holds the store's key lock. `abandon` starts without the former keys:
    what was sealed under them stays shut. Raises Unverifiable when the present lock does not open."""
    before = None if abandon else keys.document()
    former = () if abandon else _former(keys)
    if before is not None and len(before.keys) > 1:
        # Somebody was killed in between: to its end, before anything new begins.
        done = _finish(keys, before, former, reseal)
        if before.lock == lock != "passphrase":
            _tidy(keys, before, done)
            return done
    fresh = passphrases.new() if lock == "passphrase" else b""
    store = before.store if before is not None else secrets.token_hex(8)
    document, lock_key = _new_lock(keys, lock, store=store, before=before, passphrase=fresh)
    current = os.urandom(KEY_BYTES)
    every = (DataKey(key_id(current), current), *former)
    document = replace(document, keys=tuple(document.wrap(lock_key, one.key) for one in every))
    if abandon:
        _put_aside(keys)
    keys.writer.write(keys.path, document.encode())
    if lock == "passphrase":
        passphrases.replaced(fresh)
    done = _finish(keys, document, every, reseal)
    if not abandon:
        _tidy(keys, document, done)
    return done


def _former(keys: DataKeys) -> tuple[DataKey, ...]:
    """The data keys up to now; none in a store that has sealed nothing yet."""
    if keys.document() is None and not (keys.directory / FIRST_FILE).exists() and not keys.in_use():
        return ()
    return keys.keys()


def _new_lock(
    keys: DataKeys, lock: LockKind, *, store: str, before: KeyDocument | None, passphrase: bytes
) -> tuple[KeyDocument, bytes]:
    """A document without keys, and the key that it is to be locked with, which is kept where it belongs by now."""
    if lock == "passphrase":
        stretching = new_stretching()
        return KeyDocument(store, lock, "", "", stretching, ()), stretching.derive(passphrase)
    key = os.urandom(KEY_BYTES)
    if lock == "file":
        document = KeyDocument(store, lock, key_id(key), key_id(key), None, ())
        keys.writer.create(keys.lock_file(document.slot), key)
        return document, key
    # Never over the entry that is in force; a killed change's entry is overwritten by the next.
    slot = SLOTS[1] if before is not None and before.slot == SLOTS[0] else SLOTS[0]
    document = KeyDocument(store, lock, key_id(key), slot, None, ())
    text = base64.b64encode(key).decode("ascii")
    keys.keyring.put(entry_name(document), text)
    if keys.keyring.get(entry_name(document)) != text:
        raise StoreError("the keyring does not give back what it was given; nothing was changed")
    return document, key


def _finish(
    keys: DataKeys,
    document: KeyDocument,
    every: tuple[DataKey, ...],
    reseal: Callable[[Sequence[DataKey]], tuple[int, tuple[str, ...]]],
) -> Relocked:
    count, left = reseal(every)
    # The wrapped key as it stands: the lock's own key is not needed a second time.
    keys.writer.write(keys.path, replace(document, keys=document.keys[:1]).encode())
    return Relocked(document.lock, document.keys[0].id, count, left)


def _tidy(keys: DataKeys, document: KeyDocument, done: Relocked) -> None:
    """Former locks' remains, those of a change that was killed too, once they open nothing of this store any more."""
    if done.left:
        return  # one of them may be what such a file is opened with, or a backup of it
    kept = {keys.lock_file(slot) for slot in _abandoned_slots(keys)}
    if document.lock == "file":
        kept.add(keys.lock_file(document.slot))
    for path in keys.directory.glob(f"{FIRST_FILE}*"):
        if path not in kept:
            keys.writer.remove(path)
    for slot in SLOTS:
        if document.lock != "keyring" or slot != document.slot:
            with suppress(AgentContainerError):  # no keyring, or a locked one: the key that it keeps opens nothing
                keys.keyring.drop(entry_name(replace(document, slot=slot)))


def _put_aside(keys: DataKeys) -> None:
    """What a key that turns up again would need, beside what was put aside before. The host's signing key is sealed
    under the lost one, so there will be another; its public half stays, as of one that was rotated."""
    names = (DOCUMENT, "host.key")
    number = 1
    while any((keys.directory / _aside(name, number)).exists() for name in names):
        number += 1
    for name in names:
        body = read_file(keys.directory / name, max_bytes=65536)
        if body is not None and not keys.writer.create(keys.directory / _aside(name, number), body):
            raise StoreError(f"{keys.directory / _aside(name, number)} is there already; nothing was changed")
    keys.writer.remove(keys.directory / "host.key")


def _aside(name: str, number: int) -> str:
    return f"abandoned-{name}" if number == 1 else f"abandoned-{number}-{name}"


def _abandoned_slots(keys: DataKeys) -> set[str]:
    """The key files that a document which was put aside names."""
    found = set()
    for path in keys.directory.glob(f"abandoned-*{DOCUMENT}"):
        body = read_file(path, max_bytes=65536)
        with suppress(StoreError):  # a damaged one may be why it was given up
            if body is not None and (document := parse_document(body, where=path)).lock == "file":
                found.add(document.slot)
    return found


def sealed_files(data: Path) -> list[Path]:
    """Every sealed file of a store, whatever its kind."""
    patterns = ("credentials/*.sealed", "ssh-keys/*.sealed", "keys/host.key", "sessions/*/chain.key")
    return sorted(path for pattern in patterns for path in data.glob(pattern) if not path.name.startswith("."))
