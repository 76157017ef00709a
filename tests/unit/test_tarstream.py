from __future__ import annotations

import contextlib
import io
import tarfile
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_container.tarstream import BLOCK, Member, TarDamaged, TarReader
from tests.support.records import file_tar, pieces, tar_of

CAP = 1 << 30


def read(data: bytes, *, size: int = 1000, cap: int = CAP) -> list[tuple[bytes, str, bytes]]:
    reader = TarReader(pieces(data, size), max_bytes=cap)
    return [(member.name, member.kind, b"".join(reader.body())) for member in reader.members()]


@pytest.mark.parametrize("size", [1, 7, 511, 512, 513, 1 << 20])
def test_a_stream_may_be_cut_anywhere(size: int) -> None:
    data = tar_of(("d", None, tarfile.DIRTYPE), ("d/a", b"x" * 700, tarfile.REGTYPE), ("d/empty", b"", tarfile.REGTYPE))
    assert read(data, size=size) == [(b"d", "directory", b""), (b"d/a", "file", b"x" * 700), (b"d/empty", "file", b"")]


@pytest.mark.parametrize("format_", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
def test_long_and_strange_names_survive(format_: int) -> None:
    names = ["d/" * 60 + "x" * 200, "a\nb.jsonl", "é\u2028", "..%2f..%2fx"]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w|", format=format_) as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 3
            archive.addfile(info, io.BytesIO(b"abc"))
    assert [(name.decode(), body) for name, _, body in read(buffer.getvalue())] == [(name, b"abc") for name in names]


KINDS = [
    (tarfile.SYMTYPE, "symlink"),
    (tarfile.LNKTYPE, "link"),
    (tarfile.CHRTYPE, "device"),
    (tarfile.BLKTYPE, "device"),
    (tarfile.FIFOTYPE, "fifo"),
    (tarfile.DIRTYPE, "directory"),
]


@pytest.mark.parametrize(("flag", "kind"), KINDS, ids=str)
def test_special_members_are_named_and_have_no_body(flag: bytes, kind: str) -> None:
    data = tar_of(("x", None, flag), ("after", b"still here", tarfile.REGTYPE))
    assert read(data) == [(b"x", kind, b""), (b"after", "file", b"still here")]


def header(name: bytes = b"x", *, size: bytes = b"00000000000\0", flag: bytes = b"0") -> bytes:
    block = bytearray(BLOCK)
    block[:100] = name.ljust(100, b"\0")[:100]
    block[124:136] = size
    block[156:157] = flag
    block[257:265] = b"ustar\x0000"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def octal(number: int) -> bytes:
    return b"%011o\0" % number


def pax(*records: bytes) -> bytes:
    body = b"".join(records)
    return header(size=octal(len(body)), flag=b"x") + body.ljust(-(-len(body) // BLOCK) * BLOCK, b"\0")


DAMAGED = {
    "no tar at all": b"x" * 2000,
    "an end in the middle of a header": header()[:300],
    "an end in the middle of a body": header(size=octal(5000)) + b"x" * 600,
    "a checksum that does not fit": header()[:200] + b"!" + header()[201:],
    "a size that is not octal": header(size=b"9999999999a\0"),
    "a negative size": header(size=b"\xff" * 12),
    "a size beyond all bounds": header(size=b"\x80" + b"\x7f" * 11),
    "an extended header of a terabyte": header(size=octal(8_000_000_000), flag=b"x"),
    "a long name of a terabyte": header(size=octal(8_000_000_000), flag=b"L"),
    "extended headers without end": pax(b"9 a=bcde\n"[:9]) * 1000,
    "a pax record without a length": pax(b"path=x\n") + header(),
    "a pax record longer than the header": pax(b"99 path=x\n") + header(),
    "a pax size that is no number": pax(b"11 size=-1\n") + header(),
    "a pax record of length zero": pax(b"0 path=x\n") + header(),
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED.keys())
def test_damage_is_told(data: bytes) -> None:
    with pytest.raises(TarDamaged):
        read(data)


def test_what_came_before_the_damage_stands() -> None:
    reader = TarReader(pieces(file_tar("a", b"good")[: 2 * BLOCK] + b"x" * BLOCK), max_bytes=CAP)
    members = reader.members()
    assert next(members) == Member(b"a", "file", 4)
    assert b"".join(reader.body()) == b"good"
    with pytest.raises(TarDamaged):
        next(members)


def test_a_sparse_member_is_named_never_expanded() -> None:
    body = b"1\n0\n512\n".ljust(BLOCK, b"\0")
    data = pax(b"22 GNU.sparse.major=1\n")
    data += header(size=octal(BLOCK)) + body + file_tar("after", b"x")
    assert [(name, kind) for name, kind, _ in read(data)] == [(b"x", "sparse"), (b"after", "file")]
    assert [kind for _, kind, _ in read(header(flag=b"S") + bytes(2 * BLOCK))] == ["sparse"]


def test_the_cap_counts_skipped_bodies_too() -> None:
    with pytest.raises(TarDamaged, match="more bytes than the cap"):
        for _ in TarReader(pieces(file_tar("a", b"x" * 100_000)), max_bytes=50_000).members():
            pass


def test_a_body_that_is_not_read_is_skipped() -> None:
    data = tar_of(("a", b"x" * 5000, tarfile.REGTYPE), ("b", b"y", tarfile.REGTYPE))
    assert [member.name for member in TarReader(pieces(data), max_bytes=CAP).members()] == [b"a", b"b"]


def test_memory_does_not_grow_with_the_member() -> None:
    def endless() -> Iterator[bytes]:
        yield header(size=octal(300_000_000))
        for _ in range(300):
            yield bytes(1_000_000)
        yield bytes(2 * BLOCK)

    reader = TarReader(endless(), max_bytes=CAP)
    tracemalloc.start()
    total = sum(len(piece) for _ in reader.members() for piece in reader.body())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 300_000_000
    assert peak < 8_000_000


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=4000), st.integers(1, 700))
def test_any_bytes_end_or_are_damaged(data: bytes, size: int) -> None:
    with contextlib.suppress(TarDamaged):
        read(data, size=size)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_flipped_byte_never_raises_anything_else(data: st.DataObject) -> None:
    body = bytearray(tar_of(("d/" * 50 + "é", b"abc", tarfile.REGTYPE), ("b", b"x" * 600, tarfile.REGTYPE)))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(TarDamaged):
        read(bytes(body))
