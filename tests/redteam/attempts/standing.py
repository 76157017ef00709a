"""What the agent's processes may do at all: sockets, capabilities, identities, namespaces, rules, files, devices."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from .cases import each
from .tools import PUBLIC4, attempt

libc = ctypes.CDLL(None, use_errno=True)


@each(
    {
        "packet": (socket.AF_PACKET, socket.SOCK_RAW, 0x0300),
        "packet_cooked": (socket.AF_PACKET, socket.SOCK_DGRAM, 0x0008),
        "inet": (socket.AF_INET, socket.SOCK_RAW, 255),
        "inet6": (socket.AF_INET6, socket.SOCK_RAW, 255),
        "xdp": (44, socket.SOCK_RAW, 0),
    }
)
def raw_sockets(how: tuple[int, int, int]) -> object:
    with socket.socket(*how):
        return "opened"


@each({"vsock": (40, socket.SOCK_STREAM), "tipc": (30, socket.SOCK_RDM), "can": (29, socket.SOCK_RAW)})
def other_families(how: tuple[int, int]) -> object:
    """Ways to the host, or to a bus, that no packet filter sees."""
    with socket.socket(*how):
        return "opened"


@attempt
def smc() -> object:
    """Sockets that the kernel makes on one's behalf, without an owner."""
    with socket.socket(43, socket.SOCK_STREAM, 0) as sock:
        libc.connect.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int)
        address = b"\x02\0" + (9000).to_bytes(2, "big") + socket.inet_aton(PUBLIC4) + bytes(8)
        sock.settimeout(None)
        return libc.connect(sock.fileno(), address, len(address)) == 0


@each(
    {
        "mark": (socket.AF_INET, socket.SOL_SOCKET, 36),
        "transparent": (socket.AF_INET, socket.IPPROTO_IP, 19),
        "transparent6": (socket.AF_INET6, socket.IPPROTO_IPV6, 75),
        "buffer_force": (socket.AF_INET, socket.SOL_SOCKET, 32),
    }
)
def socket_options(how: tuple[int, int, int]) -> object:
    """What a rule might be keyed on, or what only root may."""
    family, level, option = how
    with socket.socket(family) as sock:
        sock.setsockopt(level, option, 1)
        return "was taken"


