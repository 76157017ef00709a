"""The rest of the internet, in one container of a test network: every address is its own, so whatever leaves the
sidecar arrives here and is written down.

It answers DNS, HTTP, HTTPS (certificates of its own CA), WebSocket upgrades, a line echo on other TCP ports and an echo
on UDP. Every frame that arrives is noted by a packet socket, so that a leak is seen even where nothing listens.
`world.py ask '{...}'` talks to the running one and prints its JSON answer. Standard library and the openssl command.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import ipaddress
import json
import os
import socket
import socketserver
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
models = importlib.import_module("models") if Path(__file__).with_name("models.py").exists() else None

CONTROL = "/tmp/world.sock"
TLS_DIR = Path("/tmp/tls")
HTTP_PORTS = (80, 3000, 8080)
TLS_PORTS = (443, 8443)
ECHO_PORTS = (22, 25, 5432, 9000)
UDP_PORTS = (443, 5353, 9000)
A, CNAME, TXT, AAAA = 1, 5, 16, 28

lock = threading.Lock()
zone: dict[str, dict[str, list[str]]] = {}
flips: Counter[str] = Counter()
deaf = threading.Event()
queries: list[dict[str, object]] = []
requests: list[dict[str, object]] = []
packets: Counter[tuple[str, str, int]] = Counter()


# --- every address is ours (rtnetlink(7)) ---


def netlink(kind: int, body: bytes) -> None:
    message = struct.pack("=IHHII", 16 + len(body), kind, 0x605, 1, 0) + body  # request, ack, create, exclusive
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.send(message)
        error = struct.unpack("=i", sock.recv(4096)[16:20])[0]
    if error not in (0, -17):
        raise OSError(-error, os.strerror(-error))


def own_everything(gateways: list[str]) -> None:
    """The default gateways' addresses on the wire, and behind them `ip route add local default dev lo`."""
    for gateway in gateways:
        address = ipaddress.ip_address(gateway)
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        header = struct.pack("=BBBBI", family, address.max_prefixlen, 2, 0, socket.if_nametoindex("eth0"))  # no DAD
        values = b"".join(struct.pack("=HH", 4 + len(address.packed), kind) + address.packed for kind in (1, 2))
        netlink(20, header + values)  # RTM_NEWADDR
    lo = struct.pack("=HHI", 8, 4, socket.if_nametoindex("lo"))
    netlink(24, struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, 255, 3, 254, 2, 0) + lo)  # RTM_NEWROUTE, table local
    # IPv6 looks through its whole local table first: there, a default would also swallow the way back to the sidecar.
    for half in ("::", "8000::"):
        destination = struct.pack("=HH", 20, 1) + ipaddress.ip_address(half).packed
        netlink(24, struct.pack("=BBBBBBBBI", socket.AF_INET6, 1, 0, 0, 254, 3, 254, 2, 0) + destination + lo)


# --- what arrived ---


def sniff() -> None:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
    while True:
        data, (device, protocol, kind, *_) = sock.recvfrom(256)
        if kind == 4 or device == "lo":  # our own
            continue
        if protocol == 0x0800 and len(data) >= 20:
            number, destination = data[9], socket.inet_ntop(socket.AF_INET, data[16:20])
            rest = data[(data[0] & 15) * 4 :]
        elif protocol == 0x86DD and len(data) >= 40:
            number, destination, rest = data[6], socket.inet_ntop(socket.AF_INET6, data[24:40]), data[40:]
        else:
            continue
        name = {6: "tcp", 17: "udp", 1: "icmp", 58: "icmp6"}.get(number, str(number))
        port = int.from_bytes(rest[2:4], "big") if name in ("tcp", "udp") and len(rest) >= 4 else 0
        if name == "icmp6" and rest[:1] and 130 <= rest[0] <= 143:
            continue  # neighbour discovery, multicast reports: the kernel's own
        with lock:
            packets[(destination, name, port)] += 1


# --- DNS ---


def dns_answer(query: bytes, *, over: str) -> bytes:
    """The answer to one query; a name whose zone has `flip` answers with one address after the other."""
    ident, _, count = struct.unpack("!3H", query[:6])
    position, labels = 12, []
    while query[position]:
        size = query[position]
        labels.append(query[position + 1 : position + 1 + size].decode("latin-1"))
        position += 1 + size
    kind = struct.unpack("!H", query[position + 1 : position + 3])[0]
    question = query[12 : position + 5]
    name = ".".join(labels)
    with lock:
        queries.append({"name": name, "type": kind, "over": over})
        entry = zone.get(name.lower()) or zone.get("*." + name.lower().partition(".")[2])
        values = list((entry or {}).get({A: "A", AAAA: "AAAA", TXT: "TXT"}.get(kind, "?"), []))
        if entry and entry.get("flip") and kind == A:
            flips[name] += 1
            values = [entry["flip"][flips[name] % len(entry["flip"])]]
    records = []
    if entry and "CNAME" in entry:
        target = b"".join(bytes([len(part)]) + part.encode() for part in entry["CNAME"][0].split(".")) + b"\0"
        records.append(b"\xc0\x0c" + struct.pack("!HHIH", CNAME, 1, 1, len(target)) + target)
        with lock:
            values = list(zone.get(entry["CNAME"][0], {}).get("A" if kind == A else "AAAA", []))
        owner = target
    else:
        owner = b"\xc0\x0c"
    for value in values:
        data = bytes([len(value)]) + value.encode() if kind == TXT else ipaddress.ip_address(value).packed
        seconds = 0 if entry and entry.get("flip") else 1
        records.append(owner + struct.pack("!HHIH", kind, 1, seconds, len(data)) + data)
    code = 0 if entry or not name else 3
    header = struct.pack("!6H", ident, 0x8580 | code, count, len(records), 0, 0)
    return header + question + b"".join(records)


