"""A stream cut into lines the fast way, however it arrives: each line whole, and of a longer one its head."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_container.frames import whole_lines

CAP = 12
PIECES = st.lists(st.text("ab\n", max_size=40).map(str.encode), max_size=12)


@given(PIECES)
@settings(max_examples=200)
def test_lines_are_the_same_however_the_stream_is_cut(chunks: list[bytes]) -> None:
    fast = list(whole_lines(chunks, max_bytes=CAP))
    whole = b"".join(chunks).split(b"\n")
    expected = [line + b"\n" if len(line) <= CAP else line[:CAP] for line in whole[:-1]]
    assert fast == expected + ([whole[-1][:CAP]] if whole[-1] else [])
