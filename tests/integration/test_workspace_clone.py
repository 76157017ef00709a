"""Clones on a real engine: what comes along, what comes back, and that nothing hostile runs on the way."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_container.errors import AgentContainerError, UsageError
from tests.support.workspace import RUN, Bench, build_image, git, give, repository, write

BRANCH = f"agent/{RUN}"


@pytest.fixture(scope="module", autouse=True)
def image() -> None:
    build_image()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.remove_volumes()


def test_a_clone_holds_commits_branches_and_uncommitted_work_but_no_secret_of_the_configuration(bench: Bench) -> None:
    tree = repository(bench.path / "repo", **{".gitignore": "ignored\n", "gone": "x\n"})
    git(tree, "remote", "add", "origin", "https://user:token@git.test/acme/api.git?private_token=1")
    git(tree, "remote", "add", "ssh", "git@git.test:acme/api.git")
    git(tree, "remote", "add", "helper", "ext::sh -c 'touch /tmp/pwn'")
    git(tree, "config", "http.https://git.test/.extraheader", "AUTHORIZATION: basic c2VjcmV0")
    git(tree, "config", "url.https://token@git.test/.insteadOf", "acme:")
    git(tree, "branch", "other")
    git(tree, "tag", "v1")
    write(tree / "README", "hello\nedited\n")
    write(tree / "staged", "staged\n")
    git(tree, "add", "staged")
    write(tree / "dir with blank/é", "untracked\n")
    write(tree / "ignored", "not for you\n")
    write(tree / ".env", "SECRET=1\n")
    (tree / "gone").unlink()
    give(tree)

    session = bench.open(tree, "clone", hide=[".env"])

    assert session.agent("git symbolic-ref --short HEAD; git status --porcelain; git log --format=%s") == (
        f"{BRANCH}\nagent-container base\nfirst"
    )
    assert session.agent("cat README staged 'dir with blank/é'; ls -A") == (
        "hello\nedited\nstaged\nuntracked\n.git\n.gitignore\nREADME\ndir with blank\nsrc\nstaged"
    )
    assert session.agent("git tag; git branch --format='%(refname:short)'") == f"v1\n{BRANCH}\nmain\nother"
    assert session.agent("git remote -v | grep fetch") == (
        "origin\thttps://git.test/acme/api.git (fetch)\nssh\tgit@git.test:acme/api.git (fetch)"
    )
    assert session.try_agent("cat .git/config | grep -E 'token|secret|extraheader|ext::|c2Vj'").exit_code == 1
    assert git(tree, "status", "--porcelain").splitlines() == [
        "M README",
        " D gone",
        "A  staged",
        "?? .env",
        '?? "dir with blank/"',
    ]


def test_committed_leaves_uncommitted_work_behind(bench: Bench) -> None:
    tree = repository(bench.path / "repo")
    write(tree / "README", "edited\n")
    session = bench.open(tree, "clone", committed=True)
    assert session.base == git(tree, "rev-parse", "HEAD")
    assert session.agent("cat README; git status --porcelain") == "hello"


def test_commits_and_uncommitted_work_come_back_and_what_would_be_lost_is_named(bench: Bench) -> None:
    tree = repository(bench.path / "repo")
    session = bench.open(tree, "clone")
    session.agent(
        """
        echo one > one; git add one; git commit -qm one
        git checkout -qb aside; echo aside > aside; git add aside; git commit -qm aside; git checkout -q -
        echo stashed >> README; git stash -q
        git worktree add -q ../workspace/wt
        git init -q nested; echo x > nested/x
        printf 'two\\n' > two; printf '\\0\\1\\2' > binary; rm src/app.py; ln -s two link; chmod +x two
        mkdir -p .github/workflows .vscode; echo on > .github/workflows/ci.yml; echo '{}' > .vscode/tasks.json
        echo '*.x filter=y' > .gitattributes; ln -s /etc/passwd out; ln -s .git/hooks hooks
        """
    )
    work = session.collect()
    assert (work.base_missing, work.commits, work.uncommitted, work.files_changed) == (False, 1, True, 10)
    assert {(row.path, row.kind) for row in work.sensitive} == {
        (".github/workflows/ci.yml", "CI"),
        (".vscode/tasks.json", "editor settings"),
        (".gitattributes", "git settings"),
        ("out", "link out of the tree"),
        ("hooks", "link out of the tree"),
    }
    assert (work.branches, len(work.stashes), work.worktrees, work.nested) == (
        ("aside",),
        1,
        ("/workspace/wt",),
        ("nested",),
    )
    assert len(work.left_behind) == 4

    assert session.fetch() == f"refs/agent-runs/{RUN}"
    assert git(tree, "rev-parse", f"refs/agent-runs/{RUN}") == work.result
    assert git(tree, "show", f"refs/agent-runs/{RUN}:two") == "two"
    assert git(tree, "status", "--porcelain") == ""
    git(tree, "checkout", "-q", "-b", "check", session.base)
    git(tree, "apply", "--index", str(bench.path / "workspace.patch"))
    assert git(tree, "write-tree") == git(tree, "rev-parse", f"{work.result}^{{tree}}")


def test_no_work_means_no_bundle(bench: Bench) -> None:
    session = bench.open(repository(bench.path / "repo"), "clone")
    work = session.collect()
    assert (work.result, work.files_changed, work.commits, work.uncommitted) == (session.base, 0, 0, False)
    assert not session.bundle.exists()


def test_a_repository_without_commits_works(bench: Bench) -> None:
    tree = bench.path / "repo"
    tree.mkdir()
    git(tree, "init", "-q")
    write(tree / "first", "first\n")
    give(tree)
    session = bench.open(tree, "clone")
    session.agent("cat first; echo more > more; git add more; git commit -qm more")
    work = session.collect()
    assert (work.commits, work.files_changed) == (1, 1)
    session.fetch()
    assert git(tree, "log", "--format=%s", f"refs/agent-runs/{RUN}") == "more\nagent-container base"


def test_a_directory_without_git_is_copied_and_its_first_state_is_no_part_of_the_work(bench: Bench) -> None:
    tree = bench.path / "plain"
    write(tree / "kept/file", "kept\n")
    write(tree / "run.sh", "#!/bin/sh\n").chmod(0o755)
    write(tree / "nested/.git/config", '[remote "origin"]\n\turl = https://u:p@git.test/x\n[core]\n\tfsmonitor = ./x\n')
    (tree / "nested/.git/objects").mkdir()
    write(tree / "nested/.git/hooks/post-checkout", "touch /tmp/pwn")
    (tree / "link").symlink_to("kept/file")
    (tree / "dangling").symlink_to("/nowhere")
    (tree / "empty").mkdir()
    os.mkfifo(tree / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(tree)
        listener.bind("socket")
        os.chdir("/")
    give(tree)
    session = bench.open(tree, "clone")
    assert session.agent(
        "ls -A; readlink link dangling; test -x run.sh; git log --format=%s; git status --porcelain"
    ) == (".git\ndangling\nempty\nkept\nlink\nnested\nrun.sh\nkept/file\n/nowhere\nagent-container base")
    assert (
        session.agent("cat nested/.git/config; ls nested/.git")
        == '[remote "origin"]\n\turl = "https://git.test/x"\nconfig\nobjects'
    )
    session.agent("echo new > new; git add new; git commit -qm new; echo more >> kept/file")
    work = session.collect()
    assert (work.commits, work.uncommitted, work.files_changed) == (1, True, 2)
    assert "new file" in session.patch
    with pytest.raises(UsageError, match="no git repository"):
        session.fetch()


NAMES = ["Projet été n°1/ré po", "nfd-e\u0301", "acme:api", "-a,b=c $HOME'\""]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_a_directory_works_there_and_back(bench: Bench, name: str) -> None:
    tree = repository(bench.path / name)
    write(tree / f"{Path(name).name}.txt", "x\n")
    give(tree)
    session = bench.open(tree, "clone")
    session.agent("ls ./*.txt; echo y > y")
    work = session.collect()
    assert work.files_changed == 1
    session.fetch()
    assert git(tree, "rev-parse", f"refs/agent-runs/{RUN}") == work.result


def test_names_that_are_no_utf8_survive_under_the_c_locale(bench: Bench) -> None:
    tree = repository(bench.path / "été")
    (Path(os.fsdecode(os.fsencode(tree) + b"/latin-\xe9"))).write_text("x\n")
    give(tree)
    script = f"""
