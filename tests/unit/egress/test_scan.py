"""What the scanner finds and what it does not, in every coding, wherever the stream is cut."""

from __future__ import annotations

import asyncio
import base64
import gzip
import os
import zlib
from types import SimpleNamespace
from typing import cast
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_egress.daemons import Fleet
from agent_egress.fingerprints import (
    MIN_SECRET,
    Fingerprint,
    FingerprintRefused,
    fingerprint,
    new_key,
    parse_rows,
)
from agent_egress.scan import LOOKBACK, Finding, Patterns, Scanner
from agent_egress.scanning import MAX_FORMER, Scanning
from agent_egress.sieve import FREE_BYTES, STEP, Sieve

KEY = new_key()
SECRET = b"real/secret+of=api:0123456789"
W40, W93 = "aB3_" * 10, ("aB3-" * 24)[:93]
PEM = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIB"


def own(secret: bytes = SECRET, *, role: str = "own") -> Fingerprint:
    made = fingerprint(secret, name="api", role=role, key=KEY)
    assert made is not None
    return made


ALL = Patterns([own()])


def found(data: bytes, *, patterns: Patterns = ALL, cuts: tuple[int, ...] = ()) -> list[Finding]:
    scanner = Scanner(patterns)
    places = [0, *cuts, len(data)]
    pieces = [data[a:b] for a, b in zip(places, places[1:], strict=False)]
    return [f for i, piece in enumerate(pieces) for f in scanner.feed(piece, last=i == len(pieces) - 1)]


