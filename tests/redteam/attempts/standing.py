"""What the agent's processes may do at all: sockets, capabilities, namespaces, rules."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
from pathlib import Path

from .tools import PUBLIC4, attempt


@attempt
def raw_sockets() -> object:
    for family, style, protocol in (
        (socket.AF_PACKET, socket.SOCK_RAW, 0x0300),
        (socket.AF_PACKET, socket.SOCK_DGRAM, 0x0008),
        (socket.AF_INET, socket.SOCK_RAW, 255),
        (socket.AF_INET6, socket.SOCK_RAW, 255),
    ):
        with contextlib.suppress(OSError), socket.socket(family, style, protocol):
            return f"family {family}, style {style}"
    return False


@attempt
def socket_options() -> object:
    """Marks, foreign source addresses, another device: what a rule might be keyed on."""
    for level, option, value in ((socket.SOL_SOCKET, 36, 1), (socket.IPPROTO_IP, 19, 1), (socket.IPPROTO_IPV6, 75, 1)):
        family = socket.AF_INET6 if level == socket.IPPROTO_IPV6 else socket.AF_INET
        with contextlib.suppress(OSError), socket.socket(family) as sock:
            sock.setsockopt(level, option, value)  # SO_MARK, IP_TRANSPARENT, IPV6_TRANSPARENT
            return f"option {option} was taken"
    with contextlib.suppress(OSError), socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, 25, b"eth0\0")  # SO_BINDTODEVICE needs nothing since Linux 5.7
        sock.settimeout(2)
        sock.connect((PUBLIC4, 9000))
        return "bound to the device"
    return False


@attempt
def change_the_rules() -> object:
    for arguments in (("list", "ruleset"), ("flush", "ruleset"), ("delete", "table", "inet", "egress")):
        done = subprocess.run(["/usr/sbin/nft", *arguments], capture_output=True, check=False)
        if done.returncode == 0 and (arguments[0] != "list" or done.stdout):
            return f"nft {' '.join(arguments)}"
    return False


@attempt
def own_namespace() -> object:
    """A user namespace gives capabilities, and none over this network."""
    libc = ctypes.CDLL(None, use_errno=True)
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            if libc.unshare(0x10000000) == 0:  # CLONE_NEWUSER
                done = subprocess.run(["/usr/sbin/nft", "flush", "ruleset"], capture_output=True, check=False)
                code = 0 if done.returncode == 0 else 1
        os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


@attempt
def privileges() -> object:
    """Nothing to gain: no capability, no way to one, another uid out of reach."""
    with Path("/proc/self/status").open() as file:
        status = dict(line.strip().split(":\t", 1) for line in file if ":\t" in line)
    held = [key for key in ("CapEff", "CapPrm", "CapBnd", "CapAmb") if int(status[key], 16)]
    if held or status.get("NoNewPrivs") != "1":
        return f"{held}, NoNewPrivs {status.get('NoNewPrivs')}"
    for uid in (0, 64101, 64103):
        with contextlib.suppress(OSError):
            os.setuid(uid)
            return f"became {uid}"
    return False


@attempt
def abstract_sockets() -> object:
    """They are shared across the namespace and no rule sees them."""
    with Path("/proc/net/unix").open() as file:
        return [line.split()[-1] for line in file if line.split()[-1].startswith("@")]
