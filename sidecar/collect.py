"""Build step of the sidecar image: copies the programs that run inside the boundary, what they load, and nothing else.

It runs in the build stage, on any Debian-based image; the final image is empty but for its output. No file keeps a
setuid or setgid bit. What the programs may do at run time is the supervisor's affair.
"""

from __future__ import annotations

import compileall
import grp
import os
import pwd
import py_compile
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

PROGRAMS = (
    "/usr/sbin/squid",
    "/usr/lib/squid/unlinkd",  # never started, but squid refuses a configuration without it
    "/usr/sbin/unbound",
    "/usr/sbin/nft",
    "/usr/bin/openssl",
    "/usr/bin/ssh",
    "/usr/bin/python3",
    "/usr/bin/setpriv",
    "/usr/bin/cat",
)
TREES = (
    "/usr/share/squid/icons",
    "/usr/share/squid/mime.conf",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/openssl.cnf",
    "/usr/lib/ssl/openssl.cnf",
)
PACKAGE = "usr/lib/python3/dist-packages/agent_egress"
ERRORS = "usr/share/agent-egress/errors"


def libraries(program: Path) -> set[Path]:
    """The shared libraries that the loader would map for `program`."""
    listing = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
    return {Path(found) for found in re.findall(r"(/\S+)(?= \(0x)", listing)}


def copy(source: Path, out: Path) -> None:
    """Copies a file to its own path below `out`; a link stays a link and what it points at follows."""
    target = out / _merged(source).relative_to("/")
    if target.exists() or target.is_symlink():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(source.readlink())
        copy(source.parent / source.readlink(), out)
        return
    shutil.copyfile(source, target)
    found = source.stat()
    target.chmod(0o755 if found.st_mode & stat.S_IXUSR else 0o644)
    # Python's compiled modules name their source's time: with another one, every start would compile anew.
    os.utime(target, ns=(found.st_mtime_ns, found.st_mtime_ns))


def _merged(path: Path) -> Path:
    """`path` with its directory resolved: Debian's /lib and /lib64 are links into /usr."""
    return path.parent.resolve() / path.name


def copy_tree(top: Path, out: Path) -> None:
    """Copies a file or a whole directory."""
    for path in [top] if not top.is_dir() else sorted(top.rglob("*")):
        if path.is_file() or path.is_symlink():
            copy(path, out)


def identities(package: Path) -> dict[int, str]:
    """uid to account name of the daemons, read from the package itself."""
    sys.path.insert(0, str(package.parent))
    from agent_egress.identity import UID_NAMES

    return dict(UID_NAMES)


def accounts(out: Path, names: dict[int, str]) -> None:
    """Writes passwd and group: squid looks its own account up and refuses to start without it."""
    for uid, name in names.items():
        for taken in (pwd.getpwuid, grp.getgrgid):
            try:
                taken(uid)
            except KeyError:
                continue
            raise SystemExit(f"uid or gid {uid} of {name} is taken in the base image")
    entries = {0: "root", **names, 65534: "nobody"}
    etc = out / "etc"
    etc.mkdir(exist_ok=True)
    passwd = "".join(f"{name}:x:{uid}:{uid}::/nonexistent:/nonexistent\n" for uid, name in entries.items())
    (etc / "passwd").write_text(passwd)
    (etc / "group").write_text("".join(f"{name}:x:{uid}:\n" for uid, name in entries.items()))
    (etc / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")


def error_pages(squids: Path, ours: Path, target: Path) -> None:
    """Puts a short page of our own in the place of every page of squid's: an agent reads them, no browser shows them.

    squid ends at its start for want of a page, whichever it is; those that no request here meets get `other`.
    """
    shutil.copytree(squids, target)
    for page in target.glob("ERR_*"):
        shutil.copyfile(ours / "other", page)
    shutil.copytree(ours, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("other"))


def main(out: Path) -> None:
    """Fills `out` with the file system of the image."""
    for link in ("bin", "sbin", "lib", "lib64"):
        if Path("/", link).is_symlink():
            (out / "usr" / link).mkdir(parents=True, exist_ok=True)
            (out / link).symlink_to(f"usr/{link}")
    for program in map(Path, PROGRAMS):
        copy(program, out)
    for tree in TREES:
        copy_tree(Path(tree), out)
    version = f"python3.{sys.version_info.minor}"
    copy_tree(Path("/usr/lib", version), out)
    error_pages(Path("/usr/share/squid/errors/templates"), Path("/build/errors"), out / ERRORS)
    shutil.copytree("/build/agent_egress", out / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    (out / PACKAGE / "tunnel.py").chmod(0o755)  # ssh starts it as a program
    # The root file system is read-only at run time: without compiled code every start would compile again.
    compileall.compile_dir(
        str(out / PACKAGE),
        quiet=1,
        stripdir=str(out),
        prependdir="/",
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    loaders = [path for path in out.rglob("*") if path.is_file() and (os.access(path, os.X_OK) or ".so" in path.name)]
    for library in sorted({found for program in loaders for found in libraries(program)}):
        copy(library, out)
    accounts(out, identities(Path("/build/agent_egress")))
    for directory in ("run", "proc", "sys", "dev", "etc/agent-egress", "var/lib/egress-ca"):
        (out / directory).mkdir(parents=True, exist_ok=True)
    (out / "tmp").mkdir(mode=0o1777)
    (out / "tmp").chmod(0o1777)  # a tmpfs takes the mode of the directory below it, whatever was asked for
    for path in out.rglob("*"):
        if not path.is_symlink() and path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID):
            raise SystemExit(f"setuid or setgid: {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