KEYS = {
    "an AWS key": ("AKIAIOSFODNN7EXAMPLE", "aws-access-key"),
    "a temporary AWS key": ("ASIAIOSFODNN7EXAMPLE", "aws-access-key"),
    "a GitHub token": ("ghp_" + "aB3d" * 9, "github-token"),
    "a GitHub server token": ("ghs_" + "aB3d" * 9, "github-token"),
    "a fine-grained GitHub token": ("github_pat_" + "A1" * 11 + "_" + "b" * 59, "github-token"),
    "a GitLab token": ("glpat-" + "aB3d_" * 4, "gitlab-token"),
    "an Anthropic key": (f"sk-ant-api03-{W93}AA", "anthropic-key"),
    "an Anthropic sign-in token": (f"sk-ant-oat01-{W93}AA", "anthropic-key"),
    "an OpenAI project key": (f"sk-proj-{W93}", "openai-key"),
    "an older OpenAI key": ("sk-" + "aB3d" * 5 + "T3BlbkFJ" + "aB3d" * 5, "openai-key"),
    "a Google key": ("AIza" + ("aB3-" * 9)[:35], "google-key"),
    "a Google client secret": ("GOCSPX-" + "aB3d" * 7, "google-oauth-secret"),
    "a Slack token": ("xoxb-123456789012-123456789012-" + "aB3d" * 6, "slack-token"),
    "a Slack app token": ("xapp-1-A0123456789-0123456789012-" + "ab12" * 16, "slack-token"),
    "an npm token": ("npm_" + "aB3d" * 9, "npm-token"),
    "a PyPI token": ("pypi-AgEIcHlwaS5vcmc" + W93, "pypi-token"),
    "a Stripe key": ("sk_live_" + "aB3d" * 6, "stripe-key"),
    "a Hugging Face token": ("hf_" + "aBcD" * 8 + "ef", "huggingface-token"),
    "a private key": (f"-----BEGIN PRIVATE KEY-----\n{PEM}\n", "private-key"),
    "an RSA key in JSON": (f"-----BEGIN RSA PRIVATE KEY-----\\n{PEM}\\n", "private-key"),
    "an OpenSSH key": (f"-----BEGIN OPENSSH PRIVATE KEY-----\r\n{PEM}\r\n", "private-key"),
    "a PGP key": ("-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n" + PEM, "private-key"),
}
NEAR_MISSES = {
    "an AWS key that is too short": "AKIAIOSFODNN7EXAMPL",
    "an AWS key that goes on": "AKIAIOSFODNN7EXAMPLEX",
    "an AWS key within a word": "XAKIAIOSFODNN7EXAMPLE",
    "an AWS key in small letters": "akiaiosfodnn7example",
    "a digit that AWS never uses": "AKIAIOSFODNN1EXAMPLE",
    "a GitHub token that is too short": "ghp_" + "aB3d" * 8,
    "a GitHub prefix in a name": "ghp_token_from_environment_variable_name",
    "a word with sk": "task-proj-management-of-the-whole-department-in-one-place-" + "x" * 20,
    "an Anthropic placeholder": "sk-ant-api03-...",
    "a test key of Stripe": "sk_test_" + "aB3d" * 6,
    "a Google key that goes on": "AIza" + "aB3-" * 9,
    "the mention of a private key": "-----BEGIN PRIVATE KEY-----",
    "program text about private keys": 'if line == "-----BEGIN RSA PRIVATE KEY-----": parse(line)',
    "a public key": f"-----BEGIN PUBLIC KEY-----\n{PEM}\n",
    "a certificate": f"-----BEGIN CERTIFICATE-----\n{PEM}\n",
    "a digest": "sha256:" + "ab12cd34" * 8,
}
CODINGS = {
    "plain": lambda text: text,
    "base64": base64.b64encode,
    "base64, one later": lambda text: base64.b64encode(b" " + text + b" "),
    "base64, two later": lambda text: base64.b64encode(b"x " + text),
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(b"???" + text + b" "),
    "base64 after other groups": lambda text: b"xyz+" + base64.b64encode(text),
    "hex": lambda text: text.hex().encode(),
    "hex in capitals": lambda text: text.hex().upper().encode(),
    "percent-escaped": lambda text: quote(text, safe="").encode(),
    "every letter percent-escaped": lambda text: b"".join(b"%%%02X" % code for code in text),
    "in JSON with its slashes escaped": lambda text: text.replace(b"/", b"\\/"),
}


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("coding", CODINGS)
def test_a_key_is_found(name: str, coding: str) -> None:
    text, kind = KEYS[name]
    coded = CODINGS[coding](text.encode())
    assert [f.what for f in found(b'{"k": "' + coded + b'"}')] == [kind]
    assert [f.what for f in found(coded)] == [kind]


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_only_looks_like_a_key_is_not(name: str) -> None:
    data = NEAR_MISSES[name].encode()
    assert found(b'"' + data + b'"') == []
    for cut in range(len(data)):
        assert found(data, cuts=(cut,)) == [], cut


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("text", [SECRET, b"AKIAIOSFODNN7EXAMPLE"], ids=["a secret", "a key"])
def test_it_is_found_wherever_the_stream_is_cut_and_once(coding: str, text: bytes) -> None:
    data = b'{"a": "' + CODINGS[coding](text) + b'", "b": 1}'
    for cut in range(len(data) + 1):
        assert len(found(data, cuts=(cut,))) == 1, cut
    assert len(found(data, cuts=tuple(range(1, len(data))))) == 1  # byte by byte


def passed(data: bytes, cut: int, *, patterns: Patterns) -> bytes:
    """What a sieve lets go before the finding, cut in one place."""
    sieve, out = Sieve(patterns, ""), b""
    for piece in (data[:cut], data[cut:]):
        if any(sieve.take(piece)):
            return out
        out += sieve.give()
    return out if sieve.end() else out + sieve.give()


@pytest.mark.parametrize("coding", CODINGS)
def test_nothing_of_a_secret_goes_before_it_is_found(coding: str) -> None:
    coded = CODINGS[coding](SECRET)
    data = b'data: "' + coded + b'"\n\n'
    for cut in range(len(data) + 1):
        out = passed(data, cut, patterns=Patterns([own()], kinds=()))
        assert len(out) <= data.index(coded), (cut, out)


def test_nothing_of_a_private_key_goes_before_it_is_found() -> None:
    data = b"key: " + KEYS["an RSA key in JSON"][0].encode()
    for cut in range(len(data) + 1):
        assert b"RSA" not in passed(data, cut, patterns=ALL), cut