@attempt
def bound_to_the_device() -> object:
    """SO_BINDTODEVICE needs nothing since Linux 5.7."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, 25, b"eth0\0")
        sock.settimeout(2)
        sock.connect((PUBLIC4, 9000))
        return True


@each(
    {
        "list": ("list", "ruleset"),
        "flush": ("flush", "ruleset"),
        "delete": ("delete", "table", "inet", "egress"),
        "accept": ("insert", "rule", "inet", "egress", "output", "accept"),
        "own_table": ("add", "table", "inet", "mine"),
    }
)
def change_the_rules(arguments: tuple[str, ...]) -> object:
    done = subprocess.run(["/usr/sbin/nft", *arguments], capture_output=True, check=False)
    return done.returncode == 0 and (arguments[0] != "list" or bool(done.stdout))


def _in_a_fork(work: Callable[[], bool]) -> bool:
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            code = 0 if work() else 1
        os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


@attempt
def own_namespace() -> object:
    """A user namespace gives capabilities, and none over this network."""

    def flush() -> bool:
        if libc.unshare(0x10000000) != 0:  # CLONE_NEWUSER
            return False
        return subprocess.run(["/usr/sbin/nft", "flush", "ruleset"], capture_output=True, check=False).returncode == 0

    return _in_a_fork(flush)


@each({"network": 0x40000000, "mount": 0x20000, "pid": 0x20000000, "cgroup": 0x2000000})
def own_namespace_of(flag: int) -> object:
    return _in_a_fork(lambda: libc.unshare(flag) == 0)


@each({"effective": "CapEff", "permitted": "CapPrm", "bounding": "CapBnd", "ambient": "CapAmb"})
def capabilities(key: str) -> object:
    return _status()[key] if int(_status()[key], 16) else False


def _status() -> dict[str, str]:
    with Path("/proc/self/status").open() as file:
        return dict(line.strip().split(":\t", 1) for line in file if ":\t" in line)


@attempt
def new_privileges() -> object:
    return _status().get("NoNewPrivs") != "1"


@attempt
def unfiltered_system_calls() -> object:
    return _status().get("Seccomp") != "2"


@each({"root": 0, "squid": 64101, "filter": 64102, "unbound": 64103, "policy": 64104, "audit": 64105})
def become(uid: int) -> object:
    os.setuid(uid)
    return f"became {uid}"


@attempt
def join_groups() -> object:
    os.setgroups([0, 64101])
    return True


@attempt
def set_uid_programs() -> object:
    """One would be the way to another uid, were there no no-new-privileges."""
    for top in ("/usr", "/bin", "/sbin", "/opt"):
        for directory, _, names in os.walk(top):
            for name in names:
                with contextlib.suppress(OSError):
                    path = Path(directory, name)
                    if path.lstat().st_mode & (stat.S_ISUID | stat.S_ISGID) and not path.is_symlink():
                        return str(path)
    return False


@each(
    {
        "root": "/proof",
        "hosts": "/etc/hosts",
        "resolver": "/etc/resolv.conf",
        "passwd": "/etc/passwd",
        "library": "/usr/lib/proof",
        "program": "/usr/bin/proof",
        "authority": "/etc/agent-container/ca/bundle.pem",
        "authority_beside": "/etc/agent-container/ca/proof",
        "port_range": "/proc/sys/net/ipv4/ip_unprivileged_port_start",
        "forwarding": "/proc/sys/net/ipv4/ip_forward",
        "route_localnet": "/proc/sys/net/ipv4/conf/all/route_localnet",
        "core_pattern": "/proc/sys/kernel/core_pattern",
        "sysrq": "/proc/sysrq-trigger",
        "release_agent": "/sys/fs/cgroup/release_agent",
        "cgroup": "/sys/fs/cgroup/pids.max",
        "uevent": "/sys/kernel/uevent_helper",
    }
)
def write_to(path: str) -> object:
    with Path(path).open("ab"):  # opening is enough: nothing is to be damaged where it is possible
        return "opened for writing"


@each({"kmsg": "/dev/kmsg", "memory": "/dev/mem", "tun": "/dev/net/tun", "fuse": "/dev/fuse", "disk": "/dev/vda"})
def devices(path: str) -> object:
    with Path(path).open("rb"):
        return "opened"


@attempt
def make_a_device() -> object:
    name = tempfile.mktemp()  # noqa: S306 - a node and no file
    os.mknod(name, 0o600 | stat.S_IFBLK, os.makedev(8, 0))
    return True


@each(
    {
        "engine": "/var/run/docker.sock",
        "engine_run": "/run/docker.sock",
        "containerd": "/run/containerd/containerd.sock",
        "control": "/run/egress/control.sock",
        "policy": "/run/policy/policy.sock",
        "audit": "/run/audit/audit.sock",
        "host_bus": "/run/dbus/system_bus_socket",
    }
)
def sockets_of_others(path: str) -> object:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        return "connected"


@each(
    {
        "mount": lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0,
        "chroot": lambda: os.chroot("/tmp") is None,
        "hostname": lambda: socket.sethostname("proof") is None,
        "clock": lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()) is None,
        "bpf": lambda: libc.syscall(321, 0, ctypes.create_string_buffer(64), 64) >= 0,
        "io_uring": lambda: libc.syscall(425, 8, ctypes.create_string_buffer(256)) >= 0,
        "keyring": lambda: libc.syscall(248, b"user", b"proof", b"x", 1, -3) >= 0,
        "userfaultfd": lambda: libc.syscall(323, 0) >= 0,
        "kexec": lambda: libc.syscall(246, 0, 0, 0, 0) >= 0,
        "open_by_handle": lambda: libc.syscall(304, -1, ctypes.create_string_buffer(64), 0) >= 0,
        "nice": lambda: os.nice(-5) is not None,
    }
)
def system_calls(call: Callable[[], bool]) -> object:
    return call()


@attempt
def run_a_program_of_ones_own() -> object:
    """/tmp and its like are `noexec` beside the sidecar: what may run is in the image."""
    path = Path(tempfile.mkdtemp(), "proof")
    path.write_text("#!/usr/bin/python3\n")
    path.chmod(0o755)
    return subprocess.run([str(path)], check=False).returncode == 0


@attempt
def processes_of_others() -> object:
    """A process namespace of one's own: the daemons are not even names here."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.stat().st_uid not in (os.getuid(), 0):
            return entry.name
    return False


@attempt
def unlimited_processes() -> object:
    limits = [Path("/sys/fs/cgroup", name) for name in ("pids.max", "pids/pids.max")]  # of either version
    return next(path for path in limits if path.exists()).read_text().strip() == "max"


@attempt
def core_files() -> object:
    """What a daemon's memory holds is not written where an agent could crash it; nor is the agent's own."""
    with Path("/proc/self/limits").open() as file:
        return next(line.split()[4] for line in file if line.startswith("Max core")) != "0"
