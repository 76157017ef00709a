"""Attempts on what the agent shares with the sidecar, and on what its own processes may do: the daemons' ports and
sockets, the packet rules, capabilities, other users, files, placeholders."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from agent_egress import identity
from agent_egress.attempts_outward import TARGET4, connects, each
from agent_egress.prober import Facts, Refused, attempt

PRIVATE_PORTS = (
    identity.INTERCEPT_HTTP_PORT,
    identity.INTERCEPT_TLS_PORT,
    identity.CANARY_PORT,
    identity.ACCESS_PORT,
    identity.SCAN_PORT,
    identity.SCAN_PORT,
    identity.UNBOUND_PORT,
)
NFT = "/usr/sbin/nft"
CLONE_NEWUSER = 0x10000000
SO_MARK, IP_TRANSPARENT, IPV6_TRANSPARENT, SO_BINDTODEVICE, SO_REUSEPORT = 36, 19, 75, 25, 15

# --- the namespace that is shared ---


@attempt("namespace", core=True)
def private_ports(_: Facts) -> str:
    """The daemons' private ports."""
    return each(_private_ports())


def _private_ports() -> Iterator[str]:
    for port in PRIVATE_PORTS:
        for address in (identity.LOOPBACK4, identity.LOOPBACK6):
            with contextlib.suppress(OSError):
                yield connects(address, port)


@attempt("namespace")
def helper_ports(_: Facts) -> str:
    """The proxy's helpers."""
    return each(_helpers())


def _helpers() -> Iterator[str]:
    daemons = {str(uid) for uid in identity.DAEMON_UIDS}
    known = {identity.PROXY_PORT, identity.DNS_PORT, *PRIVATE_PORTS}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        port = int(fields[1].split(":")[1], 16)
        if fields[3] == "0A" and fields[7] in daemons and port not in known:
            with contextlib.suppress(OSError):
                yield connects(identity.LOOPBACK4, port)


@attempt("namespace")
def take_a_port(_: Facts) -> str:
    """Taking a daemon's port."""
    for port in (identity.PROXY_PORT, identity.DNS_PORT, *PRIVATE_PORTS, 53, 80, 443):
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, SO_REUSEPORT, 1)
            sock.bind((identity.LOOPBACK4, port))
            return f"port {port} was taken"
    raise Refused("every one is held, or not for this user")


@attempt("namespace")
def abstract_sockets(_: Facts) -> str:
    """Abstract sockets of the sidecar."""
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    names = [fields[-1] for fields in rows if fields[-1].startswith("@")]
    if not names:
        raise Refused("there is none")
    return f"there is {names[0]}"


@attempt("namespace")
def sidecar_files(_: Facts) -> str:
    """The sidecar's own sockets and files."""
    for path in (identity.CONTROL_SOCKET, identity.AUDIT_SOCKET, identity.POLICY_SOCKET, identity.SCAN_SOCKET):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)
            return f"{path} took a connection"
    for path in (identity.CA_KEY_FILE, identity.RECEIPTS_FILE, identity.SESSION_FILE):
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_RDWR))
            return f"{path} could be opened"
    raise Refused("not there, or not for this user")


# --- who the agent is ---


@attempt("identity", core=True)
def change_rules(_: Facts) -> str:
    """Changing the packet rules."""
    for words in (("flush", "ruleset"), ("delete", "table", "inet", "egress"), ("list", "ruleset")):
        done = subprocess.run([NFT, *words], capture_output=True, check=False, timeout=10)
        if done.returncode == 0 and (words[0] != "list" or done.stdout):
            return f"nft {' '.join(words)} was done"
    raise Refused("not permitted")


@attempt("identity", alone=True)
def change_rules_in_namespace(_: Facts) -> str:
    """The same, from a user namespace of its own."""
    library = ctypes.CDLL(None, use_errno=True)
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            if library.unshare(CLONE_NEWUSER) == 0:
                done = subprocess.run([NFT, "flush", "ruleset"], capture_output=True, check=False, timeout=10)
                code = 0 if done.returncode == 0 else 1
        os._exit(code)
    if os.waitpid(pid, 0)[1] == 0:
        return "the rules were flushed"
    raise Refused("not permitted")