@pytest.mark.parametrize(
    ("data", "held"),
    [
        (b"data: {}\n\n", 0),
        (b'{"delta": "word"}\n', 0),
        (b"hello world", 5),
        (b"hello re", 2),
        (b"hello real/sec\n", 0),
        (b"x " + SECRET[:-1], len(SECRET) - 1),
        (b"x" * 5000, LOOKBACK),
    ],
)
def test_only_what_may_go_on_is_held(data: bytes, held: int) -> None:
    scanner = Scanner(Patterns([own()], kinds=()))
    scanner.feed(data)
    assert scanner.held == held
    scanner.feed(b"", last=True)
    assert scanner.held == 0


def test_what_was_found_far_apart_is_told_apart() -> None:
    one, other = KEYS["an AWS key"][0].encode(), KEYS["a temporary AWS key"][0].encode()
    assert len(found(one + b" " * 9000 + other + b" " * 9000 + one)) == 2


def test_a_secret_is_not_also_a_key_of_its_kind() -> None:
    text = KEYS["an Anthropic key"][0].encode()
    assert [(f.what, f.role) for f in found(text, patterns=Patterns([own(text, role="stored")]))] == [("api", "stored")]


@settings(max_examples=60, deadline=None)
@given(before=st.binary(max_size=2000), after=st.binary(max_size=200), cuts=st.lists(st.integers(0, 2200), max_size=4))
def test_a_secret_is_found_in_whatever_stands_around_it(before: bytes, after: bytes, cuts: list[int]) -> None:
    data = before + SECRET + after
    places = tuple(sorted(cut for cut in cuts if cut < len(data)))
    assert [f.role for f in found(data, patterns=Patterns([own()], kinds=()), cuts=places)] == ["own"]


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=4000), cuts=st.lists(st.integers(0, 4000), max_size=6), packed=st.booleans())
def test_what_holds_nothing_passes_whole_and_as_it_was(data: bytes, cuts: list[int], packed: bool) -> None:
    coding = "gzip" if packed else ""
    raw = gzip.compress(data) if coding else data
    sieve, out = Sieve(ALL, coding), b""
    places = [0, *sorted(cut for cut in cuts if cut < len(raw)), len(raw)]
    for a, b in zip(places, places[1:], strict=False):
        assert not any(sieve.take(raw[a:b]))
        out += sieve.give()
    assert sieve.end() == []
    assert (out + sieve.give(), sieve.waiting, sieve.problem) == (raw, 0, "")


# --- fingerprints ---


def test_a_fingerprint_does_not_hold_the_secret() -> None:
    row = own().row()
    text = repr(row) + repr(own())
    assert SECRET.decode() not in text
    assert SECRET[3:].hex() not in text
    assert parse_rows([row]) == (own(),)
    assert row["digest"] != fingerprint(SECRET, name="api", role="own", key=new_key()).row()["digest"]  # type: ignore[union-attr]


def test_a_secret_that_is_too_short_is_not_looked_for() -> None:
    assert fingerprint(b"x" * (MIN_SECRET - 1), name="a", role="own", key=KEY) is None


@pytest.mark.parametrize(
    "change",
    [{"anchor": "61"}, {"length": 3}, {"length": 9999}, {"digest": "00"}, {"key": ""}, {"role": "x"}, {"hosts": "x"}],
)
def test_rows_that_are_no_fingerprints_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(FingerprintRefused):
        parse_rows([{**own().row(), **change}])
    for bad in (None, [None], [{}], {}):
        with pytest.raises(FingerprintRefused):
            parse_rows(bad)


# --- codings ---


RAW_DEFLATE = zlib.compressobj(wbits=-15)
CODED = {
    "gzip": ("gzip", gzip.compress(SECRET)),
    "x-gzip": ("x-gzip", gzip.compress(SECRET)),
    "two members": ("gzip", gzip.compress(b"first ") + gzip.compress(SECRET)),
    "deflate": ("deflate", zlib.compress(SECRET)),
    "deflate without its header": ("Deflate", RAW_DEFLATE.compress(SECRET) + RAW_DEFLATE.flush()),
    "identity": ("identity", SECRET),
}


