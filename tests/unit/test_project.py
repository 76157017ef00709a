"""Projects: found from anywhere inside, one for each real place and repository, never two under one name."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from agent_container.errors import SpecError, UsageError
from agent_container.project import Project, find_project, git_directory, read_spec, repository_identity, slug

SPEC = "agent-container.yaml"


def make(path: Path, *, spec: bool = True, remote: str | None = None) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    if spec:
        (path / SPEC).write_text("version: 1\n")
    if remote is not None:
        (path / ".git").mkdir()
        (path / ".git" / "config").write_text(f'[core]\n\tbare = false\n[remote "origin"]\n\turl = {remote}\n')
    return path


def test_a_project_is_found_from_a_directory_below(tmp_path: Path) -> None:
    root = make(tmp_path / "app", remote="https://git.test/acme/app")
    below = make(root / "src" / "deep", spec=False)
    project = find_project(below)
    assert (project.root, project.spec_path) == (root, root / SPEC)


def test_without_a_spec_the_repository_is_the_project(tmp_path: Path) -> None:
    root = make(tmp_path / "app", spec=False, remote="https://git.test/acme/app")
    project = find_project(make(root / "src", spec=False))
    assert (project.root, project.spec_path) == (root, None)


def test_without_either_the_directory_is_the_project(tmp_path: Path) -> None:
    root = make(tmp_path / "app", spec=False)
    assert find_project(root) == Project(root=root, spec_path=None, repository="")


def test_a_spec_above_the_repository_belongs_to_another_project(tmp_path: Path) -> None:
    make(tmp_path)
    inner = make(tmp_path / "vendored", spec=False, remote="https://git.test/other")
    assert find_project(inner).spec_path is None


def test_another_spec_file_leaves_the_workspace_where_it_is(tmp_path: Path) -> None:
    root = make(tmp_path / "app")
    other = tmp_path / "ci.yaml"
    other.write_text("version: 1\n")
    assert find_project(root, Path("../ci.yaml")) == Project(root=root, spec_path=other, repository="")
    with pytest.raises(UsageError, match="no such file"):
        find_project(root, Path("nope.yaml"))


def test_names_that_normalise_alike_are_projects_of_their_own(tmp_path: Path) -> None:
    names = ["x/app", "y/APP", "z/a.pp", "a/app", "b/App.", "c/ap-p", "d/e\u0301", "d/\u00e9", "e/日本", "f/--"]
    projects = [find_project(make(tmp_path / name)) for name in names]
    assert len({project.id for project in projects}) == len(names)
    assert len({project.compose_name for project in projects}) == len(names)
    for project in projects:
        assert re.fullmatch(r"ac-[a-z0-9][a-z0-9-]*-[0-9a-f]{8}", project.compose_name)
        assert re.fullmatch(r"[0-9a-f]{12}", project.id)


def test_the_same_checkout_by_two_paths_is_one_project(tmp_path: Path) -> None:
    root = make(tmp_path / "code" / "app")
    link = tmp_path / "home"
    link.symlink_to(root)
    assert find_project(link) == find_project(root) == find_project(root / ".." / "app")
    assert find_project(link).id == find_project(root).id


def test_a_loop_of_links_is_refused_by_name(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    with pytest.raises(UsageError, match=r"loop: symbolic links form a loop"):
        find_project(loop)
    with pytest.raises(UsageError, match="symbolic links form a loop"):
        find_project(make(tmp_path / "app"), loop)


def test_a_spec_that_is_a_loop_is_an_error_and_not_the_absence_of_a_spec(tmp_path: Path) -> None:
    (tmp_path / SPEC).symlink_to(SPEC)
    project = find_project(tmp_path)
    assert project.spec_path is not None
    with pytest.raises(SpecError, match="symbolic links form a loop"):
        read_spec(project.spec_path)


@pytest.mark.parametrize("kind", ["missing", "a file", "nul"])
def test_what_is_no_directory_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_text("")
    start = {"missing": tmp_path / "nope", "a file": tmp_path / "file", "nul": tmp_path / "a\0b"}[kind]
    with pytest.raises(UsageError):
        find_project(start)


def test_a_different_repository_at_a_known_path_is_a_different_project(tmp_path: Path) -> None:
    root = make(tmp_path / "app", remote="https://git.test/acme/app")
    before = find_project(root).id
    (root / ".git" / "config").write_text('[remote "origin"]\n\turl = https://git.test/evil/app\n')
    assert find_project(root).id != before


def test_a_token_in_the_url_is_not_part_of_the_identity(tmp_path: Path) -> None:
    one = make(tmp_path / "app", remote="https://user:ghp_secret@git.test/acme/app?x=secret")
    assert find_project(one).repository == "https://git.test/acme/app"


CONFIGS = {
    "no remote": ("[core]\nbare = false\n", ""),
    "another remote": ('[remote "upstream"]\nurl = https://git.test/a\n', ""),
    "scp form": ('[remote "origin"]\n\turl = git@git.test:acme/app.git\n', "git@git.test:acme/app.git"),
    "a section and its value on one line": ('[remote "origin"] url = https://git.test/a', "https://git.test/a"),
    "capitals in section and key": ('[REMOTE "origin"]\nURL = https://git.test/a\n', "https://git.test/a"),
    "quotes and a comment": ('[remote "origin"]\nurl = "https://git.test/a" ; mine\n', "https://git.test/a"),
    "the last one wins": (
        '[remote "origin"]\nurl = https://git.test/a\nurl = https://git.test/b\n',
        "https://git.test/b",
    ),
    "a key of a later section": ('[remote "origin"]\n[branch "x"]\nurl = https://git.test/a\n', ""),
    "bytes that are no text": (b"\xff\xfe[remote", ""),
}


@pytest.mark.parametrize(("config", "identity"), CONFIGS.values(), ids=CONFIGS)
def test_the_remote_is_read_as_text(tmp_path: Path, config: str | bytes, identity: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_bytes(config if isinstance(config, bytes) else config.encode())
    assert repository_identity(tmp_path) == identity


@pytest.mark.parametrize("relative", [False, True], ids=["absolute pointer", "relative pointer"])
def test_a_linked_worktree_has_the_main_repositorys_identity_and_an_id_of_its_own(
    tmp_path: Path, relative: bool
) -> None:
    main = make(tmp_path / "main", remote="https://git.test/acme/app")
    own = main / ".git" / "worktrees" / "feat"
    own.mkdir(parents=True)
    (own / "commondir").write_text("../..\n")
    feat = make(tmp_path / "feat")
    pointer = Path(os.path.relpath(own, feat)) if relative else own
    (feat / ".git").write_text(f"gitdir: {pointer}\n")
    assert (git_directory(feat) or Path()).resolve() == main / ".git"
    assert find_project(feat).repository == find_project(main).repository == "https://git.test/acme/app"
    assert find_project(feat).id != find_project(main).id


def test_hostile_git_files_are_neither_waited_for_nor_believed(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    os.mkfifo(tmp_path / ".git" / "config")
    assert repository_identity(tmp_path) == ""
    other = make(tmp_path / "other")
    (other / ".git").write_text("gitdir: /dev/zero\n")
    assert repository_identity(other) == ""
    third = make(tmp_path / "third")
    (third / ".git").write_bytes(b"x" * (2 * 1024 * 1024))
    assert repository_identity(third) == ""


def test_a_spec_that_is_a_pipe_or_a_directory_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(SpecError, match=r"no plain file|is a directory"):
            read_spec(path)


def test_any_path_has_a_name_and_a_slug() -> None:
    assert slug("") == "project"
    assert slug("Ünï  Cödé!") == "uni-code"
    assert len(slug("x" * 300)) <= 20
    assert Project(root=Path("/"), spec_path=None, repository="").compose_name.startswith("ac-root-")
    assert find_project(Path("/")).root == Path("/")
