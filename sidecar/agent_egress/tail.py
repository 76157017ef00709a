"""What the host runs in the sidecar to read receipts while they are written: whole lines of the receipts file to
stdout, the last few or all, then on request what follows. It vouches for nothing: the chain is verified when it is
drained. It ends with the seal, or when the host closes its stdin."""

from __future__ import annotations

import argparse
import os
import select
import sys
from pathlib import Path

from agent_egress.identity import MAX_RECEIPT_BYTES, RECEIPTS_FILE

POLL_S = 0.2
BLOCK = 256 * 1024
_SEAL = b'"kind":"seal"'


def start_of_last(data_fd: int, size: int, lines: int) -> int:
    """The offset where the last so many whole lines begin."""
    if lines <= 0:
        return size
    wanted = min(size, lines * (MAX_RECEIPT_BYTES + 1))
    data = os.pread(data_fd, wanted, size - wanted)
    end = data.rfind(b"\n")
    for _ in range(lines):
        if end < 0:
            return size - wanted
        end = data.rfind(b"\n", 0, end)
    return size - wanted + end + 1


def copy(data_fd: int, offset: int) -> tuple[int, bool]:
    """Writes whole lines from an offset to stdout; the next offset, and whether the seal was among them."""
    sealed = False
    while data := os.pread(data_fd, BLOCK, offset):
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            break
        sys.stdout.buffer.write(whole)
        offset += len(whole)
        sealed = sealed or _SEAL in whole.splitlines()[-1]
    sys.stdout.buffer.flush()
    return offset, sealed


def host_is_gone(wait_s: float) -> bool:
    """Waits; true as soon as stdin is closed."""
    ready, _, _ = select.select([sys.stdin.buffer], [], [], wait_s)
    return bool(ready) and not os.read(sys.stdin.fileno(), 4096)


def main(argv: list[str] | None = None) -> None:
    """`--last N` begins N lines before the end; without it, at the first."""
    parser = argparse.ArgumentParser(prog="agent_egress.tail")
    parser.add_argument("--receipts", type=Path, default=Path(RECEIPTS_FILE))
    parser.add_argument("--last", type=int, default=None)
    parser.add_argument("--follow", action="store_true")
    options = parser.parse_args(argv)
    fd = os.open(options.receipts, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    size = os.fstat(fd).st_size
    offset = 0 if options.last is None else start_of_last(fd, size, options.last)
    offset, sealed = copy(fd, offset)
    while options.follow and not sealed and not host_is_gone(POLL_S):
        offset, sealed = copy(fd, offset)


if __name__ == "__main__":
    main()
