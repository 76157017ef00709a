"""The image's last layer: the agent's account and directories, the CA link, no setuid bit and no file capability.

Run as root in the image with `--uid N --gid N`. It verifies what it did and fails the build otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import py_compile
import stat
import sys
from typing import Iterator, List

HOME = "/home/agent"
OWNED = (HOME, "/workspace", "/memory", "/var/lib/agent-container/run")
CA_DIR = "/etc/agent-container/ca"
SYSTEM_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
PROGRAMS = "/opt/agent-container"
CAPABILITY = "security.capability"
SPECIAL = stat.S_ISUID | stat.S_ISGID


def make_account(uid: int, gid: int) -> None:
    """First in each file: where the base has given the number to another name, lookups by number find `agent`."""
    _put_first("/etc/group", f"agent:x:{gid}:")
    _put_first("/etc/passwd", f"agent:x:{uid}:{gid}:agent:{HOME}:/bin/bash")
    if os.path.exists("/etc/shadow"):
        _put_first("/etc/shadow", "agent:!:19000:0:99999:7:::")


def _put_first(path: str, line: str) -> None:
    with open(path, encoding="utf-8") as handle:
        kept = [other for other in handle.read().splitlines() if not other.startswith("agent:")]
    with open(path, "w", encoding="utf-8") as handle:
        handle.write("\n".join([line, *kept]) + "\n")


def make_directories(uid: int, gid: int) -> None:
    """A fresh named volume takes owner and mode from the directory that it covers."""
    for path in OWNED:
        os.makedirs(path, exist_ok=True)
        for entry in _walk(path):
            status = os.lstat(entry)
            if (status.st_uid, status.st_gid) != (uid, gid):  # a chown copies the file into this layer
                os.lchown(entry, uid, gid)
        os.chmod(path, 0o700 if path.startswith("/var/") else 0o755)


def link_certificates() -> None:
    """Programs that know only the system's bundle get the session's: public roots and the session's CA."""
    os.makedirs(CA_DIR, exist_ok=True)
    os.makedirs(os.path.dirname(SYSTEM_BUNDLE), exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(SYSTEM_BUNDLE)
    os.symlink(os.path.join(CA_DIR, "bundle.pem"), SYSTEM_BUNDLE)


def compile_programs() -> None:
    """The host starts the runner's client for every conversation; the root filesystem is read-only then."""
    for entry in _walk(os.path.join(PROGRAMS, "lib")):
        if entry.endswith(".py"):
            py_compile.compile(entry, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


def strip_privilege() -> None:
    """Threat model, layer 2: nothing in the image may raise whoever starts it."""
    for entry in _walk("/"):
        status = os.lstat(entry)
        if stat.S_ISLNK(status.st_mode):
            continue
        if status.st_mode & SPECIAL:
            os.chmod(entry, stat.S_IMODE(status.st_mode) & ~SPECIAL)
        if stat.S_ISREG(status.st_mode) and _has_capability(entry):
            os.removexattr(entry, CAPABILITY)


def find_privilege() -> List[str]:
    """What still carries a bit or a capability."""
    left = []
    for entry in _walk("/"):
        status = os.lstat(entry)
        if not stat.S_ISLNK(status.st_mode) and (status.st_mode & SPECIAL or _has_capability(entry)):
            left.append(entry)
    return left


def _has_capability(path: str) -> bool:
    try:
        return CAPABILITY in os.listxattr(path, follow_symlinks=False)
    except OSError:
        return False


def _walk(top: str) -> Iterator[str]:
    """Everything below `top` and itself, on its own filesystem, following no link."""
    device = os.lstat(top).st_dev
    yield top
    for directory, names, files in os.walk(top):
        names[:] = [name for name in names if os.lstat(os.path.join(directory, name)).st_dev == device]
        for name in names + files:
            yield os.path.join(directory, name)


def main() -> int:
    """Do all of it, then look again."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--uid", type=int, required=True)
    parser.add_argument("--gid", type=int, required=True)
    arguments = parser.parse_args()
    make_account(arguments.uid, arguments.gid)
    make_directories(arguments.uid, arguments.gid)
    compile_programs()
    link_certificates()
    strip_privilege()
    left = find_privilege()
    for path in left:
        sys.stderr.write(f"still setuid, setgid or with capabilities: {path}\n")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