import os, sys
from pathlib import Path
from tests.support.workspace import *
bench = Bench(Path(os.fsdecode({os.fsencode(bench.path / "inner")!r})))
try:
    session = bench.open(Path(os.fsdecode({os.fsencode(tree)!r})), "clone")
    session.agent("ls | grep -q latin; printf y > \\"$(printf 'neu-\\\\344')\\"")
    print(ascii(session.collect().files_changed))
    assert b"neu-" in (bench.path / "workspace.patch").read_bytes()
finally:
    bench.remove_volumes()
"""
    (bench.path / "inner").mkdir()
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=Path(__file__).parents[2], capture_output=True, check=False
    )
    assert (done.stdout, done.returncode) == (b"1\n", 0), done.stderr.decode()


def relative_pointers(tree: Path) -> None:
    """What `worktree.useRelativePaths` writes, for a git that does not know it yet."""
    admin = Path((tree / ".git").read_text().removeprefix("gitdir:").strip())
    (tree / ".git").write_text(f"gitdir: {os.path.relpath(admin, tree)}\n")
    (admin / "gitdir").write_text(f"{os.path.relpath(tree / '.git', admin)}\n")


@pytest.mark.parametrize("kind", ["absolute", "relative", "bare main"])
def test_a_linked_worktree_is_a_project_like_any_other(bench: Bench, kind: str) -> None:
    main = repository(bench.path / "main")
    if kind == "bare main":
        git(main, "clone", "-q", "--bare", str(main), str(bench.path / "main.git"))
        main = bench.path / "main.git"
    tree = bench.path / "feat"
    git(main, "worktree", "add", "-q", "-b", "feat", str(tree))
    if kind == "relative":
        relative_pointers(tree)
    write(tree / "new", "new\n")
    give(tree, main)
    session = bench.open(tree, "clone")
    assert session.facts.is_worktree
    session.agent("cat new; git status; git commit --allow-empty -qm x; echo y > y")
    work = session.collect()
    assert (work.commits, work.files_changed) == (1, 1)
    session.fetch()
    assert git(main, "rev-parse", f"refs/agent-runs/{RUN}") == work.result
    assert git(tree, "status", "--porcelain") == "?? new"


def test_a_sha256_and_a_shallow_repository_work(bench: Bench) -> None:
    tree = bench.path / "sha256"
    tree.mkdir()
    git(tree, "init", "-q", "--object-format=sha256")
    write(tree / "a", "a\n")
    git(tree, "add", "a")
    git(tree, "commit", "-qm", "a")
    upstream = repository(bench.path / "upstream")
    git(upstream, "commit", "--allow-empty", "-qm", "second")
    shallow = bench.path / "shallow"
    git(upstream, "clone", "-q", "--depth=1", f"file://{upstream}", str(shallow))
    give(tree, shallow)
    for project in (tree, shallow):
        session = bench.open(project, "clone")
        session.agent("git log --oneline | wc -l; echo b > b")
        assert session.collect().files_changed == 1
        session.fetch()
        bench.remove_volumes()
        bench.volumes.clear()


def test_a_volume_that_is_not_empty_is_never_overwritten(bench: Bench) -> None:
    tree = repository(bench.path / "repo")
    bench.open(tree, "clone").agent("echo work > work")
    with pytest.raises(AgentContainerError) as caught:
        bench.open(tree, "clone")
    assert "not empty" in caught.value.details[0]
