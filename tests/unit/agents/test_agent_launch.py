"""How each agent is started: a task never becomes an option, and what it must find in its HOME can be read."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path, PurePosixPath

import pytest

from agent_container.agents import PROFILES, AgentProfile, Work
from agent_container.credential_kinds import KINDS, make_decoy
from agent_container.events import AgentSession
from agent_container.frames import split_lines

AGENTS = [profile for name, profile in PROFILES.items() if name != "demo"]
STREAMS = Path(__file__).parent / "streams"
DECOYS = {kind: make_decoy(kind, b"sixteen bytes and more") for kind in KINDS}
TASKS = ["--help", "-", "/compact", "@README.md", "!ls", "a\n'b' \"c\" $(id) `id` \\", "🦀", "x" * 200_000]

agents = pytest.mark.parametrize("profile", AGENTS, ids=[profile.name for profile in AGENTS])


@agents
@pytest.mark.parametrize("task", TASKS, ids=[task[:8] for task in TASKS])
def test_the_task_comes_on_stdin_as_it_is(profile: AgentProfile, task: str) -> None:
    """One word of argv is at most 128 KiB (MAX_ARG_STRLEN), and could be an option."""
    launch = profile.headless(Work(task=task))
    assert launch.stdin == task.encode()
    assert launch.argv == profile.headless(Work(task="another")).argv


@agents
def test_model_and_session_are_passed_on(profile: AgentProfile) -> None:
    for start in (profile.headless, profile.interactive):
        plain, full = start(Work(task="t")), start(Work(task="t", model="some/model", resume="0123-session"))
        words = " ".join(full.argv).replace("=", " ").split()
        assert words[words.index("--model") + 1] == "some/model"
        assert words[words.index("0123-session") - 1] in ("resume", "--resume", "--session")
        assert "model" not in " ".join(plain.argv) and "resume" not in plain.argv


UUID = "01a228ca-8fdc-78f1-a3e8-ecc818b5fa9f"
SESSIONS = {
    "claude": "df80010b-8c95-484b-96a3-000d8e083541",
    "codex": UUID,
    "gemini": "521bef86-7359-431b-ac47-03a80f7be2b6",
    "opencode": "ses_dd728c8ecffea8VUxe16G8baEB",
    "pi": "01a228da-c6a5-74c7-8e1a-2cdf58655d0c",
}
"""As the real ones name theirs."""
NO_SESSIONS = {
    "nothing": "",
    "an option": "--dangerously-skip-permissions",
    "a short option": "-p",
    "an option behind a session": f"{UUID} --help",
    "the newest": "latest",
    "the newest of codex": "--last",
    "a number": "1",
    "a part of one": UUID[:8],
    "a path": f"/tmp/{UUID}.jsonl",
    "a path upwards": f"../{UUID}",
    "a file": f"{UUID}.jsonl",
    "in HOME": f"~/{UUID}",
    "a line end": f"{UUID}\n",
    "NUL": f"{UUID}\0",
    "an escape": f"\x1b[2J{UUID}",
    "other digits": UUID.replace("0", "\u0660"),
    "letters that look alike": "\u0455es_dd728c8ecffea8VUxe16G8baEB",
    "opencode's with a path": "ses_/../../x",
    "opencode's, endless": "ses_" + "a" * 100_000,
    "JSON": '{"a":1}',
}


@agents
def test_its_sessions_are_known_by_their_form(profile: AgentProfile) -> None:
    assert profile.names_session(SESSIONS[profile.name])
    assert [name for name, text in NO_SESSIONS.items() if profile.names_session(text)] == []
    others = {text for name, text in SESSIONS.items() if (name == "opencode") != (profile.name == "opencode")}
    assert not any(profile.names_session(text) for text in others)


@pytest.mark.parametrize("path", sorted(STREAMS.glob("*-ok.jsonl")), ids=lambda path: path.stem)
def test_what_a_real_one_called_its_session_has_that_form(path: Path) -> None:
    profile = PROFILES[path.stem.partition("-")[0]]
    parser = profile.parser()
    lines = split_lines([path.read_bytes()], max_bytes=1 << 24)
    events = [event for line in lines for event in parser.parse(line, channel="stdout")]
    named = {event.session for event in events if isinstance(event, AgentSession) and event.session}
    assert named and all(profile.names_session(session) for session in named)


@agents
def test_the_program_is_the_one_that_the_image_installs(profile: AgentProfile) -> None:
    for launch in (profile.headless(Work(task="t")), profile.interactive(Work())):
        assert launch.argv[0] == f"/usr/local/bin/{profile.install.program}"
    assert profile.install.kind in ("native", "node")
    assert profile.install.version.count(".") == 2 and profile.install.program == profile.name


@agents
@pytest.mark.parametrize("decoys", [{}, DECOYS], ids=["no key", "every key"])
def test_what_must_be_in_home_can_be_read(profile: AgentProfile, decoys: dict[str, str]) -> None:
    for file in profile.home(decoys):
        path = PurePosixPath(file.path)
        assert not path.is_absolute() and ".." not in path.parts
        data = tomllib.loads(file.text) if path.suffix == ".toml" else json.loads(file.text)
        assert isinstance(data, dict) and data
        assert file.how == ("merge-json" if path.suffix == ".json" else "replace")


@agents
def test_no_placeholder_stands_in_home_as_a_whole(profile: AgentProfile) -> None:
    """They come as variables; a file of HOME may be kept with a record."""
    texts = " ".join(file.text for file in profile.home(DECOYS))
    assert not [kind for kind, decoy in DECOYS.items() if decoy in texts]


def test_claude_is_told_that_its_key_is_approved() -> None:
    state = json.loads(PROFILES["claude"].home(DECOYS)[0].text)
    assert state["customApiKeyResponses"] == {"approved": [DECOYS["anthropic"][-20:]]}
    assert "customApiKeyResponses" not in json.loads(PROFILES["claude"].home({})[0].text)


ANY = ("anthropic", "openai", "google", "openrouter")
CREDENTIALS = [
    ("claude", None, ("anthropic", "anthropic-oauth")),
    ("codex", "gpt-5", ("openai",)),
    ("gemini", None, ("google",)),
    ("opencode", None, ANY),
    ("opencode", "anthropic/claude-sonnet-5", ("anthropic",)),
    ("opencode", "openrouter/anthropic/claude-sonnet-5", ("openrouter",)),
    ("opencode", "groq/llama", ()),
    ("pi", "sonnet:high", ANY),
    ("pi", "openai/gpt-5", ("openai",)),
    ("pi", "google/gemini-3-pro", ("google",)),
]


@pytest.mark.parametrize(("agent", "model", "kinds"), CREDENTIALS)
def test_which_credential_a_model_asks_for(agent: str, model: str | None, kinds: tuple[str, ...]) -> None:
    assert PROFILES[agent].credentials(model) == kinds
    assert set(kinds) <= set(KINDS)


@agents
def test_paths_that_are_kept_are_below_home(profile: AgentProfile) -> None:
    assert profile.keeps
    for path in map(PurePosixPath, profile.keeps):
        assert not path.is_absolute() and ".." not in path.parts and len(path.parts) > 1


def test_listing_the_agents_imports_nothing_heavy() -> None:
    code = "import sys, agent_container.agents; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"docker", "rich", "typer", "cryptography", "requests"} & set(done.stdout.split())
