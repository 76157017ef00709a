"""What a directory is, read as text: pointers must be pointed back at, and what leads out is refused by name."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from agent_container.errors import UsageError
from agent_container.workspace.tree import engine_text, inspect_tree


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def main_checkout(path: Path) -> Path:
    (path / ".git/objects").mkdir(parents=True)
    (path / ".git/refs").mkdir()
    write(path / ".git/HEAD", "ref: refs/heads/main\n")
    write(path / ".git/config", "[core]\n")
    return path


def linked(main: Path, tree: Path, *, relative: bool = False) -> Path:
    git_dir = main / "worktrees" / tree.name
    tree.mkdir()
    write(git_dir / "commondir", "../..\n")
    write(git_dir / "gitdir", f"{os.path.relpath(tree / '.git', git_dir) if relative else tree / '.git'}\n")
    write(tree / ".git", f"gitdir: {os.path.relpath(git_dir, tree) if relative else git_dir}\n")
    return tree


def test_a_plain_directory_and_a_main_checkout(tmp_path: Path) -> None:
    write(tmp_path / "plain/file")
    plain = inspect_tree(tmp_path / "plain", home=tmp_path)
    assert (plain.kind, plain.git_dir, plain.dotgit, plain.owner_uid) == ("plain", None, "absent", os.getuid())
    repo = inspect_tree(main_checkout(tmp_path / "repo"), home=tmp_path)
    assert (repo.kind, repo.git_dir, repo.dotgit, repo.is_worktree) == (
        "git",
        tmp_path / "repo/.git",
        "directory",
        False,
    )


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("bare", [False, True])
def test_a_linked_worktree_names_both_directories(tmp_path: Path, relative: bool, bare: bool) -> None:
    common = main_checkout(tmp_path / "main") / ".git"
    if bare:
        common = common.rename(tmp_path / "main.git")
    facts = inspect_tree(linked(common, tmp_path / "feat", relative=relative), home=tmp_path)
    assert (facts.git_dir, facts.common_dir, facts.dotgit) == (common / "worktrees/feat", common, "file")
    assert facts.is_worktree


def test_a_submodule_may_be_a_project_because_its_git_directory_points_back(tmp_path: Path) -> None:
    main = main_checkout(tmp_path / "main")
    module = main / ".git/modules/lib"
    (module / "objects").mkdir(parents=True)
    write(module / "config", "[core]\n\tworktree = ../../../lib\n")
    write(main / "lib/.git", "gitdir: ../.git/modules/lib\n")
    facts = inspect_tree(main / "lib", home=tmp_path)
    assert (facts.git_dir, facts.is_worktree) == (module, False)
    nested = inspect_tree(main, home=tmp_path).nested
    assert [(one.path, one.kind, one.git_dir) for one in nested] == [(main / "lib/.git", "file", module)]


def bad_pointer(tree: Path, private: Path) -> None:
    write(tree / ".git", f"gitdir: {private}/.git\n")


def stolen_worktree(tree: Path, private: Path) -> None:
    linked(private / ".git", tree.parent / "real")
    write(tree / ".git", f"gitdir: {private}/.git/worktrees/real\n")


def claimed_worktree(tree: Path, private: Path) -> None:
    """A directory of the attacker's that points back, with a common directory that is not its own."""
    admin = tree / "admin"
    write(admin / "commondir", f"{private}/.git\n")
    write(admin / "gitdir", f"{tree}/.git\n")
    write(tree / ".git", "gitdir: admin\n")


def a_link(tree: Path, private: Path) -> None:
    tree.mkdir()
    (tree / ".git").symlink_to(private / ".git")


def a_common_directory(tree: Path, private: Path) -> None:
    write(main_checkout(tree) / ".git/commondir", f"{private}/.git\n")


def linked_objects(tree: Path, private: Path) -> None:
    (main_checkout(tree) / ".git/objects").rmdir()
    (tree / ".git/objects").symlink_to(private / ".git/objects")


