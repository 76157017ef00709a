"""The standing environment through the command line: planned, up, worked in, changed, down.

And what a bound tree keeps from its agent, where it may lie, and what it is called.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.world import DEMO, Done, World, words

OWNER = 1234 if os.getuid() == 0 else os.getuid()
ODD_VALUES = {
    "DB_PASS": "m3d$tone$08$x",
    "HASH": "$2b$12$abcdefghijk",
    "TOKEN": "hunter$",
    "OPEN": "${",
    "MIX": "a$$b${HOME}$(id)`id`",
    "EMPTY": "",
    "QUOTES": "'\"\\ # : {} [] & * ! | > %",
    "UNICODE": "é\u2028\U0001f600",
}


def quoted(text: str) -> str:
    return yaml.safe_dump(text, default_style='"', allow_unicode=False, width=10**6).strip()


SPEC = DEMO + "env:\n" + "".join(f"  {name}: {quoted(value)}\n" for name, value in ODD_VALUES.items())


def owned(world: World, name: str, spec: str | None = SPEC, **files: str) -> Path:
    """A project that belongs to a user who is not root; its spec is accepted for a bound tree."""
    project = world.project(name, spec, **{".husky/pre-push": "#!/bin/sh\n", ".vscode/settings.json": "{}\n", **files})
    if os.getuid() == 0:
        subprocess.run(["chown", "-hR", f"{OWNER}:{OWNER}", str(project)], check=True)
    return project


def inside(world: World, project: Path, script: str, *, code: int | None = 0, stdin: bytes = b"") -> Done:
    """A shell script run by `exec`."""
    return world.agc("exec", "/bin/sh", "-c", script, cwd=project, code=code, stdin=stdin)


# --- before anything is made ---


@pytest.mark.quick
def test_plan_and_render_write_nothing_and_say_what_compose_accepts(world: World, tmp_path: Path) -> None:
    project = owned(
        world, "planned", SPEC + "egress: {allow: [api.acme.test, 10.30.0.0/16], deny: [other.acme.test]}\n"
    )
    before = sorted(str(path) for path in world.state.rglob("*"))
    plan = world.agc("--json", "plan", cwd=project).result
    assert plan["changes"][0] == "create the sandbox"
    assert {(rule["action"], rule["pattern"]): rule["origin"].partition(" line")[0] for rule in plan["rules"]} == {
        ("allow", "api.acme.test"): "spec egress.allow[0]",
        ("allow", "10.30.0.0/16"): "spec egress.allow[1]",
        ("deny", "other.acme.test"): "spec egress.deny[0]",
    }
    files = world.agc("--json", "render", cwd=project).result
    assert set(files) >= {"compose.yaml", "etc/policy.json", "etc/squid.conf", "etc/unbound.conf", "etc/nftables.nft"}
    assert sorted(str(path) for path in world.state.rglob("*")) == before
    compose = tmp_path / "compose.yaml"
    compose.write_text(files["compose.yaml"])
    argv = ["docker", "compose", "--env-file", "/dev/null", "-p", "ace-config", "-f", str(compose), "config"]
    shown = subprocess.run(argv, capture_output=True, check=True)
    assert b"is not set" not in shown.stderr
    environment = yaml.safe_load(shown.stdout)["services"]["agent"]["environment"]
    assert {name: environment[name].replace("$$", "$") for name in ODD_VALUES} == ODD_VALUES
    text = world.agc("plan", cwd=project).text
    assert "api.acme.test" in text
    assert "Traceback" not in text


@pytest.mark.quick
def test_what_is_not_up_is_said_so(world: World) -> None:
    project = owned(world, "nothing")
    assert world.agc("--json", "status", cwd=project).result["state"] == "down"
    assert "nothing was up" in world.agc("down", cwd=project).text
    for verb in (("exec", "true"), ("shell",)):
        assert "agent-container up" in world.agc(*verb, cwd=project, code=4).text
    assert "needs a terminal" in world.agc("attach", cwd=project, code=2).text


# --- one environment that stands for many tests ---


@pytest.fixture(scope="module")
def standing(world: World) -> Iterator[Path]:
    project = owned(world, "standing", SPEC + "workspace: {protect: [secrets, src/keep.py], hide: [.env]}\n",
                    **{"secrets/key": "k\n", "src/keep.py": "x\n", ".env": "PASSWORD=hidden\n"})  # fmt: skip
    world.agc("up", cwd=project)
    yield project
    world.agc("down", "-v", cwd=project)


def test_asking_again_changes_nothing(world: World, standing: Path) -> None:
    status = world.agc("--json", "status", cwd=standing).result
    assert (status["state"], status["amiss"]) == ("running", [])
    again = world.agc("--json", "up", cwd=standing).result
    assert (again["changed"], again["session"]) == (False, status["session"])
    assert "nothing to do" in world.agc("up", cwd=standing).text
    assert world.agc("--json", "plan", cwd=standing).result["changes"] == ["nothing to do"]
    assert "standing" in world.agc("ls", cwd=standing).text


def test_values_with_dollars_arrive_as_they_are(world: World, standing: Path) -> None:
    script = "import os,sys,json; print(json.dumps({n: os.environ.get(n) for n in sys.argv[1:]}))"
    done = world.agc("exec", "/usr/bin/python3", "-c", script, *ODD_VALUES, cwd=standing)
    assert done.lines == [ODD_VALUES]


EXECUTIONS = {
    "success": (("/bin/true",), 0),
    "failure": (("/bin/false",), 1),
    "a status of its own": (("/bin/sh", "-c", "exit 42"), 42),
    "a shell's own 127": (("/bin/sh", "-c", "nosuchprogram"), 127),
    "options of its own": (("/bin/sh", "-c", 'test "$1" = --json -a "$2" = -q', "x", "--json", "-q"), 0),
    "after two dashes": (("--", "/bin/sh", "-c", "exit 3"), 3),
    "odd words": (("/bin/sh", "-c", '[ "$1" = "a b" ] && [ "$2" = \'$HOME "q"\' ]', "x", "a b", '$HOME "q"'), 0),
}


@pytest.mark.parametrize("name", EXECUTIONS)
def test_exec_is_the_command(name: str, world: World, standing: Path) -> None:
    argv, code = EXECUTIONS[name]
    world.agc("exec", *argv, cwd=standing, code=code)


UNSTARTABLE = {
    "no such program": ("nosuchprogram", "no program of that name is in its PATH"),
    "a builtin of shells": ("cd", "no program of that name is in its PATH"),
    "no such path": ("/nonexistent", "there is no such file"),
    "a directory": ("/etc", "it is a directory"),
    "no program": ("/etc/passwd", "it is not executable"),
    "a script for nobody": ("./odd", "its interpreter is missing: /no/interpreter"),
}


@pytest.mark.parametrize("name", UNSTARTABLE)
def test_what_cannot_be_started_is_said_in_a_line(name: str, world: World, standing: Path) -> None:
    program, why = UNSTARTABLE[name]
    inside(world, standing, "printf '#!/no/interpreter -x\\n' >odd; chmod +x odd")
    done = world.agc("exec", program, cwd=standing, code=127)
    assert done.err.decode().startswith(f"error: {program!r} cannot be started in the sandbox: {why}\nhint: ")
    assert b"OCI" not in done.out + done.err


def test_exec_passes_bytes_both_ways(world: World, standing: Path) -> None:
    data = bytes(range(256)) * 4096
    done = world.agc("exec", "/bin/cat", cwd=standing, stdin=data)
    assert done.out == data
    apart = inside(world, standing, "echo out; echo err >&2")
    assert (apart.out, apart.err) == (b"out\n", b"err\n")


def test_the_agent_is_nobody_special(world: World, standing: Path) -> None:
    lines = inside(
        world, standing, "id -u; id -g; pwd; grep -hE '^(CapEff|CapBnd|NoNewPrivs):' /proc/self/status"
    ).out.decode()
    assert lines.split()[:3] == [str(OWNER), str(OWNER), "/workspace"]
    assert sorted(lines.split()[3:]) == sorted(["CapEff:", "0" * 16, "CapBnd:", "0" * 16, "NoNewPrivs:", "1"])
    inside(
        world,
        standing,
        "for p in /usr/x /etc/x /x /opt/agent-container/x; do (echo x >$p) 2>&1; test ! -e $p || exit 1; done",
    )


def test_files_belong_to_the_tree_s_owner_whoever_writes_them(world: World, standing: Path) -> None:
    inside(world, standing, "echo from inside >made; mkdir -p deep/er; echo 2 >deep/er/file; echo more >>README")
    for name in ("made", "deep", "deep/er/file", "README"):
        info = (standing / name).stat()
        assert (info.st_uid, info.st_gid) == (OWNER, OWNER), name
    assert (standing / "README").read_text() == "hello\nmore\n"
    (standing / "by-host").write_text("from outside\n")
    assert inside(world, standing, "cat by-host").out == b"from outside\n"


PROTECTED = {
    "the spec": "echo 'mounts: []' >>agent-container.yaml",
    "the spec, in place": "sed -i s/demo/claude/ agent-container.yaml",
    "the spec, by its name": "mv agent-container.yaml x",
    "the spec, by another file": "echo x >y && mv -f y agent-container.yaml",
    "a hook directory": "echo id >.husky/pre-commit",
    "a hook": "echo id >.husky/pre-push",
    "a hook directory, by its name": "mv .husky husky",
    "the editor's settings": "echo x >.vscode/tasks.json",
    "a path of the spec's": "echo x >secrets/key",
    "a file of the spec's": "echo x >src/keep.py",
    "its directory's name": "mv src source",
    "the repository, by its name": "mv .git git",
}


@pytest.mark.parametrize("name", PROTECTED)
def test_what_the_host_obeys_cannot_be_changed_from_inside(name: str, world: World, standing: Path) -> None:
    def tree() -> dict[str, bytes]:
        watched = (
            "agent-container.yaml",
            ".husky",
            ".vscode",
            "secrets",
            "src",
            ".git/HEAD",
            ".git/config",
            ".git/hooks",
        )
        files = [p for top in watched for p in ((standing / top), *(standing / top).rglob("*")) if p.is_file()]
        return {str(path): path.read_bytes() for path in files}

    before = tree()
    done = inside(world, standing, f"echo tried; {PROTECTED[name]}", code=None)
    assert done.out.startswith(b"tried\n")
    assert done.code != 0
    assert tree() == before


def test_what_is_hidden_is_empty(world: World, standing: Path) -> None:
    assert inside(world, standing, "cat .env").out == b""
    assert (standing / ".env").read_text() == "PASSWORD=hidden\n"


def test_a_planted_hook_or_filter_does_not_reach_the_host_s_repository(
    world: World, standing: Path, tmp_path: Path
) -> None:
    witness = tmp_path / "pwned"
    script = f"""
