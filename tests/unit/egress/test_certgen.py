"""What squid asks of its certificate helper, and for which names it gets a leaf."""

from __future__ import annotations

import io

import pytest

from agent_egress.certgen import RequestRefused, alternative_name, read_request

CA = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\nAAAA\n"


def message(host: str, sign: str = "signTrusted") -> bytes:
    return f"host={host}\nSign={sign}\nSignHash=SHA256\n{CA}".encode()


def test_messages_are_read_one_after_the_other() -> None:
    bodies = [message("a.test"), message("b.test")]
    stream = io.BytesIO(b"".join(b"new_certificate %d %s\n" % (len(body), body) for body in bodies))
    assert [read_request(stream), read_request(stream), read_request(stream)] == [*bodies, None]


@pytest.mark.parametrize("raw", [b"x" * 100, b"new_certificate 99999999 x", b"other 1 x", b"new_certificate x y"])
def test_what_is_no_message_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):
        read_request(io.BytesIO(raw))


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("api.test", "DNS:api.test"),
        ("_x.api.test", "DNS:_x.api.test"),
        ("203.0.113.7", "IP:203.0.113.7"),
        ("[2001:db8::7]", "IP:2001:db8::7"),
    ],
)
def test_a_host_becomes_a_name(host: str, name: str) -> None:
    assert alternative_name(message(host)) == name


@pytest.mark.parametrize("host", ["", "a,DNS:evil.test", "a b", "*.test", "a\u00e9", "a/../b", "-a", "x" * 300])
def test_a_host_that_is_none_gets_no_leaf(host: str) -> None:
    with pytest.raises(RequestRefused):
        alternative_name(message(host))


@pytest.mark.parametrize("sign", ["signUntrusted", "signSelf", "other"])
def test_a_server_that_did_not_verify_is_never_made_to_look_right(sign: str) -> None:
    with pytest.raises(RequestRefused):
        alternative_name(message("api.test", sign))
