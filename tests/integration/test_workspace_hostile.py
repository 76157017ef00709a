"""Trees that an agent, or whoever made the project, has prepared: nothing of them runs, neither on the host nor in the
container that reads them.

Every planted program would leave a proof file on the host, or the word PWNED in what is collected.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_container.engine.protocol import Once
from agent_container.errors import AgentContainerError, ApprovalNeeded, UsageError
from agent_container.workspace.result import apply_result
from agent_container.workspace.throwaway import read_tar
from agent_container.workspace.transfer import Work, parse_model
from tests.support.workspace import (
    AGENT_ENVIRONMENT,
    LABELS,
    RUN,
    TAG,
    USER,
    Bench,
    build_image,
    git,
    give,
    repository,
    write,
)

PROOF = Path("/tmp") / f"acw-pwn-{secrets.token_hex(6)}"
EVIL = f"#!/bin/sh\ntouch {PROOF}\necho PWNED\n"
PLANT = f"printf '#!/bin/sh\\ntouch {PROOF}\\necho PWNED\\n' > evil.sh; chmod +x evil.sh; E=$PWD/evil.sh\n"
THERE = f"""
mkdir /tmp/ws; cd /tmp/ws; git init -q -b agent/{RUN}; echo hello > README; git add -A; git commit -qm first
base=$(git rev-parse HEAD)
{PLANT}
( SCRIPT )
cd /tmp; rm -f {PROOF}
timeout 100 /opt/agent-container/workspace collect --run {RUN} --base $base --have $base /tmp/ws > /tmp/out.tar
if test -e {PROOF}; then echo 'a planted program ran' >&2; exit 9; fi
cat /tmp/out.tar
"""


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


def collect_there(bench: Bench, script: str) -> tuple[Work, str]:
    """Plants and collects in one container, which itself looks for the proof; the summary and the patch."""
    done = bench.engine.run_once(
        Once(
            image=TAG,
            argv=("/bin/sh", "-euc", THERE.replace("SCRIPT", script)),
            user=USER,
            labels=LABELS,
            environment=AGENT_ENVIRONMENT,
        )
    )
    assert done.exit_code == 0, done.stderr.decode()
    tar, patch = bench.path / "there.tar", bench.path / "there.patch"
    tar.write_bytes(done.stdout)
    wanted = {"workspace.patch": patch, "workspace.bundle": bench.path / "there.bundle"}
    work = parse_model(Work, read_tar(tar, wanted=wanted, max_bytes=1 << 24))
    return work, patch.read_text("utf-8", "surrogateescape")


PLANTED = {
    "a clean filter": (
        "echo 'x filter=a' > .gitattributes; git config filter.a.clean $E; "
        "git config filter.a.required true; echo x > x"
    ),
    "a process filter": "echo 'x filter=a' > .gitattributes; git config filter.a.process $E; echo x > x",
    "a smudge filter": (
        "echo 'x filter=a' > .gitattributes; git config filter.a.smudge $E; echo x > x; git add x; git commit -qm x"
    ),
    "an fsmonitor": "git config core.fsmonitor $E; echo x > x",
    "a hooks path": (
        "git config core.hooksPath /tmp/ws/hooks; mkdir hooks; "
        "for h in post-checkout pre-commit reference-transaction post-index-change; do cp evil.sh hooks/$h; "
        "done; echo x > x"
    ),
    "hooks": (
        "mkdir -p .git/hooks; for h in post-checkout pre-commit reference-transaction post-index-change; "
        "do cp evil.sh .git/hooks/$h; done; echo x > x"
    ),
    "a textconv and an external diff": (
        "echo '* diff=a' > .gitattributes; git config diff.a.textconv $E; git config diff.a.command $E; "
        "git config diff.external $E; echo x > x"
    ),
    "an included configuration": (
        "printf '[core]\\nfsmonitor = /tmp/ws/evil.sh\\n' > inc; git config include.path /tmp/ws/inc; echo x > x"
    ),
    "an alias, an editor, a pager": (
        "git config alias.status '!/tmp/ws/evil.sh'; git config core.editor $E; git config core.pager $E; "
        "git config pager.diff $E; echo x > x"
    ),
    "a signing program": "git config commit.gpgsign true; git config gpg.program $E; echo x > x",
    "a credential helper and a proxy": (
        "git config credential.helper $E; git config core.gitProxy $E; git config core.sshCommand $E; echo x > x"
    ),
    "an alternate refs command": (
        "git config core.alternateRefsCommand $E; mkdir -p .git/objects/info; "
        "echo /tmp/ws/.git/objects > .git/objects/info/alternates; echo x > x"
    ),
    "a merge driver": "echo '* merge=a' > .gitattributes; git config merge.a.driver $E; echo x > x",
    "a partial clone with a helper": (
        "git config remote.evil.url 'ext::/tmp/ws/evil.sh'; git config remote.evil.promisor true; "
        "git config extensions.partialClone evil; git config core.repositoryFormatVersion 1; echo x > x"
    ),
    "a work tree elsewhere": "git config core.worktree /etc; echo x > x",
    "a submodule's filter": (
        "git init -q sub; cd sub; echo x > x; git add x; git commit -qm x; cd ..; git add sub; git commit -qm sub; "
        "cd sub; echo 'x filter=a' > .gitattributes; git config filter.a.clean $E; "
        "git config core.fsmonitor $E; echo y >> x; touch -d 2001-01-01 x"
    ),
    "a replaced object": "git replace -f HEAD $(git commit-tree HEAD^{tree} -m PWNED); echo x > x",
}


@pytest.mark.parametrize("script", PLANTED.values(), ids=PLANTED)
def test_what_is_planted_does_not_even_run_in_the_container_that_collects(bench: Bench, script: str) -> None:
    work, patch = collect_there(bench, script)
    assert not work.incomplete
    assert "PWNED" not in patch.replace("+echo PWNED", "")
    assert "+++ b/x\n" in patch or work.submodules == ("sub",)


def test_a_workspace_full_of_plants_comes_back_and_nothing_of_it_runs_on_the_host(bench: Bench) -> None:
    tree = repository(bench.path / "repo")
    session = bench.open(tree, "clone")
    chosen = (
        "a clean filter",
        "a hooks path",
        "an fsmonitor",
        "a textconv and an external diff",
        "a submodule's filter",
    )
    plants = "; ".join(f"( {PLANTED[name]} )" for name in chosen)
    session.agent(f"{PLANT}{plants}".replace("/tmp/ws/", "/workspace/"))
    work = session.collect()
    assert not work.incomplete
    session.fetch()
    apply_result(
        bench.throwaway,
        session.facts,
        session.bundle,
        run=RUN,
        base=session.base,
        environ=os.environ,
        accept_sensitive=True,
    )
    git(tree, "status")
    git(tree, "merge", "-q", f"agent/{RUN}")
    assert (tree / "x").read_text() == "x\n"


BROKEN = {
    "no .git at all": "rm -rf .git",
    "a configuration that git cannot read": "echo '[[[' > .git/config",
    "a HEAD that is a FIFO": "rm .git/HEAD; mkfifo .git/HEAD",
    "a HEAD that leads nowhere": "echo 'ref: refs/heads/none' > .git/HEAD",
    "an index of garbage": "head -c 4096 /dev/urandom > .git/index",
    "an index that is a FIFO": "rm .git/index; mkfifo .git/index",
    "a common directory elsewhere": "mkdir /tmp/ws/c; echo /tmp/ws/c > .git/commondir",
    "a .git file that leads into itself": "rm -rf .git; echo 'gitdir: .' > .git",
    "a .git that is a link": "mv .git g; ln -s g .git",
    "objects that are gone": "rm -rf .git/objects; mkdir .git/objects",
    "a loop of alternates": "echo /tmp/ws/.git/objects > .git/objects/info/alternates",
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
def test_a_broken_repository_still_gives_up_its_files(bench: Bench, script: str) -> None:
    work, patch = collect_there(bench, f"echo work > work; {script}")
    assert "+work" in patch
    assert not work.incomplete


def test_a_workspace_without_git_still_comes_back_to_the_repository(bench: Bench) -> None:
    tree = repository(bench.path / "repo")
    session = bench.open(tree, "clone")
    session.agent("echo work > work; rm -rf .git")
    assert session.collect().base_missing
    session.fetch()
    assert git(tree, "show", f"refs/agent-runs/{RUN}:work") == "work"


def test_unreadable_and_special_files_are_named_or_left_and_never_waited_for(bench: Bench) -> None:
    session = bench.open(repository(bench.path / "repo"), "clone")
    session.agent(
        "mkfifo fifo; echo x > shut; chmod 0 shut; mkdir dark; echo x > dark/x; chmod 0 dark; echo y > y; "
        "rm README; mkfifo README"
    )
    work = session.collect()
    assert sorted(work.unreadable) == ["README", "dark/", "shut"]
    assert work.files_changed == 1
    assert "unreadable file dark/" in work.left_behind


def test_work_over_the_limit_is_named_and_nothing_of_it_is_taken_for_whole(bench: Bench) -> None:
    session = bench.open(repository(bench.path / "repo"), "clone")
    session.agent("head -c 3000000 /dev/urandom > big")
    work = session.collect(max_bytes=1_000_000)
    assert len(work.incomplete) == 2
    assert not session.bundle.exists()
    assert any("workspace.bundle" in word for word in work.left_behind)


# --- the project itself is hostile, or broken ------------------------------------------------------------------------


def test_what_stands_in_a_projects_own_configuration_does_not_run_when_it_is_cloned(bench: Bench) -> None:
    tree = repository(bench.path / "repo")
    evil = write(tree / "evil.sh", EVIL)
    evil.chmod(0o755)
    write(tree / ".gitattributes", "* filter=a\n")
    for key in ("filter.a.clean", "filter.a.smudge", "core.fsmonitor", "uploadpack.packObjectsHook", "core.sshCommand"):
        git(tree, "config", key, str(evil))
    for hook in ("post-checkout", "reference-transaction", "post-index-change"):
        write(tree / ".git/hooks" / hook, EVIL).chmod(0o755)
    give(tree)
    session = bench.open(tree, "clone")
    assert session.agent("cat README; git config --list --show-scope | grep -c evil.sh || true") == "hello\n0"


def pointer_to(path: Path) -> str:
    return f"gitdir: {path}\n"


def test_a_pointer_that_is_not_pointed_back_at_is_refused_by_name(bench: Bench) -> None:
    other = repository(bench.path / "private")
    git(other, "worktree", "add", "-q", str(bench.path / "linked"))
    for name, target in (("a", other / ".git"), ("b", other / ".git/worktrees/linked"), ("c", bench.path / "nowhere")):
        tree = bench.path / name
        write(tree / ".git", pointer_to(target))
        with pytest.raises(UsageError) as caught:
            bench.facts(tree)
        assert str(target) in str(caught.value)


def test_links_common_directories_and_alternates_that_lead_out_are_refused_by_name(bench: Bench) -> None:
    other = repository(bench.path / "private")
    link = bench.path / "link"
    link.mkdir()
    (link / ".git").symlink_to(other / ".git")
    with pytest.raises(UsageError, match="link to"):
        bench.facts(link)
    common = repository(bench.path / "common")
    write(common / ".git/commondir", f"{other}/.git\n")
    with pytest.raises(UsageError, match="commondir"):
        bench.facts(common)
    reference = bench.path / "reference"
    git(other, "clone", "-q", "--reference", str(other), str(other), str(reference))
    with pytest.raises(UsageError, match="borrows objects") as caught:
        bench.open(reference, "clone")
    assert str(other / ".git/objects") in str(caught.value)


# --- the way into the user's repository ------------------------------------------------------------------------------


def test_a_bundle_is_checked_before_git_sees_it(bench: Bench) -> None:
    tree = repository(bench.path / "repo")
    session = bench.open(tree, "clone")
    session.agent("echo x > x")
    session.collect()
    with pytest.raises(AgentContainerError, match="more than 100"):
        session.review(session.bundle, max_bytes=100)
    other = bench.path / "other.bundle"
    git(tree, "bundle", "create", "-q", str(other), "main")
    with pytest.raises(AgentContainerError, match="other refs"):
        session.review(other)
    other.write_bytes(b"nothing\n")
    with pytest.raises(AgentContainerError, match="no git bundle"):
        session.review(other)
    body = bytearray(session.bundle.read_bytes())
    body[-40] ^= 0xFF
    other.write_bytes(body)
    with pytest.raises(AgentContainerError, match="could not review"):
        session.review(other)
    assert git(tree, "for-each-ref", "refs/agent") == ""


def test_objects_that_git_would_write_into_a_git_directory_are_refused(bench: Bench) -> None:
    tree = repository(bench.path / "repo")
    session = bench.open(tree, "clone")
    session.agent(
        "blob=$(echo x | git hash-object -w --stdin);"
        "evil=$(printf '100644 blob %s\\tconfig\\n' $blob | git mktree);"
        "tree=$( (printf '40000 .git\\0'; echo $evil | python3 -c"
        " 'import sys; sys.stdout.buffer.write(bytes.fromhex(sys.stdin.read()))')"
        " | git hash-object -t tree -w --literally --stdin);"
        "git update-ref HEAD $(git commit-tree $tree -p HEAD -m evil)"
    )
    try:
        session.collect()
    except AgentContainerError:
        return
    with pytest.raises(AgentContainerError, match="could not review") as caught:
        session.fetch()
    assert "hasDotgit" in caught.value.details[0]


def test_sensitive_paths_hold_up_an_apply_and_are_named(bench: Bench) -> None:
    tree = repository(bench.path / "repo")
    session = bench.open(tree, "clone")
    session.agent("mkdir -p .husky; echo x > .husky/pre-commit; echo x > x; git add -A; git commit -qm x")
    session.collect()

    def apply(**options: bool) -> object:
        return apply_result(
            bench.throwaway, session.facts, session.bundle, run=RUN, base=session.base, environ=os.environ, **options
        )

    with pytest.raises(ApprovalNeeded) as caught:
        apply()
    assert caught.value.diff == (".husky/pre-commit  (git hooks)",)
    assert git(tree, "for-each-ref", "refs/heads/agent") == ""
    result = apply(accept_sensitive=True)
    assert result.branch == f"agent/{RUN}"  # type: ignore[attr-defined]
    assert result.next_command == f"git merge agent/{RUN}"  # type: ignore[attr-defined]
    git(tree, "merge", "-q", f"agent/{RUN}")
    assert (tree / "x").read_text() == "x\n"
    assert apply(accept_sensitive=True).branch == f"agent/{RUN}"  # type: ignore[attr-defined]


def test_a_plain_directory_gets_checked_files_and_never_through_a_link(bench: Bench) -> None:
    tree = bench.path / "plain"
    write(tree / "kept", "kept\n")
    write(tree / "old/gone", "gone\n")
    write(tree / "dir/file", "file\n")
    give(tree)
    session = bench.open(tree, "clone")
    session.agent(
        "echo more >> kept; rm -r old; echo new > dir/new; ln -s kept link; printf '#!/bin/sh\\n' > run; chmod +x run"
    )
    session.collect()

    def apply() -> object:
        return apply_result(
            bench.throwaway, session.facts, session.bundle, run=RUN, base=session.base, environ=os.environ
        )

    outside = write(bench.path / "outside/file", "file\n").parent
    (tree / "dir").rename(tree / "dir.before")
    (tree / "dir").symlink_to(outside)
    write(tree / "kept", "mine\n")
    with pytest.raises(UsageError) as caught:
        apply()
    assert caught.value.details == ("dir/new: a directory on its way is a link or a file", "kept: was changed since")
    assert ([path.name for path in outside.iterdir()], (tree / "old/gone").exists(), (tree / "run").exists()) == (
        ["file"],
        True,
        False,
    )

    (tree / "dir").unlink()
    (tree / "dir.before").rename(tree / "dir")
    write(tree / "kept", "kept\n")
    for _ in range(2):  # asking again is harmless
        result = apply()
        assert result.files.skipped == ("link: a link or submodule, which is never written",)  # type: ignore[attr-defined]
    assert ((tree / "kept").read_text(), (tree / "dir/new").read_text()) == ("kept\nmore\n", "new\n")
    assert os.access(tree / "run", os.X_OK)
    assert not (tree / "old").exists()


def test_files_go_on_top_of_the_uncommitted_work_that_a_run_began_with(bench: Bench) -> None:
    tree = repository(bench.path / "repo")
    write(tree / "README", "hello\nmine\n")
    give(tree)
    session = bench.open(tree, "clone")
    session.agent("echo agent >> README")
    session.collect()
    result = apply_result(
        bench.throwaway, session.facts, session.bundle, run=RUN, base=session.base, environ=os.environ, mode="files"
    )
    assert result.files is not None
    assert result.files.written == ("README",)
    assert (tree / "README").read_text() == "hello\nmine\nagent\n"


def test_the_proof_would_have_been_left(tmp_path: Path) -> None:
    """The planted script works where it is run: the other tests prove something."""
    script = write(tmp_path / "evil.sh", EVIL)
    subprocess.run(["/bin/sh", str(script)], check=True, capture_output=True)
    assert PROOF.exists()
    PROOF.unlink()
