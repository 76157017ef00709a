"""The base image: present, pulled, or made on this machine from Debian's packages where no registry answers.

The mirror is the one that the machine's own apt uses; no host stands here. An image made so has the name that it stands
in for, and is kept like a pulled one.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from agent_container.engine.build import image_id, printable_tail, run_docker
from agent_container.engine.connection import Connection
from agent_container.engine.protocol import Report
from agent_container.errors import EngineError

IMPORTABLE = {"debian:trixie-slim": "trixie", "debian:bookworm-slim": "bookworm"}
"""Which suite stands in for which reference."""

KEYRINGS = (
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/debian-archive-keyring.pgp",
)
DOCKER_CLEAN = (
    'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin || true"; };\n'
    'Dir::Cache::pkgcache "";\nDir::Cache::srcpkgcache "";\n'
)
"""Without it every later layer holds the archives of what it installed (as the published images have it)."""


def ensure_base(reference: str, *, connection: Connection, report: Report) -> str:
    """The id of the base image, pulled or imported when it is missing. Raises: EngineError saying what to type."""
    found = image_id(reference, connection=connection)
    if found is not None:
        return found
    report(f"pulling {reference}")
    argv = ["docker", "pull", "--quiet", reference]
    pulled = run_docker(argv, connection=connection)
    if pulled.returncode != 0:
        suite = IMPORTABLE.get(reference)
        if suite is None or shutil.which("debootstrap") is None or os.geteuid() != 0:
            raise _no_base(reference, suite, shlex.join(argv), pulled.stderr)
        report(f"no registry has {reference}; making it from Debian's packages")
        import_base(reference, suite=suite, connection=connection)
    found = image_id(reference, connection=connection)
    if found is None:
        raise EngineError(f"the base image {reference} was fetched, but the engine does not have it")
    return found


def import_base(reference: str, *, suite: str, connection: Connection, apt: Path = Path("/etc/apt")) -> None:
    """debootstrap's minimal system without its caches, imported under `reference`. Needs root. Raises: EngineError."""
    mirror = find_mirror(apt)
    if mirror is None:
        raise EngineError(
            f"no Debian mirror stands in {apt}, so {reference} cannot be made here",
            hint=f"docker load -i FILE with an image saved elsewhere (docker save {reference})",
        )
    with tempfile.TemporaryDirectory(prefix="agent-container-base-") as scratch:
        root = Path(scratch) / "root"
        keyring = next((f"--keyring={path}" for path in KEYRINGS if Path(path).exists()), None)
        argv = ["debootstrap", "--variant=minbase", *([keyring] if keyring else []), suite, str(root), mirror]
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode != 0:
            raise EngineError(
                f"debootstrap could not make {reference}",
                details=(shlex.join(argv), *printable_tail(done.stdout + done.stderr)),
                hint="type the line above to see all of its output",
            )
        _clean(root)
        _import(root, reference, connection=connection)


def find_mirror(apt: Path) -> str | None:
    """The first Debian archive in apt's own configuration, in either of its formats."""
    for entry in _uris(apt):
        if re.fullmatch(r"https?://[A-Za-z0-9.\[\]:-]+/(?:[A-Za-z0-9._~/-]*/)?debian/?", entry):
            return entry.rstrip("/")
    return None


def _uris(apt: Path) -> Iterator[str]:
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*.list"))]
    for path in files:
        for line in _lines(path):
            if line.startswith("deb "):
                yield from (word for word in re.sub(r"\[[^]]*\]", "", line).split() if "://" in word)
    for path in sorted((apt / "sources.list.d").glob("*.sources")):
        for line in _lines(path):
            if line.lower().startswith("uris:"):
                yield from line.split()[1:]


def _lines(path: Path) -> list[str]:
    try:
        return [line.strip() for line in path.read_text(errors="replace").splitlines()]
    except OSError:
        return []


def _clean(root: Path) -> None:
    """87 MB of archives and lists that no container needs."""
    for pattern in ("var/cache/apt/archives/*.deb", "var/cache/apt/*.bin", "var/lib/apt/lists/*", "var/log/*.log"):
        for path in root.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    (root / "etc/apt/apt.conf.d/docker-clean").write_text(DOCKER_CLEAN)
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    (root / "etc/hostname").unlink(missing_ok=True)


def _import(root: Path, reference: str, *, connection: Connection) -> None:
    # --one-file-system: debootstrap may have left /proc mounted after an odd end.
    pack = ["tar", "--create", "--one-file-system", "--numeric-owner", "--xattrs", f"--directory={root}", "."]
    load = ["docker", "import", "--change", 'CMD ["/bin/bash"]', "-", reference]
    with subprocess.Popen(pack, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as tar:
        done = subprocess.run(
            load, env=connection.cli_environment(), stdin=tar.stdout, capture_output=True, text=True, check=False
        )
    if done.returncode != 0 or tar.returncode != 0:
        raise EngineError(
            f"the engine did not take {reference}", details=(shlex.join(load), *printable_tail(done.stderr))
        )


def _no_base(reference: str, suite: str | None, line: str, output: str) -> EngineError:
    if suite is not None:
        hint = "as root on Debian: apt-get install debootstrap, and the same command again makes the image by itself"
    else:
        hint = f"where a registry answers: docker save {reference} -o base.tar; here: docker load -i base.tar"
    message = f"the base image {reference} is neither here nor to be had"
    return EngineError(message, details=(line, *printable_tail(output)), hint=hint)
