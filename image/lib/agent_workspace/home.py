"""Where the HOME volume of a resumed run is: the files that its agent kept come back, and nothing but files."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import BinaryIO

from agent_workspace.git import Failed


def unpack_files(home: Path, source: BinaryIO) -> None:
    """Regular files of a tar stream, below `home`, 0600; directories are made as they are needed. Raises: Failed."""
    with tarfile.open(fileobj=source, mode="r|") as tar:
        for member in tar:
            parts = member.name.split("/")
            if not member.isreg() or any(part in ("", ".", "..") for part in parts):
                raise Failed(f"refused: {member.name}")
            path = home
            for part in parts[:-1]:
                path /= part
                if path.is_symlink() or not path.is_dir():
                    path.mkdir(0o700)
            body = tar.extractfile(member)
            (path / parts[-1]).unlink(missing_ok=True)  # the image's own HOME may hold one: the record's is newer
            with (path / parts[-1]).open("xb") as file:
                while body is not None and (block := body.read(1 << 20)):
                    file.write(block)
            (path / parts[-1]).chmod(0o600)