set -e
mkdir -p .git/hooks .git/info
git config user.name agent; git config user.email agent@sandbox.test
printf '#!/bin/sh\\ntouch {witness}\\n' >.git/hooks/pre-commit; chmod +x .git/hooks/pre-commit
cp .git/hooks/pre-commit .git/hooks/post-checkout
git config core.fsmonitor 'touch {witness}'
git config filter.x.clean 'touch {witness}; cat'; echo '* filter=x' >.git/info/attributes
echo inside >work; git add work || true
rm -f .git/hooks/pre-commit; git config --unset core.fsmonitor; git commit -qm inside --no-verify || true
"""
    before = world.git(standing, "rev-parse", "HEAD")
    inside(world, standing, script, code=None)
    assert (standing / "work").exists()
    assert (
        sorted(path.name for path in (standing / ".git" / "hooks").iterdir() if not path.name.endswith(".sample")) == []
    )
    assert "filter" not in (standing / ".git" / "config").read_text()
    assert world.git(standing, "rev-parse", "HEAD") == before
    world.git(standing, "status", "--porcelain")
    assert not witness.exists()
    inside(world, standing, "rm -rf .git", code=None)  # what lies there is the agent's own
    assert world.git(standing, "rev-parse", "HEAD") == before


def test_a_shell_on_a_terminal(world: World, standing: Path) -> None:
    with world.terminal("shell", cwd=standing) as terminal:
        terminal.type(b"tty; echo sum-$((40 + 2)); exit 5\n")
        terminal.expect(b"/dev/pts/")
        terminal.expect(b"sum-42")
        assert terminal.wait() == 5


def test_the_agent_s_own_interface_is_left_and_rejoined(world: World, standing: Path) -> None:
    with world.terminal("attach", cwd=standing) as terminal:
        terminal.expect(b"demo agent")
        terminal.expect(b"> ")
        terminal.type(b"shell: echo first-$((1 + 1)) | tee /tmp/said\r")
        terminal.expect(b"first-2")
        terminal.type(b"\x10\x11")
        terminal.wait()
    assert inside(world, standing, "cat /tmp/said").out == b"first-2\n"
    with world.terminal("attach", cwd=standing) as terminal:
        terminal.type(b"shell: echo second-$((1 + 2))\r")
        terminal.expect(b"second-3")
        terminal.type(b"exit\r")
        assert terminal.wait() == 0


# --- changed and gone ---


def test_a_hidden_file_that_the_host_replaces_ends_the_sandbox(world: World) -> None:
    project = owned(world, "uncovered", DEMO + "workspace: {hide: [.env]}\n", **{".env": "KEY=hunted-before\n"})
    world.agc("up", cwd=project)
    try:
        (project / ".env").write_text("KEY=hunted-between\n")
        assert inside(world, project, "cat .env").out == b"", "written in place, it stays hidden"
        watch = "sleep 60 & while sleep 0.5; do cat .env 2>/dev/null; done"
        with world.start("exec", "/bin/sh", "-c", watch, cwd=project, stdout=subprocess.PIPE) as watching:
            assert watching.stdout is not None
            time.sleep(2)
            (project / ".env.new").write_text("KEY=hunted-after\n")
            (project / ".env.new").replace(project / ".env")
            watching.wait(timeout=60)
            assert b"hunted" not in watching.stdout.read()
        told = world.agc("--json", "status", cwd=project).result
        assert told["state"] == "down" and "a hidden one" in told["amiss"][0], told
        inside(world, project, "cat .env", code=4)
        world.agc("up", cwd=project)
        assert inside(world, project, "cat .env && sleep 1 && cat .env").out == b""
    finally:
        world.agc("down", "-v", cwd=project)


def test_a_changed_spec_is_said_applied_and_costs_nothing_that_stays(world: World) -> None:
    project = owned(world, "changing")
    spec = project / "agent-container.yaml"
    first = world.agc("--json", "up", cwd=project).result["session"]
    inside(world, project, "echo kept >~/kept; echo gone >/tmp/gone; echo work >work")
    # A policy alone would be put in force as it stands; a limit of the container needs a new one.
    spec.write_text(SPEC + "egress: {allow: [api.acme.test]}\nresources: {pids: 1000}\n")
    assert world.agc("--json", "plan", cwd=project).result["changes"][0] == "recreate the sandbox"
    asked = world.agc("--json", "up", cwd=project, code=2).error["digest"]
    assert world.agc("--json", "status", cwd=project).result["session"] == first
    changed = world.agc("--json", "up", "--accept", asked[:12], cwd=project).result
    assert changed["changed"]
    assert {"egress policy changed", "the spec changed"} <= set(changed["changes"])
    assert inside(world, project, "cat ~/kept work; test ! -e /tmp/gone").out == b"kept\nwork\n"
    assert inside(world, project, "curl -sf https://api.acme.test/ -o /dev/null -w %{http_code}").out == b"200"
    again = world.agc("--json", "redeploy", cwd=project).result["session"]
    assert len({first, changed["session"], again}) == 3
    assert inside(world, project, "cat ~/kept").out == b"kept\n"
    for session in (first, changed["session"]):
        assert world.objects(session) == []
        assert world.record(session)["host"]["egress"]["verified"] == "verified"
        world.agc("runs", "verify", session, cwd=project)
    world.agc("down", cwd=project)
    assert world.objects(again) == []
    assert (project / "work").read_text() == "work\n"
    project_id = world.record(again)["host"]["project_id"]
    # What holds work outlives the sandbox: the agent's home, and the private repository where its commits are.
    assert kept_volumes(project_id) == [f"ac-{project_id}-git", f"ac-{project_id}-home"]
    assert "removed volume" in world.agc("down", "-v", cwd=project).text
    assert kept_volumes(project_id) == []


def kept_volumes(project_id: str) -> list[str]:
    return sorted(name for name in words("volume", "ls", "-q") if name.startswith(f"ac-{project_id}-"))


def test_a_clone_outlives_redeploy_and_down(world: World) -> None:
    project = owned(world, "cloned", SPEC + "workspace: {mode: clone}\n")
    first = world.agc("--json", "up", cwd=project).result["session"]
    commit = "git -c user.name=a -c user.email=a@b.test commit -qm one"
    inside(world, project, f"echo one >one; git add one; {commit}; echo two >two")
    base = inside(world, project, "git rev-parse HEAD~1").text.strip()
    world.agc("redeploy", cwd=project)
    assert inside(world, project, "cat one two; git log --format=%s -1").out == b"one\ntwo\none\n"
    world.agc("down", cwd=project)
    last = world.agc("--json", "up", cwd=project).result["session"]
    assert inside(world, project, "cat one two").out == b"one\ntwo\n"
    world.agc("down", cwd=project)
    for session in (first, last):
        record = world.record(session)["host"]["workspace"]
        assert (record["base_commit"], record["files_changed"]) == (base, 2)
    project_id = world.record(last)["host"]["project_id"]
    assert f"ac-{project_id}-workspace" in kept_volumes(project_id)
    world.agc("down", "-v", cwd=project)
    assert kept_volumes(project_id) == []


def test_volumes_that_hold_work_which_is_in_no_record_are_not_removed_unasked(world: World) -> None:
    project = owned(world, "elsewhere", SPEC + "workspace: {mode: clone}\n")
    session = world.agc("--json", "up", cwd=project).result["session"]
    commit = "git -c user.name=a -c user.email=a@b.test commit -q --allow-empty -m lost"
    inside(world, project, f"git worktree add -q /tmp/fix && cd /tmp/fix && {commit}")
    refused = world.agc("--json", "down", "-v", cwd=project, code=1)
    assert "only in its volumes: branch fix" in refused.error["details"], refused
    assert "only in its volumes: git worktree /tmp/fix" in refused.error["details"]
    assert refused.error["hint"].endswith("down -v --force")
    project_id = world.record(session)["host"]["project_id"]
    kept = kept_volumes(project_id)
    assert f"ac-{project_id}-workspace" in kept
    world.agc("down", "-v", cwd=project, code=1)  # nor when it is down already
    assert kept_volumes(project_id) == kept
    world.agc("up", cwd=project)
    inside(world, project, "git worktree prune; git merge -q fix; git branch -qd fix")
    world.agc("down", cwd=project)
    world.agc("down", "-v", cwd=project)
    assert kept_volumes(project_id) == []


def test_force_removes_them(world: World) -> None:
    project = owned(world, "forced", SPEC + "workspace: {mode: clone}\n")
    session = world.agc("--json", "up", cwd=project).result["session"]
    inside(world, project, "echo x >>README; git -c user.name=a -c user.email=a@b.test stash -q")
    world.agc("down", "-v", "--force", cwd=project)
    assert kept_volumes(world.record(session)["host"]["project_id"]) == []


ODD_PATHS = {
    "a colon": "acme:api",
    "blanks and accents": "Projet été n°1/ré po",
    "decomposed": "nf-e\u0301",
    "composed": "nf-\u00e9",
    "dollars": "a$HOME ${x} $",
    "quotes": 'it\'s "quoted"',
    "a dash, a comma, a hash": "-a,b#c",
}


@pytest.mark.parametrize("name", ODD_PATHS)
def test_a_project_may_lie_anywhere(name: str, world: World) -> None:
    project = owned(world, f"odd/{ODD_PATHS[name]}", DEMO)
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "LANG": "C"}
    up = world.agc("--json", "up", cwd=project, env=plain, code=None)
    assert up.code == 0, up
    try:
        assert world.agc("exec", "/bin/cat", "README", cwd=project, env=plain).out == b"hello\n"
        inside(world, project, "echo inside >made")
        assert (project / "made").read_text() == "inside\n"
        assert world.agc("--json", "status", cwd=project, env=plain).result["state"] == "running"
    finally:
        world.agc("down", "-v", cwd=project, env=plain)


def test_projects_of_one_name_do_not_meet_and_one_by_two_paths_is_one(world: World) -> None:
    projects = [owned(world, name, DEMO) for name in ("x/app", "y/APP", "z/a.pp")]
    sessions = [world.agc("--json", "up", cwd=project).result["session"] for project in projects]
    for number, project in enumerate(projects):
        inside(world, project, f"echo {number} >~/mine")
    link = projects[0].parent / "link"
    link.symlink_to(projects[0])
    assert world.agc("--json", "status", cwd=projects[1], env={}).result["session"] == sessions[1]
    assert world.agc("--json", "-C", str(link), "status", cwd=projects[1]).result["session"] == sessions[0]
    assert world.agc("--json", "-C", str(link), "up", cwd=projects[1]).result["changed"] is False
    loop = projects[0].parent / "loop"
    loop.symlink_to("loop")
    assert str(loop) in world.agc("-C", str(loop), "up", cwd=projects[1], code=2).text
    world.agc("down", "-v", cwd=projects[1])
    assert [bool(world.objects(session)) for session in sessions] == [True, False, True]
    assert inside(world, projects[2], "cat ~/mine").out == b"2\n"
    assert inside(world, projects[0], "cat ~/mine").out == b"0\n"
    for project in (projects[0], projects[2]):
        world.agc("down", "-v", cwd=project)


def test_a_project_that_was_moved_is_told_what_still_stands(world: World) -> None:
    project = owned(world, "moved-from", SPEC + "workspace: {mode: clone}\n")
    session = world.agc("--json", "up", cwd=project).result["session"]
    moved = project.rename(project.with_name("moved-to"))
    try:
        amiss = world.agc("--json", "status", cwd=moved).result["amiss"]
        assert any(str(project) in line for line in amiss), amiss
        told = world.agc("down", cwd=moved).text
        project_id = told.rpartition("--project ")[2].split()[0]
        assert world.objects(session)
    finally:
        world.agc("down", "-v", "--project", "moved-from", cwd=moved, code=None)
    assert world.objects(session) == []
    assert project_id and str(project) not in world.agc("down", cwd=moved).text
