"""The engine's own account of images, on images of a repository that only this test has."""

from __future__ import annotations

import io
import os
import secrets
import subprocess
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent_container.engine.connection import connect
from agent_container.engine.docker import DockerEngine


@pytest.fixture
def repository() -> Iterator[str]:
    """Two tags of one image, and another image."""
    name = f"acs-list-{secrets.token_hex(4)}/agent"
    for tag, content in (("one", b"1"), ("two", b"2")):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            member = tarfile.TarInfo("file")
            member.size = 1
            archive.addfile(member, io.BytesIO(content))
        subprocess.run(
            ["docker", "import", "-", f"{name}:{tag}"], input=packed.getvalue(), capture_output=True, check=True
        )
    subprocess.run(["docker", "tag", f"{name}:one", f"{name}:alias"], capture_output=True, check=True)
    yield name
    tags = [f"{name}:{tag}" for tag in ("one", "two", "alias")]
    subprocess.run(["docker", "image", "rm", *tags], capture_output=True, check=False)


def test_tags_are_listed_used_ones_known_and_one_removed(repository: str, tmp_path: Path) -> None:
    engine = DockerEngine(connect(os.environ, state_dir=tmp_path))
    rows = {row.tag.rpartition(":")[2]: row for row in engine.images_of(repository)}
    assert set(rows) == {"one", "two", "alias"}
    assert rows["one"].id == rows["alias"].id != rows["two"].id
    assert all(abs((datetime.now(UTC) - row.touched).total_seconds()) < 600 for row in rows.values())
    created = subprocess.run(
        ["docker", "create", f"{repository}:two", "/file"], capture_output=True, text=True, check=True
    ).stdout.strip()
    try:
        assert rows["two"].id in engine.images_in_use()
        assert not engine.remove_image(f"{repository}:two")  # the engine's own word, should ours be too late
    finally:
        subprocess.run(["docker", "rm", created], capture_output=True, check=True)
    assert engine.remove_image(f"{repository}:alias")
    assert not engine.remove_image(f"{repository}:alias")
    assert {row.tag for row in engine.images_of(repository)} == {f"{repository}:one", f"{repository}:two"}