class DnsTcp(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.settimeout(10)
        size = struct.unpack("!H", self.request.recv(2))[0]
        answer = dns_answer(self.request.recv(size), over="tcp")
        self.request.sendall(struct.pack("!H", len(answer)) + answer)


# --- HTTP ---


class Web(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes; a delayed acknowledgement would be all one measures
    tls_name = ""

    def log_message(self, *_: object) -> None:
        pass

    def note(self, body: int) -> dict[str, object]:
        entry = {
            "address": self.connection.getsockname()[0].removeprefix("::ffff:"),
            "port": self.connection.getsockname()[1],
            "tls": isinstance(self.connection, ssl.SSLSocket),
            "sni": getattr(self.connection, "asked_name", ""),
            "method": self.command,
            "path": self.path,
            "host": self.headers.get("Host", ""),
            "headers": [[key, value] for key, value in self.headers.items()],
            "body": body,
        }
        with lock:
            requests.append(entry)
        return entry

    def body(self) -> int:
        total = 0
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline().split(b";")[0], 16):
                total += len(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return total
        left = int(self.headers.get("Content-Length") or 0)
        while left:
            chunk = self.rfile.read(min(left, 1 << 20))
            if not chunk:
                break
            total, left = total + len(chunk), left - len(chunk)
        return total

    def answer(self) -> None:
        if models is not None and self.headers.get("Host", "").partition(":")[0] in models.HOSTS:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.note(len(data))
            host, headers = self.headers["Host"], dict(self.headers.items())
            models.answer(self, host, self.command, self.path, headers, data)
            return
        entry = self.note(self.body())
        if self.path.partition("?")[0].endswith(".git/info/refs"):
            self.advertise()
        elif self.headers.get("Upgrade", "").lower() == "websocket":
            self.websocket()
        elif self.path.startswith("/sse"):
            self.events()
        elif self.path.startswith("/silent/"):
            self.silent(float(self.path.rpartition("/")[2]))
        elif self.path.startswith("/hold"):
            self.hold()
        elif self.path.startswith("/to/"):
            self.redirect(f"https://{self.path.removeprefix('/to/')}/bulk/0")
        elif self.path.startswith("/bulk/"):
            self.bulk(int(self.path.rpartition("/")[2]))
        else:
            # An answer that shows the real credential is cut on its way; what arrived is told backwards, so that the
            # attempts can see it. `/plain` at the end of a path tells it as it came.
            turned = 1 if self.path.endswith("/plain") else -1
            headers = [[name, value[::turned]] for name, value in self.headers.items()]
            self.send(json.dumps({**entry, "headers": headers, "world": True}).encode())

    def advertise(self) -> None:
        """What a git server says first, over https to who has named himself (gitprotocol-http(5))."""
        if "Authorization" not in self.headers:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="world"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        line = b"%s refs/heads/main\0agent=world\n" % (b"a" * 40)
        data = b"001e# service=git-upload-pack\n0000%04x%s0000" % (len(line) + 4, line)
        self.send_response(200)
        self.send_header("Content-Type", "application/x-git-upload-pack-advertisement")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def redirect(self, target: str) -> None:
        """To another host, with method and body as they were."""
        self.send_response(307)
        self.send_header("Location", target)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def events(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(3):
            text = f"data: {number}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
            self.wfile.flush()
            time.sleep(0.5)  # told apart on a busy machine too
        self.wfile.write(b"0\r\n\r\n")

    def silent(self, pause_s: float) -> None:
        """An event, a long silence, another event."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for text in (b"data: before\n\n", b"data: after\n\n"):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
            self.wfile.flush()
            time.sleep(pause_s if b"before" in text else 0)
        self.wfile.write(b"0\r\n\r\n")

    def bulk(self, size: int) -> None:
        """So many bytes, as fast as they go."""
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        block = bytes(1 << 20)
        for _ in range(size >> 20):
            self.wfile.write(block)

    def hold(self) -> None:
        """A tunnel that talks for as long as it is let."""
        self.send_response(200)
        self.send_header("Content-Length", str(1 << 30))
        self.end_headers()
        for _ in range(600):
            self.wfile.write(b".")
            self.wfile.flush()
            time.sleep(0.1)

    def websocket(self) -> None:
        key = self.headers.get("Sec-WebSocket-Key", "") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.wfile.write(b"\x81\x05hello")
        self.wfile.flush()
        self.close_connection = True

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = do_TRACE = do_PATCH = answer


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        note = {"address": self.request.getsockname()[0].removeprefix("::ffff:"), "port": self.request.getsockname()[1]}
        with lock:
            requests.append({**note, "method": "TCP", "path": "", "host": "", "headers": [], "tls": False})
        self.request.sendall(b"SSH-2.0-world\r\n")
        while data := self.request.recv(4096):
            self.request.sendall(data)


class Server(socketserver.ThreadingTCPServer):
    address_family = socket.AF_INET6  # dual stack
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        pass


class TlsServer(Server):
    context: ssl.SSLContext

    def finish_request(self, request: socket.socket, client_address: object) -> None:
        # Nothing is held here: a client that is cut in mid-handshake may take all of this time.
        request.settimeout(60)
        wrapped = self.context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        try:
            wrapped.do_handshake()
            super().finish_request(wrapped, client_address)  # type: ignore[arg-type]
        finally:
            wrapped.close()


def remember_name(sock: ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
    """Notes the name that a client asked for, for what its requests say of it."""
    sock.asked_name = name or ""  # type: ignore[attr-defined]


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=TLS_DIR)


def make_certificates(names: list[str]) -> None:
    TLS_DIR.mkdir(exist_ok=True)
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-days", "3", "-subj", "/CN=world test CA",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
    alternative = ",".join(f"DNS:{name}" for name in names)
    openssl("req", "-x509", *curve, "-keyout", "site.key", "-out", "site.pem", "-days", "3", "-subj", "/CN=world",
            "-CA", "ca.pem", "-CAkey", "ca.key", "-addext", f"subjectAltName={alternative}",
            "-addext", "basicConstraints=critical,CA:FALSE")  # fmt: skip


def serve_udp(port: int) -> None:
    """DNS on 53, an echo elsewhere; answers come from the address that was asked."""
    sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IPV6, 49, 1)  # IPV6_RECVPKTINFO
    sock.setsockopt(socket.IPPROTO_IPV6, 78, 1)  # IPV6_FREEBIND: that address is nowhere configured
    sock.bind(("::", port))
    while True:
        data, ancillary, _, peer = sock.recvmsg(4096, 1024)
        if port == 53 and deaf.is_set():
            continue
        try:
            answer = dns_answer(data, over="udp") if port == 53 else data
            pause = slowness(answer) if port == 53 else 0
            if pause:
                threading.Timer(pause, sock.sendmsg, ([answer], ancillary, 0, peer)).start()
            else:
                sock.sendmsg([answer], ancillary, 0, peer)
        except (OSError, ValueError, IndexError, struct.error):
            continue


def slowness(answer: bytes) -> float:
    """Seconds that the resolver takes for a name whose zone has `slow`."""
    labels, position = [], 12
    while answer[position]:
        labels.append(answer[position + 1 : position + 1 + answer[position]].decode("latin-1"))
        position += 1 + answer[position]
    return float((zone.get(".".join(labels).lower()) or {}).get("slow", ["0"])[0])


# --- control ---


def operate(message: dict[str, object]) -> object:
    op = message["op"]
    with lock:
        if op == "zone":
            zone.update(message["zone"])  # type: ignore[arg-type]
        elif op == "deaf":
            (deaf.set if message["deaf"] else deaf.clear)()
        elif op == "clear":
            queries.clear()
            requests.clear()
            packets.clear()
        elif op == "log":
            return {
                "queries": list(queries),
                "requests": list(requests),
                "packets": [[*key, count] for key, count in sorted(packets.items())],
            }
        elif op == "ca":
            return (TLS_DIR / "ca.pem").read_text()
    return True


class Control(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.wfile.write(json.dumps(operate(json.loads(self.rfile.readline()))).encode())


def serve(settings: dict[str, object]) -> None:
    own_everything(settings["gateways"])  # type: ignore[arg-type]
    zone.update(settings["zone"])  # type: ignore[arg-type]
    make_certificates(settings["names"])  # type: ignore[arg-type]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS_DIR / "site.pem", TLS_DIR / "site.key")
    context.sni_callback = remember_name  # type: ignore[assignment]
    TlsServer.context = context
    servers: list[socketserver.BaseServer] = [Server(("::", port), Web) for port in HTTP_PORTS]
    servers += [TlsServer(("::", port), Web) for port in TLS_PORTS]
    servers += [Server(("::", port), Echo) for port in ECHO_PORTS]
    servers.append(Server(("::", 53), DnsTcp))
    targets = [server.serve_forever for server in servers] + [sniff]
    for target in targets:
        threading.Thread(target=target, daemon=True).start()
    for port in (53, *UDP_PORTS):
        threading.Thread(target=serve_udp, args=(port,), daemon=True).start()
    socketserver.ThreadingUnixStreamServer(CONTROL, Control).serve_forever()


def ask(line: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(CONTROL)
        sock.sendall(line.encode() + b"\n")
        sock.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := sock.recv(1 << 20):
            received += chunk
    return received.decode()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(json.loads(sys.argv[2]))
    else:
        print(ask(sys.argv[2]))
