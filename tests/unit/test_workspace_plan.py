"""A bound workspace as a list of mounts, and what mounts cannot hold."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from agent_container.errors import UsageError
from agent_container.workspace.mounts import HostPaths
from agent_container.workspace.plan import WorkspacePlan, plan_workspace
from agent_container.workspace.prepare import write_files
from agent_container.workspace.protected import changed_protected, expand, protected_state
from agent_container.workspace.tree import Nested, TreeFacts


def write(path: Path, text: str = "x\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def facts(tmp_path: Path) -> TreeFacts:
    root = tmp_path / "project"
    for name in (
        ".git/HEAD",
        ".vscode/tasks.json",
        "ops/prod/deploy.sh",
        ".env",
        "keys/a",
        "lib/one/.git",
        "two/.git/HEAD",
    ):
        write(root / name)
    git = root / ".git"
    nested = (
        Nested(root / "lib/one/.git", "file", git / "modules/one"),
        Nested(root / "lost/.git", "file", None),
        Nested(root / "two/.git", "directory", root / "two/.git"),
    )
    write(root / "lost/.git")
    return TreeFacts(
        root=root,
        kind="git",
        git_dir=git,
        common_dir=git,
        dotgit="directory",
        nested=nested,
        owner_uid=1234,
        owner_gid=99,
    )


def plan(facts: TreeFacts, mode: str = "bind", **options: object) -> WorkspacePlan:
    home = facts.root.parent / "home"
    home.mkdir(exist_ok=True)
    host = HostPaths(home=home, stores=())
    return plan_workspace(facts, mode=mode, host=host, user="1001:1001", directory=Path("/s"), **options)  # type: ignore[arg-type]


def rows(made: WorkspacePlan, root: Path) -> list[str]:
    return [
        f"{m.kind} {m.source.removeprefix(str(root))} {m.target} {'ro' if m.read_only else 'rw'}" for m in made.mounts
    ]


def test_a_bound_repository(facts: TreeFacts) -> None:
    made = plan(facts, protect=("ops/*/deploy.sh", "absent"), hide=(".env", "keys", "absent.env"))
    assert rows(made, facts.root) == [
        "bind  /workspace rw",
        "bind /s/empty /workspace/.env ro",
        "volume git /workspace/.git rw",
        "bind /.vscode /workspace/.vscode ro",
        "bind /s/empty.d /workspace/keys ro",
        "bind /lib /workspace/lib rw",
        "bind /lib/one /workspace/lib/one rw",
        "bind /s/gitdir-0 /workspace/lib/one/.git ro",
        "bind /lost /workspace/lost rw",
        "bind /lost/.git /workspace/lost/.git ro",
        "bind /ops /workspace/ops rw",
        "bind /ops/prod /workspace/ops/prod rw",
        "bind /ops/prod/deploy.sh /workspace/ops/prod/deploy.sh ro",
        "bind /two /workspace/two rw",
        "volume git-2 /workspace/two/.git rw",
    ]
    assert (made.user, made.volumes, made.git_dir) == ("1234:99", ("git", "git-2"), None)
    assert dict(made.files)["gitdir-0"] == "gitdir: /workspace/.git/modules/one\n"
    assert [(one.volume, one.inside, one.work_tree) for one in made.git_dirs] == [
        ("git", "", None),
        ("git", "modules/one", "/workspace/lib/one"),
        ("git-2", "", None),
    ]
    assert made.covered == (".vscode", "ops/prod/deploy.sh")
    assert made.warnings == ("lost/.git leads to no repository of this project; git will not work in lost",)
    named = made.named({"git": "vol-a", "git-2": "vol-b"})
    assert [mount.source for mount in named if mount.kind == "volume"] == ["vol-a", "vol-b"]


def test_a_bound_worktree_has_its_git_directory_beside_it(facts: TreeFacts) -> None:
    main = facts.root.parent / "main/.git"
    (main / "worktrees/x").mkdir(parents=True)
    linked = dataclasses.replace(facts, dotgit="file", git_dir=main / "worktrees/x", common_dir=main, nested=())
    made = plan(linked)
    assert "volume git /var/lib/agent-container/git rw" in rows(made, facts.root)
    assert "bind /s/gitdir /workspace/.git ro" in rows(made, facts.root)
    assert dict(made.files) == {"gitdir": "gitdir: /var/lib/agent-container/git\n"}
    assert made.git_dir == "/var/lib/agent-container/git"
    assert made.git_dirs[0].work_tree == "/workspace"


def test_a_clone_is_one_volume_whatever_the_project_holds(facts: TreeFacts) -> None:
    made = plan(dataclasses.replace(facts, owner_uid=0, special_files=(facts.root / "socket",)), mode="clone")
    assert rows(made, facts.root) == ["volume workspace /workspace rw"]
    assert made.user == "1001:1001"
    assert len(made.warnings) == 3


@pytest.mark.parametrize(
    ("change", "mode", "words"),
    [
        ({"owner_uid": 0}, "bind", "never runs as root"),
        ({"special_files": (Path("/p/socket"),)}, "bind", "sockets, FIFOs or devices"),
        ({"alternates": (Path("/srv/mirror/objects"),)}, "clone", "borrows objects from /srv/mirror/objects"),
        ({"enclosing": Path("/srv/mono")}, "clone", "inside the git repository /srv/mono"),
        ({"git_dir": Path("/run/x"), "common_dir": Path("/run/x")}, "clone", "git directory /run/x may not be seen"),
        ({"nested": (None,) * 101}, "bind", "more than 100"),
    ],
)
def test_refused_with_the_cure(facts: TreeFacts, change: dict[str, object], mode: str, words: str) -> None:
    if "special_files" in change:
        change = {"special_files": (facts.root / "socket",)}
    with pytest.raises(UsageError, match=words):
        plan(dataclasses.replace(facts, **change), mode=mode)  # type: ignore[arg-type]


def test_the_home_directory_is_no_workspace_in_any_mode(facts: TreeFacts) -> None:
    home = HostPaths(home=facts.root, stores=())
    for mode in ("bind", "clone"):
        with pytest.raises(UsageError, match="may not be a workspace"):
            plan_workspace(facts, mode=mode, host=home, user="1:1", directory=Path("/s"))  # type: ignore[arg-type]


def test_a_link_is_neither_protected_nor_hidden_by_a_mount_but_compared(facts: TreeFacts) -> None:
    outside = write(facts.root.parent / "outside/settings.json").parent
    (facts.root / ".claude").symlink_to(outside)
    (facts.root / ".idea").symlink_to("/nowhere")
    made = plan(facts, hide=(".claude/settings.json",))
    assert not any(".claude" in mount.target or ".idea" in mount.target for mount in made.mounts)
    before = protected_state(facts.root, made.protect, covered=made.covered)
    assert {".claude", ".idea"} <= set(before)
    (facts.root / ".claude").unlink()
    (facts.root / ".claude").symlink_to("/elsewhere")
    after = protected_state(facts.root, made.protect, covered=made.covered)
    assert changed_protected(before, after) == (".claude",)


def test_files_of_a_plan_are_written_once_and_stay_the_same_file(facts: TreeFacts, tmp_path: Path) -> None:
    made = plan(facts, hide=(".env", "keys"))
    session = tmp_path / "session"
    session.mkdir()
    write_files(made, session)
    before = {path.name: path.stat().st_ino for path in session.iterdir()}
    write_files(made, session)
    assert {path.name: path.stat().st_ino for path in session.iterdir()} == before
    assert set(before) == {"empty", "empty.d", "gitdir-0"}


def test_globs_match_within_one_component_and_never_through_a_link(tmp_path: Path) -> None:
    for name in ("a/x.env", "b/x.env", "b/c/x.env", "x.env"):
        write(tmp_path / name)
    (tmp_path / "link").symlink_to("a")
    assert expand(tmp_path, ["*/x.env", "?/c/*.env", "link/x.env", "none"]) == ("a/x.env", "b/x.env", "b/c/x.env")


PROTECT = (".husky", ".claude/settings*.json")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".husky/pre-commit", ".husky"),
        (".claude/settings.local.json", ".claude/settings.local.json"),
        (".git/config", ".git"),
        ("deep/down/.git/HEAD", "deep/down/.git"),
        ("deep/.GIT", "deep/.GIT"),
        (".claude/notes.md", None),
        ("src/new.py", None),
    ],
)
def test_what_came_is_named(tmp_path: Path, path: str, expected: str | None) -> None:
    before = protected_state(tmp_path, PROTECT, covered=())
    write(tmp_path / path)
    after = protected_state(tmp_path, PROTECT, covered=())
    assert changed_protected(before, after) == ((expected,) if expected else ())
    assert changed_protected(after, before) == changed_protected(before, after)


def test_a_change_of_content_mode_or_kind_is_named_and_covered_paths_are_not_looked_at(tmp_path: Path) -> None:
    hook = write(tmp_path / ".husky/deep/hook")
    states = [protected_state(tmp_path, PROTECT, covered=())]
    hook.write_text("y\n")
    states.append(protected_state(tmp_path, PROTECT, covered=()))
    hook.chmod(0o755)
    states.append(protected_state(tmp_path, PROTECT, covered=()))
    hook.unlink()
    hook.symlink_to("/etc/passwd")
    states.append(protected_state(tmp_path, PROTECT, covered=()))
    assert [changed_protected(one, other) for one, other in zip(states, states[1:], strict=False)] == [(".husky",)] * 3
    assert protected_state(tmp_path, PROTECT, covered=(".husky",)) == {}