def no_pointer(tree: Path, private: Path) -> None:
    write(tree / ".git", "something else\n")


def nowhere(tree: Path, private: Path) -> None:
    write(tree / ".git", f"gitdir: {private}/nowhere\n")


def a_bare_repository(tree: Path, private: Path) -> None:
    (main_checkout(tree) / ".git").rename(tree.parent / "moved")
    tree.rmdir()
    (tree.parent / "moved").rename(tree)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (bad_pointer, "does not point back"),
        (stolen_worktree, "belongs to another worktree"),
        (claimed_worktree, "belongs to another worktree"),
        (a_link, "is a link to"),
        (a_common_directory, "leads to another repository"),
        (linked_objects, "missing or a link"),
        (no_pointer, "no pointer"),
        (nowhere, "does not exist"),
        (a_bare_repository, "bare repository"),
    ],
)
def test_what_leads_to_another_repository_is_refused(tmp_path: Path, make: object, words: str) -> None:
    private = main_checkout(tmp_path / "private")
    make(tmp_path / "tree", private)  # type: ignore[operator]
    with pytest.raises(UsageError, match=words) as caught:
        inspect_tree(tmp_path / "tree", home=tmp_path)
    assert caught.value.hint


def test_alternates_are_followed_to_the_end_and_only_those_outside_are_named(tmp_path: Path) -> None:
    repo = main_checkout(tmp_path / "repo")
    inner, outer = repo / "mirror", tmp_path / "outer"
    inner.mkdir()
    outer.mkdir()
    write(repo / ".git/objects/info/alternates", f"# comment\n../../mirror\n{tmp_path}/gone\n")
    write(inner / "info/alternates", f"{outer}\n{repo}/.git/objects\n")
    facts = inspect_tree(repo, home=tmp_path)
    assert set(facts.alternates) == {outer, tmp_path / "gone"}
    assert facts.missing == (tmp_path / "gone",)


def test_special_files_are_found_outside_git_and_links_are_not_followed(tmp_path: Path) -> None:
    repo = main_checkout(tmp_path / "repo")
    os.mkfifo(repo / ".git/fifo")
    os.mkfifo(tmp_path / "elsewhere")
    (repo / "link").symlink_to(tmp_path)
    assert inspect_tree(repo, home=tmp_path).special_files == ()
    (repo / "deep").mkdir()
    os.mkfifo(repo / "deep/fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(repo / "s"))
    assert set(inspect_tree(repo, home=tmp_path).special_files) == {repo / "deep/fifo", repo / "s"}


def test_a_directory_inside_a_repository_names_it_but_dotfiles_in_home_do_not_count(tmp_path: Path) -> None:
    main_checkout(tmp_path / "home/work/mono")
    (tmp_path / "home/work/mono/pkg").mkdir()
    (tmp_path / "home/other").mkdir()
    main_checkout(tmp_path / "home")
    home = tmp_path / "home"
    assert inspect_tree(home / "work/mono/pkg", home=home).enclosing == home / "work/mono"
    assert inspect_tree(home / "other", home=home).enclosing is None


def test_a_tree_is_looked_at_within_bounds(tmp_path: Path) -> None:
    for number in range(20):
        write(tmp_path / "many" / str(number))
    with pytest.raises(UsageError, match="more than 10 files"):
        inspect_tree(tmp_path / "many", home=tmp_path, max_entries=10)


def test_a_path_reaches_the_engine_as_utf8_or_not_at_all(tmp_path: Path) -> None:
    assert engine_text(Path("/tmp/\u00e9")) == "/tmp/\u00e9"
    assert engine_text(Path(os.fsdecode("/tmp/\u00e9".encode()))) == "/tmp/\u00e9"
    with pytest.raises(UsageError, match="not UTF-8"):
        engine_text(Path("/tmp/\udce9"))
