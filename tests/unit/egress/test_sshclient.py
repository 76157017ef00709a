"""The gateway's ssh: what it is started with, which files it finds, and which of its words the agent reads."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from agent_egress.repositories import Repository
from agent_egress.sshclient import Keys, KeysRefused, Words, ssh_argv, ssh_environment, store_keys

API = Repository("git.test", 2222, "git", "acme/api.git")
ONE, TWO = "a" * 16, "b" * 16


def put(directory: Path, **changes: object) -> Keys:
    message = {"keys": {ONE: "one\n", TWO: "two\n"}, "current": ONE, "known_hosts": "git.test ssh-ed25519 AAAA\n"}
    return store_keys(directory, {**message, **changes})


def test_keys_are_files_of_the_gateway_s_alone_and_those_not_named_go(tmp_path: Path) -> None:
    put(tmp_path)
    found = put(tmp_path, keys={TWO: "two again\n"}, current=TWO)
    assert {path.name for path in tmp_path.iterdir()} == {f"key-{TWO}", "known_hosts"}
    assert found.path(TWO).read_text() == "two again\n"
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


BAD = {
    "no current key": {"current": "c" * 16},
    "a path for an id": {"keys": {"../x": "k"}, "current": "../x"},
    "no text": {"keys": {ONE: 7}},
    "too many": {"keys": {f"{n:016x}": "k" for n in range(9)}, "current": f"{0:016x}"},
    "no pins": {"known_hosts": None},
}


@pytest.mark.parametrize("case", BAD)
def test_a_message_that_does_not_fit_changes_nothing(tmp_path: Path, case: str) -> None:
    put(tmp_path)
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    with pytest.raises(KeysRefused) as caught:
        put(tmp_path, **BAD[case])
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before
    assert "one" not in str(caught.value)


def test_ssh_is_given_nothing_that_could_forward_ask_or_choose(tmp_path: Path) -> None:
    argv = list(ssh_argv(API, "git-upload-pack 'acme/api.git'", put(tmp_path)))
    assert argv[:6] == ["/usr/bin/ssh", "-F", "none", "-T", "-a", "-x"]
    assert argv[-7:] == ["-p", "2222", "-l", "git", "--", "git.test", "git-upload-pack 'acme/api.git'"]
    options = dict(word.split("=", 1) for before, word in zip(argv, argv[1:], strict=False) if before == "-o")
    wanted = {
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "GlobalKnownHostsFile": "none",
        "UserKnownHostsFile": str(tmp_path / "known_hosts"),
        "UpdateHostKeys": "no",
        "ClearAllForwardings": "yes",
        "PermitLocalCommand": "no",
        "EscapeChar": "none",
    }
    assert wanted.items() <= options.items()
    assert "SendEnv" not in options
    assert set(ssh_environment()) == {"PATH", "LANG", "SHELL"}


WORDS = {
    "a server's own words": (b"ERROR: Repository not found.\n", "ERROR: Repository not found.\n"),
    "colours and control letters": (b"\x1b[31mred\x1b[0m\x07 \xff\n", "[31mred[0m \n"),
    "a host key that is not pinned": (b"Host key verification failed.\r\n", "not pinned"),
    "a key that is not taken": (
        b"git@git.test: Permission denied (publickey).\n",
        "does not take this project's ssh key",
    ),
    "what is of this container": (b'Load key "/run/git/key-aa": invalid format\n', ""),
    "a banner of warnings": (b"@@@@@@@@@@@\n@  WARNING  @\n", ""),
    "without a line end": (b"half", "half\n"),
}


@pytest.mark.parametrize("case", WORDS)
def test_the_words_of_ssh(case: str) -> None:
    said, expected = WORDS[case]
    words = Words(API)
    found = (words.feed(said) + words.end()).decode()
    assert expected in found
    assert bool(found) is bool(expected)
    assert "/run/git" not in found


def test_there_is_an_end_to_words() -> None:
    words = Words(API)
    assert sum(len(words.feed(b"x" * 900 + b"\n")) for _ in range(1000)) <= 16 * 1024
