"""Bound workspaces on a real engine: the agent works in the user's tree and cannot reach what the host obeys."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_container.workspace.protected import changed_protected, protected_state
from agent_container.workspace.result import apply_result
from tests.support.workspace import RUN, Bench, build_image, git, give, repository, write

PROOF = Path("/tmp") / f"acw-pwn-{secrets.token_hex(6)}"


@pytest.fixture(scope="module", autouse=True)
def image() -> None:
    build_image()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.remove_volumes()
    ran = PROOF.exists()
    PROOF.unlink(missing_ok=True)
    assert not ran, "a planted program ran on the host"


def test_the_agent_sees_the_tree_as_it_is_with_a_git_directory_of_its_own(bench: Bench) -> None:
    tree = repository(bench.path / "repo", gone="x\n")
    git(tree, "remote", "add", "origin", "https://user:token@git.test/acme/api.git")
    write(tree / "staged", "staged\n")
    git(tree, "add", "staged")
    write(tree / "README", "edited\n")
    write(tree / "new", "new\n")
    (tree / "gone").unlink()
    give(tree)
    session = bench.open(tree, "bind")
    assert session.agent("git status --porcelain; git symbolic-ref HEAD; git remote get-url origin") == (
        "M README\n D gone\nA  staged\n?? new\nrefs/heads/main\nhttps://git.test/acme/api.git"
    )
    before = git(tree, "rev-parse", "HEAD")
    session.agent("git add -A; git commit -qm everything; echo more > more; git stash list")
    assert (tree / "more").read_text() == "more\n"
    assert git(tree, "rev-parse", "HEAD") == before
    assert (tree / "more").stat().st_uid == tree.stat().st_uid

    work = session.collect()
    assert (work.commits, work.uncommitted, work.files_changed) == (1, True, 1)
    assert "+more" in session.patch
    result = apply_result(
        bench.throwaway,
        session.facts,
        session.bundle,
        run=RUN,
        base=session.base,
        environ=os.environ,
        bound=True,
    )
    assert result.next_command == f"git reset agent/{RUN}"
    git(tree, "reset", "-q", f"agent/{RUN}")
    assert git(tree, "status", "--porcelain") == ""


def test_what_is_planted_in_git_or_beside_it_stays_in_the_sandbox(bench: Bench) -> None:
    tree = repository(bench.path / "repo")
    session = bench.open(tree, "bind")
    session.agent(
        f"""
        printf '#!/bin/sh\\ntouch {PROOF}\\n' > x.sh; chmod +x x.sh
        mkdir -p .git/hooks; cp x.sh .git/hooks/post-checkout; cp x.sh .git/hooks/pre-commit
        git config core.fsmonitor "$PWD/x.sh"; git config core.hooksPath .husky; git config filter.a.clean "$PWD/x.sh"
        echo '* filter=a' > .gitattributes; echo x > .lfsconfig; echo x > .envrc
        ! mv .git .git2; ! rm -rf .git; echo '/etc' > .git/commondir || true; rm -f .git/commondir
        """
    )
    assert git(tree, "status", "--porcelain").splitlines() == [
        "?? .envrc",
        "?? .gitattributes",
        "?? .lfsconfig",
        "?? x.sh",
    ]
    git(tree, "commit", "-q", "--allow-empty", "-m", "mine")
    assert [path.name for path in (tree / ".git/hooks").glob("*") if not path.name.endswith(".sample")] == []
    assert not (tree / ".git/commondir").exists()
    kinds = {row.path: row.kind for row in session.collect().sensitive}
    assert kinds == {".envrc": "shell environment", ".gitattributes": "git settings", ".lfsconfig": "git settings"}


def test_protected_paths_are_read_only_hidden_ones_empty_and_their_parents_stay_in_place(bench: Bench) -> None:
    tree = repository(
        bench.path / "repo",
        **{
            ".vscode/tasks.json": "{}\n",
            ".claude/settings.json": "{}\n",
            "agent-container.yaml": "version: 1\n",
            "ops/prod/deploy.sh": "deploy\n",
            "ops/prod/notes": "notes\n",
        },
    )
    write(tree / ".env", "SECRET=1\n")
    write(tree / "keys/private/a", "SECRET\n")
    give(tree)
    session = bench.open(tree, "bind", protect=["ops/*/deploy.sh"], hide=[".env", "keys/private"])
    assert (
        session.agent(
            "cat .env; ls -A keys/private; cat ops/prod/deploy.sh; echo mine > .claude/own; echo n >> ops/prod/notes"
        )
        == "deploy"
    )
    for attempt in (
        "echo x > .vscode/tasks.json",
        "echo x > .vscode/new.json",
        "echo x > .claude/settings.json",
        "echo x > agent-container.yaml",
        "mv agent-container.yaml other",
        "rm -f agent-container.yaml",
        "echo x > ops/prod/deploy.sh",
        "mv ops ops2",
        "mv ops/prod ops/prod2",
        "mv .claude .claude2",
        "mv .vscode .vscode2",
        "echo x > .env",
        "mv keys keys2",
    ):
        assert session.try_agent(attempt).exit_code != 0, attempt
    assert (tree / ".env").read_text() == "SECRET=1\n"
    work = session.collect()
    assert "SECRET" not in session.patch
    assert work.files_changed == 2
    assert git(tree, "status", "--porcelain").splitlines() == [
        "M ops/prod/notes",
        "?? .claude/own",
        "?? .env",
        "?? keys/",
    ]


def test_what_was_absent_and_what_is_a_link_is_compared_afterwards(bench: Bench) -> None:
    tree = bench.path / "plain"
    write(tree / "file", "x\n")
    write(tree / ".idea/x", "x\n")
    write(bench.path / "shared/tasks.json", "{}\n")
    (tree / ".vscode").symlink_to(bench.path / "shared")
    give(tree)
    session = bench.open(tree, "bind")
    assert session.plan.covered == (".idea",)

    def state() -> dict[str, str]:
        return protected_state(tree, session.plan.protect, covered=session.plan.covered)

    before = state()
    session.agent("echo y > file")
    assert changed_protected(before, state()) == ()
    session.agent(
        """
        mkdir .husky; echo x > .husky/pre-commit; git init -q; git init -q sub/deep
        rm .vscode; mkdir .vscode; echo x > .vscode/tasks.json; mkdir .claude; echo x > .claude/settings.local.json
        """
    )
    assert changed_protected(before, state()) == (
        ".claude/settings.local.json",
        ".git",
        ".husky",
        ".vscode",
        "sub/deep/.git",
    )
    assert (bench.path / "shared/tasks.json").read_text() == "{}\n"


def test_submodules_and_repositories_inside_have_private_git_directories_too(bench: Bench) -> None:
    library = repository(bench.path / "library")
    tree = repository(bench.path / "repo")
    git(tree, "submodule", "add", "-q", str(library), "libs/one")
    git(tree, "commit", "-qm", "submodule")
    repository(tree / "vendor/two")
    write(tree / "vendor/two/.git/hooks/pre-commit", "exit 1\n")
    give(tree)
    session = bench.open(tree, "bind")
    assert (
        session.agent(
            "cd libs/one; git status --porcelain; git log --format=%s; cd ../../vendor/two; git log --format=%s"
        )
        == "first\nfirst"
    )
    session.agent(
        f"""
        printf '#!/bin/sh\\ntouch {PROOF}\\n' > x.sh; chmod +x x.sh
        for repo in libs/one vendor/two; do
            cd $repo
            git config core.fsmonitor /workspace/x.sh; git config filter.a.clean /workspace/x.sh
            echo '* filter=a' > .gitattributes; echo change >> README
            ! mv .git .git2; cd ..; ! mv ../$repo ../$repo.2; cd ..
        done
        cd libs/one; ! echo 'gitdir: ../../evil' > .git
        """
    )
    git(tree, "status")
    git(tree / "libs/one", "status")
    git(tree / "vendor/two", "status")
    assert "x.sh" not in (tree / "vendor/two/.git/config").read_text()
    assert "x.sh" not in (tree / ".git/modules/libs/one/config").read_text()
    session.agent(
        "cd libs/one; git config --unset core.fsmonitor; git config --unset filter.a.clean; git commit -qam sub"
    )
    work = session.collect()
    assert work.submodules == ("libs/one",)
    assert any("libs/one" in word for word in work.left_behind)


@pytest.mark.parametrize("kind", ["worktree", "worktree of a bare repository"])
def test_a_linked_worktree_is_bound_with_a_pointer_of_ours(bench: Bench, kind: str) -> None:
    main = repository(bench.path / "main")
    if kind != "worktree":
        git(main, "clone", "-q", "--bare", str(main), str(bench.path / "main.git"))
        main = bench.path / "main.git"
    tree = bench.path / "feat"
    git(main, "worktree", "add", "-q", "-b", "feat", str(tree))
    give(main, tree)
    pointer = (tree / ".git").read_text()
    session = bench.open(tree, "bind")
    assert session.agent("git status --short --branch; git rev-parse --show-toplevel") == "## feat\n/workspace"
    session.agent("git commit -q --allow-empty -m x; echo y > y; ! echo x > .git; ! rm -f .git; ! mv .git g")
    assert (tree / ".git").read_text() == pointer
    work = session.collect()
    assert (work.commits, work.files_changed) == (1, 1)
    assert session.fetch() == f"refs/agent-runs/{RUN}"
    assert git(tree, "status", "--porcelain") == "?? y"


def test_preparing_again_brings_the_projects_new_commits_and_moves_nothing_of_the_agents(bench: Bench) -> None:
    tree = repository(bench.path / "repo")
    session = bench.open(tree, "bind")
    session.agent(
        "git checkout -q -b own; git commit -q --allow-empty -m agent;"
        " git config core.fsmonitor 'touch /workspace/ran; true'"
    )
    write(tree / "later", "later\n")
    git(tree, "add", "later")
    git(tree, "commit", "-qm", "later")
    give(tree)
    again = bench.open(tree, "bind")
    assert again.agent(
        "git config --unset core.fsmonitor; git log --format=%s; git symbolic-ref --short HEAD;"
        " git log -1 --format=%s host/main"
    ) == ("agent\nfirst\nown\nlater")
    assert not (tree / "ran").exists()
    assert again.base == git(tree, "rev-parse", "HEAD")


def test_nothing_is_created_on_the_host_by_mounting(bench: Bench) -> None:
    tree = repository(bench.path / "repo")
    session = bench.open(tree, "bind", protect=["absent/dir"], hide=["absent.env"])
    listing = sorted(path.name for path in tree.iterdir())
    session.agent("true")
    assert sorted(path.name for path in tree.iterdir()) == listing == [".git", "README", "src"]
