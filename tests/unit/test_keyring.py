"""A project's ssh keys as a value: what a rotation does to it, and what is taken for a host's key."""

from __future__ import annotations

import base64
import itertools
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from agent_container.errors import StoreError, UsageError
from agent_container.git_remote import GitRemote, parse_remote, ssh_remote
from agent_container.keyring import (
    KeyRing,
    begin_rotation,
    finish_rotation,
    make_key,
    parse_pin,
    parse_ring,
    place_of,
    with_pins,
    without_pins,
)
from agent_container.sandbox.control import NO_GATEWAY

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
PROJECT = "0123456789ab"
BLOB = base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes(32)).decode()
LINE = f"git.test ssh-ed25519 {BLOB}"
RING = KeyRing(PROJECT, current=make_key(comment="agent-container-0123456789ab", now=NOW), pins=(parse_pin(LINE),))


def test_what_is_sealed_is_read_again() -> None:
    assert parse_ring(RING.encode(), project=PROJECT) == RING
    assert "PRIVATE" not in repr(RING)


@pytest.mark.parametrize("body", [b"", b"null", b"{}", b"[" * 9999, RING.encode().replace(b"0123", b"9999")])
def test_what_is_none_is_told_without_its_content(body: bytes) -> None:
    with pytest.raises(StoreError) as caught:
        parse_ring(body, project=PROJECT)
    assert "PRIVATE" not in str(caught.value)


def test_a_rotation_has_a_working_key_at_every_step() -> None:
    assert RING.current is not None
    new = make_key(comment="x", now=NOW)
    begun = begin_rotation(RING, new)
    done = finish_rotation(begun)
    assert [begun.current, begun.next] == [RING.current, new]
    assert [done.current, done.next, done.previous] == [new, None, RING.current]
    for ring in (begun, done):
        with pytest.raises(UsageError):
            begin_rotation(ring, new)
    with pytest.raises(UsageError):
        finish_rotation(done)


def test_the_halves_belong_together() -> None:
    key = RING.current
    assert key is not None
    public = load_ssh_private_key(key.private.encode(), password=None).public_key()
    form = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    assert form.decode().split() == key.public.split()[:2]


def test_pins_of_a_host_are_kept_beside_each_other() -> None:
    other = parse_pin(f"@cert-authority git.test ssh-ed25519 {BLOB}")
    port = parse_pin(f"{place_of('git.test', 2222)} ssh-ed25519 {BLOB}")
    ring = with_pins(with_pins(RING, (other, port)), (port,))
    assert ring.known_hosts.splitlines() == [LINE, f"@cert-authority {LINE}", f"[git.test]:2222 ssh-ed25519 {BLOB}"]
    assert without_pins(ring, "git.test").pins == (port,)
    with pytest.raises(UsageError):
        with_pins(RING, tuple(replace(port, place=f"h{n}") for n in range(201)))


BAD_PINS = {
    "nothing": "",
    "a key of another type": f"git.test ssh-rsa {BLOB}",
    "an unknown type": f"git.test ssh-dss {BLOB}",
    "no base64": "git.test ssh-ed25519 !!!!",
    "a hashed host": f"|1|abc=|def= ssh-ed25519 {BLOB}",
    "several hosts": f"git.test,other.test ssh-ed25519 {BLOB}",
    "a negation": f"!git.test ssh-ed25519 {BLOB}",
    "a revocation": f"@revoked git.test ssh-ed25519 {BLOB}",
}


@pytest.mark.parametrize("case", BAD_PINS)
def test_what_is_no_pin(case: str) -> None:
    with pytest.raises(UsageError):
        parse_pin(BAD_PINS[case])


REMOTES = {
    "git@git.test:acme/api.git": GitRemote("git.test", 22, "git", "acme/api.git"),
    "git.test:acme/api.git": GitRemote("git.test", 22, "git", "acme/api.git"),
    "me@GIT.test:api": GitRemote("git.test", 22, "me", "api"),
    "ssh://git@git.test/acme/api.git/": GitRemote("git.test", 22, "git", "/acme/api.git"),
    "ssh://git.test:2222/api": GitRemote("git.test", 2222, "git", "/api"),
}


@pytest.mark.parametrize("text", REMOTES)
def test_a_repository_s_address(text: str) -> None:
    found = parse_remote(text)
    assert found == REMOTES[text]
    assert parse_remote(found.text) == found


NO_REMOTES = (
    "https://git.test/a", "/srv/a.git", "../a", "", "git.test", "git@git.test:", "-oProxyCommand=x:a", "file:///a",
    "ssh://git@git.test:0/a", "ssh://git@git.test:99999/a", "git@git.test:a b", "git@git.test:a/../b",
    "git@203.0.113.9:a", "git@git.test:$(id)", "ssh://git:secret@git.test/a",
)  # fmt: skip


@pytest.mark.parametrize("text", NO_REMOTES)
def test_what_is_no_repository_over_ssh(text: str) -> None:
    assert ssh_remote(text) is None


def test_ids_and_fingerprints_are_a_key_s_own() -> None:
    keys = [make_key(comment="x", now=NOW) for _ in range(3)]
    assert len({key.id for key in keys} | {key.fingerprint for key in keys}) == 6
    assert all(one.private != other.private for one, other in itertools.combinations(keys, 2))


def test_both_sides_say_the_same_where_there_is_no_gateway() -> None:
    import agent_egress.boundary as boundary

    assert NO_GATEWAY in Path(boundary.__file__).read_text()
