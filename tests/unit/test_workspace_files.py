"""Writing into a user's directory: all or nothing, only regular files, never through a link."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from agent_container.errors import UsageError
from agent_container.workspace.files import write_changes
from agent_container.workspace.transfer import Change

NONE = "0" * 40


def blob(text: str, algorithm: str = "sha1") -> str:
    body = text.encode()
    return hashlib.new(algorithm, b"blob %d\0" % len(body) + body).hexdigest()


def change(path: str, old: str | None, new: str | None, mode: str = "100644", algorithm: str = "sha1") -> Change:
    none = "0" * (64 if algorithm == "sha256" else 40)
    return Change(
        path=path,
        old_mode="000000" if old is None else "100644",
        new_mode="000000" if new is None else mode,
        old=none if old is None else blob(old, algorithm),
        new=none if new is None else blob(new, algorithm),
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("kept", "dir/sub/gone", "dir/file"):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("old\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("old\n")
    (tmp_path / "tree/link").symlink_to(tmp_path / "outside")
    (tmp_path / "tree/filelink").symlink_to(tmp_path / "outside/file")
    return tmp_path / "tree"


def apply(tree: Path, *changes: Change, text: str = "new\n") -> object:
    contents = tree.parent / "contents"
    contents.mkdir(exist_ok=True)
    for number in range(len(changes)):
        (contents / str(number)).write_text(text)
    return write_changes(tree, changes, contents=contents)


def snapshot(tree: Path) -> dict[str, str]:
    return {
        str(path.relative_to(tree.parent)): path.read_text() if path.is_file() else ""
        for path in sorted(tree.parent.rglob("*"))
        if "contents" not in path.parts
    }


@pytest.mark.parametrize("algorithm", ["sha1", "sha256"])
def test_files_are_changed_added_removed_and_a_second_time_nothing_happens(tree: Path, algorithm: str) -> None:
    changes = (
        change("kept", "old\n", "new\n", algorithm=algorithm),
        change("dir/sub/gone", "old\n", None, algorithm=algorithm),
        change("a/b/c", None, "new\n", "100755", algorithm=algorithm),
    )
    for _ in range(2):
        done = apply(tree, *changes)
        assert done.written == ("kept", "a/b/c")  # type: ignore[attr-defined]
        assert done.removed == ("dir/sub/gone",)  # type: ignore[attr-defined]
    assert (tree / "kept").read_text() == (tree / "a/b/c").read_text() == "new\n"
    assert os.access(tree / "a/b/c", os.X_OK)
    assert not os.access(tree / "kept", os.X_OK)
    assert ((tree / "dir/sub").exists(), (tree / "dir/file").exists()) == (False, True)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (change("kept", "other\n", "new\n"), "was changed since"),
        (change("kept", "other\n", None), "was changed since"),
        (change("kept", None, "new\n"), "exists already"),
        (change("missing", "old\n", "new\n"), "is not there"),
        (change("dir", None, "new\n"), "exists already"),
        (change("kept/inner", None, "new\n"), "a link or a file"),
        (change("link/file", "old\n", "new\n"), "a link or a file"),
        (change("link/new", None, "new\n"), "a link or a file"),
        (change("filelink", "old\n", "new\n"), "was changed since"),
        (change("../outside/file", "old\n", "new\n"), "not a path that is ever written"),
        (change("/etc/x", None, "new\n"), "not a path that is ever written"),
        (change("dir//x", None, "new\n"), "not a path that is ever written"),
        (change(".git/hooks/pre-commit", None, "new\n"), "not a path that is ever written"),
        (change("sub/.GiT/config", None, "new\n"), "not a path that is ever written"),
        (change("a\0b", None, "new\n"), "not a path that is ever written"),
    ],
    ids=lambda value: value.path if isinstance(value, Change) else value,
)
def test_one_file_in_the_way_stops_everything(tree: Path, bad: Change, words: str) -> None:
    before = snapshot(tree)
    with pytest.raises(UsageError) as caught:
        apply(tree, change("dir/file", "old\n", "new\n"), bad)
    assert words in caught.value.details[0]
    assert snapshot(tree) == before


def test_links_and_submodules_are_named_and_never_written(tree: Path) -> None:
    done = apply(
        tree,
        change("new-link", None, "/etc/passwd", "120000"),
        change("module", None, "x", "160000"),
        Change(path="link", old_mode="120000", new_mode="000000", old=blob("x"), new=NONE),
    )
    assert len(done.skipped) == 3  # type: ignore[attr-defined]
    assert not (tree / "new-link").is_symlink()
    assert (tree / "link").is_symlink()
