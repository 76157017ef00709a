"""What a user types to find runs: each filter against a shelf of runs, and one error for all that says nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from agent_container.cli import main
from agent_container.cli_call import CALL
from agent_container.commands.context import Context
from agent_container.commands.run_filters import Wanted, parse_labels, parse_query, parse_size
from agent_container.commands.run_list import list_runs
from agent_container.errors import UsageError
from agent_container.records import Egress, HostCount
from agent_container.session import Phase, SessionState
from agent_container.store import Store
from tests.support.records import record_of

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
A, B, C, LIVE = "20261101-100000-aaaaaa", "20261120-100000-bbbbbb", "20261130-100000-cccccc", "20261201-110000-dddddd"


def add(
    store: Store, run: str, project: str, *, model: str, cost: float | None, patch: str = "", **host: object
) -> None:
    started = datetime.strptime(run[:15] + "+0000", "%Y%m%d-%H%M%S%z")
    record = record_of(run=run, started=started, **host)
    assert record.agent is not None
    record = record.model_copy(update={"agent": record.agent.model_copy(update={"model": model, "cost_usd": cost})})
    place = store.runs.place(project, run)
    with store.runs.staging(place) as staged:
        (staged / "record.json").write_bytes(record.encode())
        (staged / "workspace.patch").write_text("".join(f"diff --git a/{n} b/{n}\n" for n in patch.split()))
        store.runs.publish(staged, place)


def reached(*hosts: str) -> Egress:
    return Egress(top_hosts=tuple(HostCount(host=host, allowed=1) for host in hosts))


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    top = tmp_path_factory.mktemp("filters")
    (top / "here").mkdir()
    environ = {"XDG_DATA_HOME": str(top / "d"), "XDG_STATE_HOME": str(top / "s")}
    made = Context(directory=top / "here", environ=environ, now=lambda: NOW)
    add(made.store, A, "p1", model="opus-4", cost=2.5, patch="src/a.py README.md", project_name="api",
        labels={"ticket": "A-1", "team": "x"}, egress=reached("api.test", "npm.test"))  # fmt: skip
    add(made.store, B, "p1", model="haiku-4", cost=0.05, patch="src/deep/b.py", project_name="api", outcome="failed",
        labels={"ticket": "A-2"}, egress=reached("api.test"))  # fmt: skip
    add(made.store, C, "p2", model="haiku-4", cost=None, project_name="web")
    live = SessionState(
        id=LIVE, project_id="p2", project_root="/x", project_name="web", kind="run", created=NOW, owner_pid=1,
        phase=Phase.RUNNING, agent="demo", task="now", labels=(("ticket", "A-3"),),
    )  # fmt: skip
    made.store.sessions.save(live)
    yield made


CASES: list[tuple[str, dict[str, object], list[str]]] = [
    ("everything", {}, [LIVE, C, B, A]),
    ("a project by name", {"projects": ["web"]}, [LIVE, C]),
    ("a project by id", {"projects": ["p1"]}, [B, A]),
    ("two projects by pattern", {"projects": ["a*", "w?b"]}, [LIVE, C, B, A]),
    ("an outcome", {"outcomes": ["failed"]}, [B]),
    ("any of two outcomes", {"outcomes": ["failed", "succeeded"]}, [C, B, A]),
    ("what is not finished", {"outcomes": ["orphaned"]}, [LIVE]),
    ("a label", {"labels": ["ticket=A-1"]}, [A]),
    ("a label of any value, a live one too", {"labels": ["ticket"]}, [LIVE, B, A]),
    ("two labels are both wanted", {"labels": ["ticket", "team=x"]}, [A]),
    ("a label's value is no pattern", {"labels": ["ticket=A-*"]}, []),
    ("a model by pattern", {"models": ["haiku*"]}, [C, B]),
    ("an agent", {"agents": ["demo"]}, [LIVE, C, B, A]),
    ("an agent of nobody", {"agents": ["x"]}, []),
    ("since a day", {"since": "2026-11-20T00:00+00:00"}, [LIVE, C, B]),
    ("so long ago", {"since": "2d"}, [LIVE, C]),
    ("until a moment", {"until": "2026-11-20T10:00:00+00:00"}, [A]),
    ("until a day, that day too", {"until": "2026-11-20"}, [B, A]),
    ("over an amount", {"costs": [">1"]}, [A]),
    ("under an amount; unknown is not cheap", {"costs": ["<$1.00"]}, [B]),
    ("between two amounts", {"costs": [">0.01", "<=0.05"]}, [B]),
    ("at least", {"costs": ["0.05"]}, [B, A]),
    ("a changed file", {"changed": ["README.md"]}, [A]),
    ("a changed directory", {"changed": ["src/"]}, [B, A]),
    ("a directory is no prefix of a name", {"changed": ["sr"]}, []),
    ("a changed pattern", {"changed": ["*.py"]}, [B, A]),
    ("all changed", {"changed": ["src", "./README.md"]}, [A]),
    ("a host", {"contacted": ["npm.test"]}, [A]),
    ("a host by pattern, in any case", {"contacted": ["*.TEST"]}, [B, A]),
    ("the newest", {"limit": 2}, [LIVE, C]),
    ("the newest of those that fit", {"limit": 1, "outcomes": ["succeeded"]}, [C]),
    ("filters together", {"projects": ["api"], "costs": ["<1"], "changed": ["src"]}, [B]),
]


@pytest.mark.parametrize(("wanted", "runs"), [row[1:] for row in CASES], ids=[row[0] for row in CASES])
def test_a_filter(wanted: dict[str, object], runs: list[str], context: Context) -> None:
    found = list_runs(context, Wanted(**wanted), everywhere=True)  # type: ignore[arg-type]
    assert [row.run for row in found] == runs


BAD = [
    ({"costs": ["cheap"]}, "--cost 'cheap'"),
    ({"costs": ["!1"]}, "--cost"),
    ({"outcomes": ["sucess"]}, "did you mean succeeded"),
    ({"since": "yesterday"}, "--since 'yesterday'"),
    ({"since": "999999w"}, "--since"),
    ({"labels": ["=x"]}, "--label '=x'"),
    ({"labels": ["a b=c"]}, "a key has letters"),
    ({"labels": ["k=\x1b[2J"]}, "printable"),
    ({"changed": ["/etc/passwd"]}, "a path in the project"),
    ({"contacted": [""]}, "--contacted"),
    ({"limit": 0}, "--limit 0"),
    ({"since": "1d", "until": "2d"}, "--since is not before --until"),
]


@pytest.mark.parametrize(("wanted", "words"), BAD, ids=[row[1] for row in BAD])
def test_a_filter_that_says_nothing(wanted: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_query(Wanted(**wanted), now=NOW, project_id=None)  # type: ignore[arg-type]
    assert words in caught.value.message
    assert caught.value.hint == "agent-container runs ls --help"


def test_several_faults_are_one_error() -> None:
    wanted = Wanted(costs=["x"], since="y", outcomes=["z"])
    with pytest.raises(UsageError, match="3 filters say nothing") as caught:
        parse_query(wanted, now=NOW, project_id=None)
    assert len(caught.value.details) == 3


@pytest.mark.parametrize(
    ("words", "found"),
    [([], ()), (["b=2", "a=1"], (("a", "1"), ("b", "2"))), (["a="], (("a", ""),)), (["a=b=c"], (("a", "b=c"),)),
     (["a=1", "a=1"], (("a", "1"),)), (["url=https://x/y?z"], (("url", "https://x/y?z"),))],
    ids=str,
)  # fmt: skip
def test_labels(words: list[str], found: object) -> None:
    assert parse_labels(words) == found


@pytest.mark.parametrize(
    "words",
    [["a"], ["=1"], ["a b=1"], ["a=1", "a=2"], ["a=\n"], ["a=\ud800"], ["k" * 64 + "=1"], ["a=" + "v" * 256], ["-a=1"],
     [f"k{number}=1" for number in range(33)]],
    ids=lambda words: repr(words[0][:20]),
)  # fmt: skip
def test_what_is_no_label(words: list[str]) -> None:
    with pytest.raises(UsageError, match="label"):
        parse_labels(words)


def test_sizes() -> None:
    assert [parse_size(text, option="--x") for text in ("10", "5k", "2GB", "1m")] == [10, 5000, 2 * 10**9, 10**6]
    with pytest.raises(UsageError, match="--x"):
        parse_size("big", option="--x")


def test_the_command_line(
    context: Context, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in context.environ.items():
        monkeypatch.setenv(name, value)
    for name in ("_ui", "_context"):
        monkeypatch.delattr(CALL, name, raising=False)
    argv = ["-C", str(context.directory), "--json", "runs", "ls", "--all", "--label", "ticket=A-1", "--cost", ">1"]
    with pytest.raises(SystemExit) as left:
        main(argv)
    answer = json.loads(capsys.readouterr().out)
    assert left.value.code == 0
    (row,) = answer["result"]
    assert (row["run"], row["labels"], row["cost_usd"]) == (A, {"ticket": "A-1", "team": "x"}, 2.5)
    for name in ("_ui", "_context"):
        monkeypatch.delattr(CALL, name, raising=False)
    with pytest.raises(SystemExit) as left:
        main([*argv, "--until", "soon"])
    assert left.value.code == 2
    assert json.loads(capsys.readouterr().out)["error"]["message"].startswith("--until 'soon'")
    for name in ("_ui", "_context"):
        monkeypatch.delattr(CALL, name, raising=False)
