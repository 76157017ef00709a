"""Which program a credential is fetched with, and what it is told: nothing that a project's files could decide.

A project's directory is written by whoever made the repository and by agents. So no program in it is started, what is
started does not stand in it, and neither its PATH nor another variable leads into it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from agent_container.errors import UsageError
from agent_container.project import SPEC_NAME, real_directory

TOLD = (
    *("HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TERM", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY"),
    *("DBUS_SESSION_BUS_ADDRESS", "GNUPGHOME", "GPG_TTY", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)
"""What op, pass, vault and the like need to find their user, agent and service; PYTHONPATH, LD_PRELOAD are not."""
TOLD_BEGINNINGS = ("LC_", "XDG_", "OP_", "VAULT_", "BW_", "PASSWORD_STORE_", "AWS_", "AZURE_", "GOOGLE_", "CLOUDSDK_")
WORKING_DIRECTORY = "/"


def fence(directory: Path, environ: Mapping[str, str]) -> Path | None:
    """The outermost project around a directory, else the directory; never one that the user's home lies in, which no
    sandbox is given. Raises UsageError."""
    here, home = real_directory(directory), Path(os.path.realpath(environ.get("HOME") or "/"))
    marked = (path for path in here.parents if any(os.path.lexists(path / name) for name in (".git", SPEC_NAME)))
    fenced = [path for path in (here, *marked) if not home.is_relative_to(path)]
    return fenced[-1] if fenced else None


def locate(program: str, environ: Mapping[str, str], *, fenced: Path | None) -> str:
    """The absolute path of a program. Raises UsageError for a relative one, one inside `fenced`, and for none."""
    if "/" in program:
        found: str | None = program
        if not program.startswith("/"):
            raise UsageError(
                f"{program} is a relative path, and would be another program in each directory",
                hint="name it by its whole path",
            )
    else:
        found = shutil.which(program, path=_search(environ, fenced))
    if found is None:
        raise UsageError(
            f"{program} cannot be started: there is none in PATH",
            details=(f"relative entries, and those inside {fenced}, are not looked at",) if fenced else (),
        )
    if _inside(found, fenced):
        raise UsageError(
            f"{found} cannot be asked for a secret: it lies inside {fenced}, where an agent may write",
            hint="use a program outside of the project",
        )
    return found


def told(environ: Mapping[str, str], *, fenced: Path | None) -> dict[str, str]:
    """The environment of such a program."""
    kept = {
        name: value
        for name, value in environ.items()
        if (name in TOLD or name.startswith(TOLD_BEGINNINGS))
        and not any(_inside(path, fenced) for path in value.split(os.pathsep) if path.startswith("/"))
    }
    return {**kept, "PATH": _search(environ, fenced)}


def _search(environ: Mapping[str, str], fenced: Path | None) -> str:
    entries = environ.get("PATH", "").split(os.pathsep)
    return os.pathsep.join(entry for entry in entries if entry.startswith("/") and not _inside(entry, fenced))


def _inside(path: str, fenced: Path | None) -> bool:
    """Also by way of a link, at either end."""
    if fenced is None:
        return False
    return any(Path(form).is_relative_to(fenced) for form in (os.path.normpath(path), os.path.realpath(path)))