@pytest.mark.parametrize("name", CODED)
def test_a_coding_is_undone(name: str) -> None:
    coding, raw = CODED[name]
    for cut in range(len(raw) + 1):
        sieve = Sieve(ALL, coding)
        taken = [f for piece in (raw[:cut], raw[cut:]) for step in sieve.take(piece) for f in step]
        assert [f.what for f in [*taken, *sieve.end()]] == ["api"], cut


@pytest.mark.parametrize(
    ("coding", "raw"),
    [("br", b""), ("zstd", b""), ("gzip, gzip", b""), ("gzip", b"no gzip"), ("deflate", b"\xff\xff\xff")],
)
def test_what_cannot_be_undone_is_said(coding: str, raw: bytes) -> None:
    sieve = Sieve(ALL, coding)
    assert not any(sieve.take(raw))
    assert sieve.problem


def test_a_body_that_decodes_into_far_more_is_given_up() -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    raw = b"".join(packer.compress(bytes(1 << 20)) for _ in range(FREE_BYTES // (1 << 20) + 40)) + packer.flush()
    sieve = Sieve(Patterns([own()], kinds=()), "gzip")
    assert not any(sieve.take(raw))
    assert "far more" in sieve.problem


@pytest.mark.parametrize("over", range(1, 12))
def test_what_a_full_step_leaves_inside_the_inflater_is_scanned_too(over: int) -> None:
    """Without a trailer behind it, the coder's last match can be taken in whole and given out in part."""
    begin, rest = SECRET[:12], SECRET[12:]
    filler = (b"abcdefgh ijklmnop\n" * (STEP // 18))[: STEP - len(SECRET) - len(rest) - 1 + over]
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    raw = packer.compress(rest + b" " + filler + begin + rest) + packer.flush()
    sieve = Sieve(ALL, "deflate")
    taken = [finding for step in sieve.take(raw) for finding in step]
    assert [finding.what for finding in [*taken, *sieve.end()]] == ["api"]


def test_of_the_first_bytes_none_goes_before_all_are_there() -> None:
    sieve = Sieve(ALL, "", hold=100)
    assert not any(sieve.take(b"a line\n" * 10))
    assert sieve.give() == b""
    assert not any(sieve.take(b"a line\n" * 10))
    assert sieve.give() == b"a line\n" * 20


def test_large_bodies_wait_for_nothing() -> None:
    sieve, block = Sieve(ALL, ""), os.urandom(1 << 16)
    for _ in range(50):
        assert not any(sieve.take(block))
        sieve.give()
        assert sieve.waiting <= LOOKBACK


def test_a_secret_that_was_rotated_away_is_looked_for_as_long_as_the_session_lives() -> None:
    scanning = Scanning(cast("Fleet", SimpleNamespace(children={})))

    def put(*secrets: str) -> list[Fingerprint]:
        rows = [
            {"name": f"n{index}", "decoy": f"decoy-of-it-{index}", "secret": one} for index, one in enumerate(secrets)
        ]
        asyncio.run(scanning.learn(rows))
        return list(parse_rows(scanning.rows()))

    def found(rows: list[Fingerprint], secret: str) -> int:
        return sum(row.role == "own" and row.matches(secret.encode()) for row in rows)

    put("first-secret-0")
    rows = put("second-secret-0")
    assert [found(rows, one) for one in ("first-secret-0", "second-secret-0", "third-secret-00")] == [1, 1, 0]
    rows = put("second-secret-0", "other-secret-00")
    assert [found(rows, one) for one in ("first-secret-0", "second-secret-0", "other-secret-00")] == [1, 1, 1]
    rows = put()
    assert [found(rows, one) for one in ("first-secret-0", "second-secret-0", "other-secret-00")] == [1, 1, 1]
    for turn in range(MAX_FORMER + 8):
        rows = put(f"secret-number-{turn:04}")
    assert len(rows) == MAX_FORMER + 2
    assert [found(rows, one) for one in ("first-secret-0", "secret-number-0070")] == [0, 1]
