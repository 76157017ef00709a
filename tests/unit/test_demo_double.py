"""bin/lib/double: what stands for the internet in the quickstart must speak DNS and TLS correctly."""

from __future__ import annotations

import importlib.util
import ssl
import struct
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import pytest

DOUBLE = Path(__file__).resolve().parents[2] / "bin" / "lib" / "double"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"double_{name}", DOUBLE / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[f"double_{name}"] = module
    spec.loader.exec_module(module)
    return module


def query(name: str, kind: int) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">HHHHHH", 0x1234, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


@pytest.mark.parametrize(
    ("name", "kind", "rcode", "answers"),
    [
        ("api.example", 1, 0, 1),
        ("API.Example", 1, 0, 1),
        ("api.example", 28, 0, 0),
        ("other.example", 1, 3, 0),
        ("sub.api.example", 1, 3, 0),
    ],
)
def test_names_answers_what_it_was_given_and_nothing_else(name: str, kind: int, rcode: int, answers: int) -> None:
    reply = load("names").answer(query(name, kind), names=frozenset({"api.example"}), address="203.0.113.80")
    identifier, flags, questions, count = struct.unpack_from(">HHHH", reply)
    assert (identifier, questions, flags & 0xF, count) == (0x1234, 1, rcode, answers)
    assert reply.endswith(bytes([203, 0, 113, 80])) is bool(answers)


@pytest.mark.parametrize("broken", [b"", b"\0" * 12, query("api.example", 1)[:-3], b"\0" * 12 + b"\xc0\x0c\0\1\0\1"])
def test_names_does_not_parse_a_broken_query(broken: bytes) -> None:
    with pytest.raises((ValueError, IndexError, struct.error)):
        load("names").answer(broken, names=frozenset({"api.example"}), address="203.0.113.80")


def test_certificates_verify_for_their_names_alone(tmp_path: Path) -> None:
    load("certificates").main(tmp_path, ["api.example", "files.example"], datetime.now(UTC))
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(tmp_path / "server.pem")
    client_context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    for name, good in (("api.example", True), ("files.example", True), ("evil.example", False)):
        assert handshake(client_context, server_context, name) is good
    assert "PRIVATE" not in (tmp_path / "ca.pem").read_text()


def handshake(client_context: ssl.SSLContext, server_context: ssl.SSLContext, name: str) -> bool:
    """A TLS handshake in memory: no socket, so the network guard of the unit tests has nothing to say."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=name)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(8):
        done = 0
        for side in (client, server):
            try:
                side.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
        if done == 2:
            return True
    return False
