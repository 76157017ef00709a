"""The demo's web server: one HTTPS endpoint that stands for every allowed host. Standard library only.

    web.py CERTIFICATE_AND_KEY.pem SHA256_OF_THE_REAL_SECRET

It says whom it was asked as and whether the request carried the real credential, which it knows by its digest alone:
that is how the demo shows that the sandbox, which holds a decoy, still acts with the real one.
"""

from __future__ import annotations

import hashlib
import json
import ssl
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MAX_BODY = 1 << 20


class Handler(BaseHTTPRequestHandler):
    """One answer for all methods and paths."""

    protocol_version = "HTTP/1.1"
    real_secret = ""

    def credential(self) -> str:
        """`real`, `other` or `none`: what the request's Authorization header holds."""
        header = self.headers.get("Authorization", "")
        if not header:
            return "none"
        token = header.removeprefix("Bearer ").strip()
        return "real" if hashlib.sha256(token.encode()).hexdigest() == self.real_secret else "other"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing: do_GET says more in one line."""

    def do_GET(self) -> None:
        """Reads what body there is, so that the connection can be used again, and answers."""
        size = int(self.headers.get("Content-Length") or 0)
        if size > MAX_BODY:
            self.send_error(413)
            return
        self.rfile.read(size)
        facts = {
            "host": self.headers.get("Host"),
            "method": self.command,
            "path": self.path,
            "credential": self.credential(),
        }
        body = json.dumps(facts).encode() + b"\n"
        sys.stdout.write(f"{self.command} https://{facts['host']}{self.path} with credential: {facts['credential']}\n")
        sys.stdout.flush()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_POST = do_PUT = do_GET


def main(certificate: str, real_secret: str) -> None:
    """Serves for as long as the container lives."""
    Handler.real_secret = real_secret
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = ThreadingHTTPServer(("0.0.0.0", 443), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
