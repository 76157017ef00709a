"""The parts of the container's program that decide: which settings may pass, and which paths deserve a look."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

LIB = Path(__file__).parents[2] / "image" / "lib"
sys.path.insert(0, str(LIB))

from agent_workspace.git import Clock, Failed, Repository  # noqa: E402
from agent_workspace.home import unpack_files  # noqa: E402
from agent_workspace.measure import _kind, _leaves  # noqa: E402
from agent_workspace.staging import matches  # noqa: E402
from agent_workspace.stream import read_header, write_header  # noqa: E402
from agent_workspace.tree import (  # noqa: E402
    allowed,
    clean_url,
    config_text,
    find_git,
    object_stores,
    read_config,
    read_small,
)


@pytest.mark.parametrize(
    ("url", "cleaned"),
    [
        ("https://git.test/a/b.git", "https://git.test/a/b.git"),
        ("https://user:token@git.test/a", "https://git.test/a"),
        ("https://token@git.test:8443/a?private_token=x#y", "https://git.test:8443/a"),
        ("HTTP://u:p@git.test/", "HTTP://git.test/"),
        ("https://a@b@git.test/", "https://git.test/"),
        ("ssh://git@git.test:22/a", "ssh://git@git.test:22/a"),
        ("ssh://git:secret@git.test/a", "ssh://git@git.test/a"),
        ("git@git.test:a/b.git", "git@git.test:a/b.git"),
        ("/srv/mirror.git", "/srv/mirror.git"),
        ("../other", "../other"),
        ("ext::sh -c 'x'", None),
        ("fd::7", None),
        ("--upload-pack=x", None),
        ("gopher://git.test/", None),
    ],
)
def test_a_url_loses_its_secrets_and_programs(url: str, cleaned: str | None) -> None:
    assert clean_url(url) == cleaned


def test_only_settings_that_name_no_program_pass() -> None:
    passing = [
        ("core.autocrlf", "input"),
        ("remote.origin.url", "https://git.test/a"),
        ("remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"),
        ("branch.feature/x.y.merge", "refs/heads/feature"),
        ("user.email", "a@b.test"),
    ]
    dropped = [
        (key, "x")
        for key in (
            *("core.fsmonitor", "core.hookspath", "core.editor", "core.sshcommand", "core.gitproxy", "core.worktree"),
            *(
                "filter.a.clean",
                "filter.a.process",
                "diff.external",
                "diff.a.textconv",
                "merge.a.driver",
                "gpg.program",
            ),
            *("http.extraheader", "http.https://git.test/.extraheader", "http.proxy", "credential.helper"),
            *(
                "url.https://t@git.test/.insteadof",
                "include.path",
                "includeif.gitdir:/.path",
                "alias.x",
                "submodule.a.update",
            ),
            *("remote.a.uploadpack", "remote.a.vcs", "remote.a.proxy", "extensions.partialclone", "protocol.ext.allow"),
            *("core.attributesfile", "core.excludesfile", "core.alternaterefscommand", "uploadpack.packobjectshook"),
        )
    ]
    assert allowed([*passing, *dropped]) == passing


def test_what_is_written_reads_back_the_same(tmp_path: Path) -> None:
    entries = [
        ("core.autocrlf", "input"),
        ('remote.we"ird\\name.url', 'a "quoted" \\ value # not a comment ; nor this\twith\nlines '),
        ("remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"),
        ("branch.x.y.merge", ""),
        ("user.name", "Zoë"),
    ]
    (tmp_path / "config").write_text(config_text(entries))
    assert read_config(tmp_path / "config", Clock(time.monotonic() + 60)) == entries


def test_a_broken_configuration_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[[[")
    with pytest.raises(Failed, match=str(tmp_path)):
        read_config(tmp_path / "config", Clock(time.monotonic() + 60))


def test_includes_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("[core]\n\tautocrlf = true\n")
    (tmp_path / "config").write_text(f"[include]\n\tpath = {tmp_path}/other\n")
    assert read_config(tmp_path / "config", Clock(time.monotonic() + 60)) == [("include.path", f"{tmp_path}/other")]


@pytest.mark.parametrize(
    ("path", "patterns", "expected"),
    [
        (".env", [".env"], True),
        (".env/inner", [".env"], True),
        (".envrc", [".env"], False),
        ("a/.env", [".env"], False),
        ("config/prod.env", ["config/*.env"], True),
        ("config/deep/prod.env", ["config/*.env"], False),
        ("config", ["config/*.env"], False),
        ("a/b/c", ["*/b"], True),
        ("anything", [], False),
    ],
)
def test_hidden_paths(path: str, patterns: list[str], expected: bool) -> None:
    assert matches(path, patterns) is expected


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (".husky/pre-commit", "git hooks"),
        ("packages/a/.husky/pre-push", "git hooks"),
        (".github/workflows/ci.yml", "CI"),
        (".gitlab-ci.yml", "CI"),
        ("Jenkinsfile", "CI"),
        (".vscode/tasks.json", "editor settings"),
        (".VSCode/tasks.json", "editor settings"),
        (".idea/x", "editor settings"),
        (".claude/settings.json", "agent settings"),
        (".mcp.json", "agent settings"),
        ("agent-container.yaml", "the spec"),
        ("sub/.gitattributes", "git settings"),
        (".gitmodules", "git settings"),
        (".envrc", "shell environment"),
        ("web/package-lock.json", "lock file"),
        ("Cargo.lock", "lock file"),
        ("src/app.py", None),
        ("docs/github.md", None),
        ("ops/deploy.sh", "protected"),
    ],
)
def test_paths_that_deserve_a_look(path: str, kind: str | None) -> None:
    assert _kind(path, ["ops/*.sh"]) == kind


@pytest.mark.parametrize(
    ("path", "target", "out"),
    [
        ("link", "file", False),
        ("a/b/link", "../../file", False),
        ("a/link", "../..", True),
        ("link", "/etc/passwd", True),
        ("link", ".git/hooks", True),
        ("a/link", "../.GIT/config", True),
        ("link", "a/../../x", True),
    ],
)
def test_links_that_lead_out(path: str, target: str, out: bool) -> None:
    assert _leaves(path, target) is out


def test_small_files_are_plain_files_and_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "fifo")
    assert [read_small(tmp_path / name) for name in ("file", "link", "fifo", ".", "none")] == [
        b"x",
        None,
        None,
        None,
        None,
    ]
    assert read_small(tmp_path / "file", 0) is None


def test_alternates_are_flattened_and_a_loop_ends(tmp_path: Path) -> None:
    for name, text in (("one", "../two\n"), ("two", "../one\n../none\n")):
        (tmp_path / name / "info").mkdir(parents=True)
        (tmp_path / name / "info/alternates").write_text(text)
    assert object_stores(tmp_path / "one") == [tmp_path / "one", tmp_path / "two"]


def test_a_pointer_without_objects_behind_it_is_no_repository(tmp_path: Path) -> None:
    assert find_git(tmp_path) is None
    (tmp_path / ".git").write_text("gitdir: .\n")
    assert find_git(tmp_path) is None


def test_the_stream_keeps_header_and_index_apart_from_the_payload(tmp_path: Path) -> None:
    path = tmp_path / "stream"
    with path.open("wb", buffering=0) as out:
        write_header(out.fileno(), {"kind": "git"}, b"index\n")
        out.write(b"payload")
    with path.open("rb", buffering=0) as source:
        assert read_header(source.fileno()) == ({"kind": "git", "index_bytes": 6}, b"index\n")
        assert source.read() == b"payload"
    for body in (b"", b"12345678901\n", b"          5\n{}"):
        path.write_bytes(body)
        with path.open("rb", buffering=0) as source, pytest.raises((Failed, ValueError)):
            read_header(source.fileno())


def test_time_that_is_up_is_said(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="time is up"):
        Repository(tmp_path, tmp_path, Clock(time.monotonic() - 1)).git("version")


def test_a_failure_is_one_line_of_json(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: nowhere\n")
    program = LIB.parent / "workspace"
    done = subprocess.run([sys.executable, "-I", str(program), "pack", str(tmp_path)], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b'{"error": ')


@pytest.mark.parametrize("name", ["info/alternates", "pack/pack-aa.idx", "aa/bb"])
def test_a_fifo_among_the_objects_is_refused_before_git_waits_for_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(Failed, match="neither a file nor a directory"):
        object_stores(tmp_path)


def test_settings_are_read_beside_a_head_that_git_would_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".git" / "HEAD").unlink()
    os.mkfifo(tmp_path / ".git" / "HEAD")
    monkeypatch.chdir(tmp_path)
    assert ("core.bare", "false") in read_config(tmp_path / ".git" / "config", Clock(time.monotonic() + 20))


def home_stream(*members: tuple[str, bytes, bytes]) -> io.BytesIO:
    """A tar of (name, type, content)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, len(content), "/etc/passwd"
            tar.addfile(member, io.BytesIO(content))
    out.seek(0)
    return out


def test_what_an_agent_kept_comes_back_over_what_the_image_has(tmp_path: Path) -> None:
    there = tmp_path / ".agent" / "sessions" / "one.jsonl"
    there.parent.mkdir(parents=True)
    there.write_text("the image's own")
    unpack_files(tmp_path, home_stream((".agent/sessions/one.jsonl", tarfile.REGTYPE, b"kept")))
    assert there.read_text() == "kept" and there.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("name", "kind"),
    [("../out", tarfile.REGTYPE), ("/out", tarfile.REGTYPE), ("a/../../out", tarfile.REGTYPE), ("a", tarfile.SYMTYPE),
     ("a", tarfile.LNKTYPE), ("a", tarfile.CHRTYPE), ("a", tarfile.FIFOTYPE)],
)  # fmt: skip
def test_nothing_but_files_below_home_comes_back(tmp_path: Path, name: str, kind: bytes) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with pytest.raises(Failed, match="refused"):
        unpack_files(home, home_stream((name, kind, b"")))
    assert list(tmp_path.iterdir()) == [home] and list(home.iterdir()) == []
