"""The only git command of the host, word by word, and what is read from the containers."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from agent_container.engine.protocol import ExecResult, Once
from agent_container.errors import AgentContainerError
from agent_container.workspace.result import check_bundle, fetch_argv, fetch_environment
from agent_container.workspace.throwaway import Throwaway, read_tar
from agent_container.workspace.transfer import Work, parse_model

HEADER = b"# v2 git bundle\n-" + b"a" * 40 + b" base\n" + b"b" * 40 + b" refs/heads/result\n\nPACK"


def test_the_fetch_is_exactly_this() -> None:
    argv = fetch_argv(Path("/p/.git"), Path("/s/workspace.bundle"), ["refs/agent-runs/r", "refs/heads/agent/r"])
    options = {argv[at + 1] for at, word in enumerate(argv) if word == "-c"}
    assert options >= {
        "fetch.fsckObjects=true",
        "gc.auto=0",
        "core.hooksPath=/dev/null",
        "core.fsmonitor=false",
        "credential.helper=",
        "core.pager=cat",
    }
    assert [word for at, word in enumerate(argv) if word != "-c" and argv[at - 1] != "-c"] == [
        *("git", "--git-dir=/p/.git", "fetch"),
        *("--quiet", "--no-recurse-submodules", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--"),
        *("/s/workspace.bundle", "+refs/heads/result:refs/agent-runs/r", "refs/heads/result:refs/heads/agent/r"),
    ]


def test_the_fetch_inherits_nothing_but_the_path() -> None:
    given = {"PATH": "/bin", "GIT_DIR": "/x", "GIT_SSH_COMMAND": "x", "LD_PRELOAD": "x", "GIT_CONFIG_COUNT": "1"}
    env = fetch_environment(given)
    assert {name: value for name, value in env.items() if given.get(name) == value} == {"PATH": "/bin"}
    assert (env["GIT_CONFIG_NOSYSTEM"], env["GIT_CONFIG_GLOBAL"], env["GIT_ALLOW_PROTOCOL"]) == (
        "1",
        "/dev/null",
        "file",
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (HEADER, None),
        (HEADER.replace(b"# v2 git bundle\n", b"# v3 git bundle\n@object-format=sha256\n"), None),
        (HEADER.replace(b"# v2", b"# v9"), "no git bundle"),
        (b"", "no git bundle"),
        (HEADER.replace(b"refs/heads/result", b"refs/heads/main"), "other refs"),
        (HEADER.replace(b"\n\n", b"\n" + b"c" * 40 + b" refs/heads/main\n\n"), "other refs"),
        (HEADER + b"x" * 1000, "more than 500"),
    ],
)
def test_a_bundles_header(tmp_path: Path, body: bytes, words: str | None) -> None:
    bundle = tmp_path / "bundle"
    bundle.write_bytes(body)
    if words is None:
        check_bundle(bundle, max_bytes=500)
        return
    with pytest.raises(AgentContainerError, match=words):
        check_bundle(bundle, max_bytes=500)


def tar_of(path: Path, *members: tuple[str, bytes, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, body, kind in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, len(body), "/etc/passwd"
            tar.addfile(member, io.BytesIO(body))
    return path


REG = tarfile.REGTYPE
SUMMARY = ("summary.json", b"{}", REG)


@pytest.mark.parametrize(
    "members",
    [
        [("workspace.patch", b"x", REG)],
        [SUMMARY, ("workspace.patch", b"", tarfile.SYMTYPE)],
        [SUMMARY, ("workspace.patch", b"", tarfile.LNKTYPE)],
        [SUMMARY, ("workspace.patch", b"", tarfile.CHRTYPE)],
        [SUMMARY, ("../workspace.patch", b"x", REG)],
        [SUMMARY, ("other", b"x", REG)],
        [SUMMARY, ("files/1", b"x", REG)],
        [SUMMARY, SUMMARY],
        [SUMMARY, ("workspace.patch", b"x" * 101, REG)],
        [("summary.json", b"[]", REG)],
        [("summary.json", b"{", REG)],
        [("summary.json", b"[" * 100_000, REG)],
    ],
)
def test_a_tar_that_the_program_never_writes_is_refused(
    tmp_path: Path, members: list[tuple[str, bytes, bytes]]
) -> None:
    with pytest.raises(AgentContainerError):
        read_tar(tar_of(tmp_path / "t", *members), wanted={"workspace.patch": tmp_path / "patch"}, max_bytes=100)


def test_numbered_files_go_into_their_directory_and_no_further(tmp_path: Path) -> None:
    tar = tar_of(tmp_path / "t", SUMMARY, ("files/12", b"x", REG))
    assert read_tar(tar, wanted={}, numbered=tmp_path, max_bytes=100) == {}
    assert (tmp_path / "12").read_bytes() == b"x"
    for name in ("files/../x", "files/1/2", "files/", "files/x"):
        with pytest.raises(AgentContainerError):
            read_tar(tar_of(tmp_path / "t", SUMMARY, (name, b"x", REG)), wanted={}, numbered=tmp_path, max_bytes=100)


def test_half_a_tar_and_no_tar_are_refused(tmp_path: Path) -> None:
    whole = tar_of(tmp_path / "t", SUMMARY, ("workspace.patch", b"x" * 5000, REG)).read_bytes()
    for body in (b"", b"nothing", whole[:3000]):
        (tmp_path / "half").write_bytes(body)
        with pytest.raises(AgentContainerError):
            read_tar(tmp_path / "half", wanted={"workspace.patch": tmp_path / "p"}, max_bytes=10_000)


def test_a_summary_of_another_shape_is_refused() -> None:
    good: dict[str, object] = {
        "version": 1, "base": "a" * 40, "base_missing": False, "result": "b" * 40,
        "commits": 0, "files_changed": 0, "insertions": 0, "deletions": 0, "sensitive": [],
    }  # fmt: skip
    assert parse_model(Work, good).left_behind == ()
    for key, value in (
        ("result", "HEAD"),
        ("base", "--upload-pack=x"),
        ("commits", -1),
        ("extra", 1),
        ("stashes", "x"),
    ):
        with pytest.raises(AgentContainerError, match="does not fit"):
            parse_model(Work, {**good, key: value})


def test_a_failed_program_is_told_in_its_own_words(tmp_path: Path) -> None:
    def run_once(job: Once) -> ExecResult:
        assert job.argv[:2] == ("/opt/agent-container/workspace", "pack")
        return ExecResult(exit_code=1, stdout=b"", stderr=b'noise\n{"error": "no space left"}\n')

    with pytest.raises(AgentContainerError) as caught:
        Throwaway(run_once, "image", (), tmp_path).run(["pack", "/p"], user="1:1", mounts=())
    assert caught.value.details == ("no space left",)
