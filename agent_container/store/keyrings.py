"""The operating system's keyring: Secret Service (GNOME Keyring, KWallet) or the macOS Keychain.

The one module that knows the `keyring` library. Backends that would keep a secret in a plain file are not taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from agent_container.errors import Unverifiable

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

SERVICE = "agent-container"
TAKEN = frozenset(
    f"keyring.backends.{name}" for name in ("SecretService", "libsecret", "kwallet", "macOS", "chainer", "Windows")
)
"""Modules of the library's own backends that encrypt; `chainer` is made of these."""


class Keyring(Protocol):
    """Named texts that the operating system keeps for its user. Every method raises Unverifiable when it cannot."""

    def get(self, name: str, *, service: str = SERVICE) -> str | None:
        """The text, None when there is none."""

    def put(self, name: str, text: str) -> None:
        """Keeps it, in place of the one before."""

    def drop(self, name: str) -> None:
        """Forgets it; harmless when there is none."""


class OsKeyring:
    """The keyring of the session that this process runs in."""

    def get(self, name: str, *, service: str = SERVICE) -> str | None:
        """See Keyring."""
        with _explained():
            return _backend().get_password(service, name)

    def put(self, name: str, text: str) -> None:
        """See Keyring."""
        with _explained():
            _backend().set_password(SERVICE, name, text)

    def drop(self, name: str) -> None:
        """See Keyring."""
        from keyring.errors import PasswordDeleteError

        with _explained():
            try:
                _backend().delete_password(SERVICE, name)
            except PasswordDeleteError:
                return


def keyring_answers() -> bool:
    """Whether there is one that could keep a key; it may still be locked."""
    try:
        _backend()
    except Exception:
        return False
    return True


def _backend() -> KeyringBackend:
    import keyring

    backend = keyring.get_keyring()
    if type(backend).__module__ not in TAKEN:
        raise Unverifiable(
            "no keyring answers in this session",
            details=("a desktop login brings one (GNOME Keyring, KWallet); over ssh and in cron there is none",),
            hint="run it in the desktop session, or with DBUS_SESSION_BUS_ADDRESS of one",
        )
    return backend


@contextmanager
def _explained() -> Iterator[None]:
    """Whatever a keyring trips over, in words. Its own may quote what it was given, so they are not shown."""
    from keyring.errors import KeyringLocked

    try:
        yield
    except Unverifiable:
        raise
    except KeyringLocked:
        raise Unverifiable(
            "the keyring is locked", hint="unlock it (log in to the desktop, or open its password manager), then again"
        ) from None
    except Exception as error:
        raise Unverifiable(
            f"the keyring does not answer ({type(error).__name__})",
            hint="is its daemon running in this session? `busctl --user list | grep secrets` shows it",
        ) from None