@attempt("identity")
def capabilities(_: Facts) -> str:
    """Capabilities."""
    status = _status()
    held = [name for name in ("CapEff", "CapPrm", "CapInh", "CapAmb") if int(status[name], 16)]
    if held:
        return f"{', '.join(held)} are not empty"
    raise Refused("none")


@attempt("identity")
def bounding_set(_: Facts) -> str:
    """A bounding set to gain from."""
    if int(_status()["CapBnd"], 16):
        return f"CapBnd is {_status()['CapBnd']}"
    raise Refused("empty")


@attempt("identity", core=True)
def new_privileges(_: Facts) -> str:
    """New privileges."""
    status = _status()
    if status.get("NoNewPrivs") != "1" or status.get("Seccomp") != "2":
        return f"NoNewPrivs {status.get('NoNewPrivs')}, Seccomp {status.get('Seccomp')}"
    raise Refused("no new privileges, and a seccomp filter")


@attempt("identity", core=True)
def become_another(_: Facts) -> str:
    """Becoming root or one of the daemons."""
    if os.getuid() == 0 or os.getuid() in identity.DAEMON_UIDS:
        return f"it is uid {os.getuid()}"
    for uid in (0, *sorted(identity.DAEMON_UIDS)):
        with contextlib.suppress(OSError):
            os.setuid(uid)
            return f"became uid {uid}"
    raise Refused("not permitted")


def _status() -> dict[str, str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


@attempt("identity", core=True)
def raw_sockets(_: Facts) -> str:
    """Raw and packet sockets."""
    for family, style, protocol in (
        (socket.AF_PACKET, socket.SOCK_RAW, 0x0300),
        (socket.AF_PACKET, socket.SOCK_DGRAM, 0x0008),
        (socket.AF_INET, socket.SOCK_RAW, 255),
        (socket.AF_INET6, socket.SOCK_RAW, 255),
    ):
        with contextlib.suppress(OSError), socket.socket(family, style, protocol):
            return f"a socket of family {family}, style {style}"
    raise Refused("not permitted")


@attempt("identity")
def socket_options(facts: Facts) -> str:
    """Marks, transparent sockets, another device."""
    for level, option, family in (
        (socket.SOL_SOCKET, SO_MARK, socket.AF_INET),
        (socket.IPPROTO_IP, IP_TRANSPARENT, socket.AF_INET),
        (socket.IPPROTO_IPV6, IPV6_TRANSPARENT, socket.AF_INET6),
    ):
        with contextlib.suppress(OSError), socket.socket(family) as sock:
            sock.setsockopt(level, option, 1)
            return f"option {option} was taken"
    with contextlib.suppress(OSError), socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, SO_BINDTODEVICE, b"eth0\0")
        sock.settimeout(2)
        sock.connect((facts.spare((TARGET4,))[0], 9))
        return "a connection, bound to the device"
    raise Refused("not permitted, or refused all the same")


@attempt("identity")
def other_doors(_: Facts) -> str:
    """Io_uring and vsock, which filters do not see."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(425, 1, ctypes.create_string_buffer(120)) >= 0:  # io_uring_setup
        return "io_uring was set up"
    if ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS, errno.EACCES):
        return f"io_uring was not refused: {os.strerror(ctypes.get_errno())}"
    with contextlib.suppress(OSError), socket.socket(40, socket.SOCK_STREAM):  # AF_VSOCK
        return "a vsock socket"
    raise Refused("not permitted")


@attempt("identity")
def write_the_root(_: Facts) -> str:
    """Writing where the image is."""
    for path in ("/prove", "/etc/prove", "/usr/bin/prove", "/var/lib/prove"):
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            Path(path).unlink()
            return f"{path} was written"
    raise Refused("read-only")


@attempt("identity")
def kernel_files(_: Facts) -> str:
    """Kernel memory, devices, other processes."""
    for path in ("/proc/kcore", "/proc/sysrq-trigger", "/dev/mem", "/dev/kmsg", "/sys/kernel/uevent_helper"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR)
            data = os.read(descriptor, 1)
            os.close(descriptor)
            if data:
                return f"{path} could be opened and read"
    raise Refused("masked, or not permitted")
