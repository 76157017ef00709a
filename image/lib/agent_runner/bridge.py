"""`runner connect`: carries the host's end of an exec channel to the socket, bytes as they are.

The host reaches the runner through the engine's exec channel alone, so no port and no shared socket is needed.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .config import Paths


def dial(paths: Paths, wait_s: float = 5.0) -> socket.socket:
    """A connection; waits for a runner that has only just started. Raises: OSError."""
    deadline = time.monotonic() + wait_s
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(paths.socket)
            return connection
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def connect(paths: Paths) -> int:
    """Copy stdin to the runner and its answers to stdout, until the runner closes."""
    connection = dial(paths)
    sources = [0, connection.fileno()]
    while True:
        for fd in select.select(sources, [], [])[0]:
            data = os.read(fd, 65536)
            if fd == 0:
                if data:
                    connection.sendall(data)
                else:
                    sources.remove(0)
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_WR)
            elif data:
                view = memoryview(data)
                while view:
                    view = view[os.write(1, view) :]
            else:
                return 0
