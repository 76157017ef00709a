"""ICAP as bytes: heads, encapsulated parts, chunks in every piece size, and what is refused."""

from __future__ import annotations

import pytest

from agent_egress.icap import Chunks, IcapError, options, parse_head, parse_http, split_headers

REQ = b"POST https://api.test/v1 HTTP/1.1\r\nHost: api.test\r\n\r\n"
RES = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"


def head(sections: str, *, method: str = "RESPMOD", more: str = "") -> bytes:
    lines = (f"{method} icap://127.0.0.1/answer ICAP/1.0", "Host: x", f"{more}Encapsulated: {sections}", "", "")
    return "\r\n".join(lines).encode()


def test_a_head_and_its_parts() -> None:
    at = len(REQ)
    parsed = parse_head(head(f"req-hdr=0, res-hdr={at}, res-body={at + len(RES)}", more="Preview: 0\r\nAllow: 204\r\n"))
    assert (parsed.method, parsed.service, parsed.header_bytes) == ("RESPMOD", "answer", at + len(RES))
    assert (parsed.has_body, parsed.previews, parsed.may_skip) == (True, True, True)
    parts = split_headers(parsed, REQ + RES)
    assert parts == {"req-hdr": REQ, "res-hdr": RES}
    assert parse_http(parts["res-hdr"]).headers["content-encoding"] == "gzip"


@pytest.mark.parametrize(
    ("first", "host", "place"),
    [
        ("POST https://api.test/v1 HTTP/1.1", "x", ("api.test", 443)),
        ("POST https://API.test:8443/v1 HTTP/1.1", "x", ("api.test", 8443)),
        ("POST http://api.test./v1 HTTP/1.1", "x", ("api.test", 80)),
        ("POST /v1 HTTP/1.1", "api.test", ("api.test", 443)),
        ("POST https://[2001:db8::7]/ HTTP/1.1", "x", ("2001:db8::7", 443)),
        ("POST https://[x/ HTTP/1.1", "x", ("", 0)),
        ("POST https://a:99999/ HTTP/1.1", "x", ("", 0)),
    ],
)
def test_where_a_request_goes(first: str, host: str, place: tuple[str, int]) -> None:
    assert parse_http(f"{first}\r\nHost: {host}\r\n\r\n".encode()).place == place


@pytest.mark.parametrize(
    "sections",
    [
        "", "req-hdr=5, null-body=9", "req-hdr=0", "req-body=0, req-hdr=5", "req-hdr=0, req-body=x", "what=0",
        "req-hdr=0, res-hdr=9, null-body=5", "req-hdr=0, null-body=99999999",
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_refused(sections: str) -> None:
    with pytest.raises(IcapError):
        parse_head(head(sections))


@pytest.mark.parametrize("line", ["GET / HTTP/1.1", "REQMOD x ICAP/2.0", "LOGOUT icap://x/y ICAP/1.0", ""])
def test_other_protocols_are_refused(line: str) -> None:
    with pytest.raises(IcapError):
        parse_head(f"{line}\r\nEncapsulated: req-hdr=0, null-body=5\r\n\r\n".encode())


def test_only_our_services_have_options() -> None:
    assert b"Methods: REQMOD\r\n" in options("request")
    with pytest.raises(IcapError):
        options("other")


BODY = b"5\r\nhello\r\n1;x=y\r\n \r\n0006\r\nworld\n\r\n0\r\n\r\n"


@pytest.mark.parametrize("step", range(1, len(BODY) + 1))
def test_a_body_in_pieces_of_every_size(step: int) -> None:
    chunks, buffer, out = Chunks(), bytearray(), b""
    for at in range(0, len(BODY), step):
        buffer += BODY[at : at + step]
        out += chunks.feed(buffer)
    assert (out, chunks.done, chunks.whole, bytes(buffer)) == (b"hello world\n", True, False, b"")


def test_what_follows_a_body_is_left() -> None:
    chunks, buffer = Chunks(), bytearray(b"0; ieof\r\n\r\nREQMOD")
    assert (chunks.feed(buffer), chunks.whole, bytes(buffer)) == (b"", True, b"REQMOD")


@pytest.mark.parametrize(
    "data",
    [b"zz\r\n", b"-1\r\n", b"\r\n", b"5\r\nhelloX\r\n", b"0\r\nTrailer: x\r\n\r\n", b"1" * 300, b"1" * 16 + b"\r\n"],
)
def test_what_is_no_chunk_is_refused(data: bytes) -> None:
    with pytest.raises(IcapError):
        Chunks().feed(bytearray(data))
