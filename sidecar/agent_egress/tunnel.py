#!/usr/bin/python3 -I
"""How the gateway's ssh gets a connection: started by ssh as if it were a shell (`-c "exec tunnel HOST PORT"`; there is
no shell in this image), it asks squid for a tunnel, which decides, resolves, dials and writes receipts as for
everybody, and hands the open socket to ssh (ProxyUseFdpass). No byte of the connection passes through here."""

from __future__ import annotations

import socket
import sys

GATEWAY_LOOPBACK4 = "127.0.0.2"  # as in `identity`, whose import would cost every connection some milliseconds
PROXY_PORT = 3128
TIMEOUT_S = 30.0
MAX_ANSWER = 16384
_END = b"\r\n\r\n"


def open_tunnel(host: str, port: str) -> socket.socket:
    """A socket whose next byte is the server's. Raises: OSError, with the proxy's own words for a refusal."""
    sock = socket.create_connection((GATEWAY_LOOPBACK4, PROXY_PORT), timeout=TIMEOUT_S)
    sock.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode("ascii"))
    head = b""
    while _END not in head and len(head) < MAX_ANSWER:
        # Looked at first: a server that speaks at once must not lose its first words here.
        seen = sock.recv(MAX_ANSWER, socket.MSG_PEEK)
        if not seen:
            raise OSError("the proxy closed the connection")
        end = (head + seen).find(_END)
        head += sock.recv(len(seen) if end < 0 else end + len(_END) - len(head))
    if head.split(b" ", 2)[1:2] != [b"200"]:
        body = sock.recv(MAX_ANSWER).decode("ascii", "replace").strip()
        raise OSError(body.splitlines()[0] if body else head.splitlines()[0].decode("ascii", "replace"))
    sock.settimeout(None)
    return sock


def main() -> int:
    """ssh waits for the socket on our stdout."""
    host, port = sys.argv[-1].split()[-2:]
    try:
        tunnel = open_tunnel(host, port)
        with socket.socket(fileno=1) as ssh:
            socket.send_fds(ssh, [b"\0"], [tunnel.fileno()])
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
