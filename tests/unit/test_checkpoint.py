"""Where a live session's chain stands, told in a line of health words and kept on the host: what is cut off later is
missed, though nothing was sealed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from agent_container.agents.own import own_profile
from agent_container.engine.protocol import ContainerState, Engine
from agent_container.errors import Tampered
from agent_container.events import Event, RunStarted
from agent_container.records import Outcome
from agent_container.sandbox.noting import note_stand
from agent_container.sandbox.turn import TurnEnd, TurnLimits, TurnWatch, _check_alive, _Progress, ended_by
from agent_container.store import Store, VerifiedHead
from agent_container.verify import verify_run
from agent_egress.checkpoint import Stand
from agent_egress.receipts import ZERO_MAC
from tests.support.records import KEY, RUN, STARTED, chain_of, checkpoint_of, publish_run

A, B = "a" * 64, "b" * 64


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data", tmp_path / "state").prepare()


def words_of(lines: Sequence[bytes]) -> str:
    at = checkpoint_of(lines)
    return Stand(at.length, at.head).words


WORDS = {
    "nothing": ("", None),
    "an older sidecar's": ("killed: x.test was contacted", None),
    "a stand": (f"chain 12 {A}", Stand(12, A)),
    "one after a kill": (f"killed: x.test was contacted\nchain 12 {A}\n", Stand(12, A)),
    "one within a line": (f"killed: chain 12 {A} was looked up\nchain 13 {B}\n", Stand(13, B)),
    "half a line": (f"chain 12 {A[:40]}", None),
    "no receipt": (f"chain 0 {A}", None),
    "another number": (f"chain \u0661\u0662 {A}", None),
    "too many": (f"chain 1234567890 {A}", None),
}


@pytest.mark.parametrize(("words", "stand"), WORDS.values(), ids=WORDS.keys())
def test_health_words_tell_of_a_stand_or_of_none(words: str, stand: Stand | None) -> None:
    assert Stand.read(words) == stand


def test_a_stand_reads_back_and_an_empty_chain_has_none() -> None:
    assert Stand.read(Stand(7, A).words) == Stand(7, A)
    assert Stand(0, ZERO_MAC).words == ""
    assert Stand.of({"ok": False, "length": 3, "head": A}) is None


def test_a_stand_ends_no_turn_and_hides_no_end() -> None:
    assert ended_by(f"chain 12 {A}\n") is None
    assert ended_by(f"killed: x.test was contacted\nchain 12 {A}\n") == TurnEnd(Outcome.KILLED, "x.test was contacted")


class TestKept:
    def test_it_only_moves_forward_and_old_words_are_no_news(self, store: Store) -> None:
        assert store.checkpoints.note(VerifiedHead(RUN, 5, A))
        assert not store.checkpoints.note(VerifiedHead(RUN, 3, B))
        assert not store.checkpoints.note(VerifiedHead(RUN, 5, A))
        assert store.checkpoints.note(VerifiedHead(RUN, 6, B))
        assert store.checkpoints.load(RUN) == VerifiedHead(RUN, 6, B)
        with pytest.raises(Tampered, match="receipt 6 .* is not the one that was seen before"):
            store.checkpoints.note(VerifiedHead(RUN, 6, A))
        store.checkpoints.advance(VerifiedHead(RUN, 9, A, sealed=True))
        assert not store.checkpoints.note(VerifiedHead(RUN, 12, B))
        assert store.checkpoints.load(RUN) == VerifiedHead(RUN, 9, A, sealed=True)

    def test_what_cannot_be_kept_is_told_and_ends_nothing(self, store: Store) -> None:
        assert note_stand(store, RUN, f"chain 5 {A}") == ""
        assert "is not the one" in note_stand(store, RUN, f"chain 5 {B}")
        (store.state / "checkpoints" / f"{RUN}.json").write_bytes(b"no checkpoint")
        assert "is not a checkpoint" in note_stand(store, RUN, f"chain 6 {A}")


class TestMissed:
    """The sidecar was killed, nothing was sealed, and the host has the session's key."""

    LINES = chain_of(seal=False)

    def verified(self, store: Store, lines: list[bytes]) -> tuple[int, list[str]]:
        run_dir = publish_run(store, lines=lines).place.path
        known = store.checkpoints.load(RUN)
        result = verify_run(run_dir, chain_key=KEY, checkpoint=known, host_key=store.host_key.published())
        return result.exit_code, [finding.detail for finding in result.findings]

    def test_what_was_cut_off_below_the_stand(self, store: Store) -> None:
        note_stand(store, RUN, words_of(self.LINES))
        code, details = self.verified(store, self.LINES[:-2])
        assert code == 5
        assert "2 missing at the end" in details

    def test_all_of_it(self, store: Store) -> None:
        note_stand(store, RUN, words_of(self.LINES))
        assert self.verified(store, [])[0] == 5

    def test_another_receipt_in_its_place(self, store: Store) -> None:
        note_stand(store, RUN, words_of(self.LINES))
        # Somebody who has the key from the beginning, the host's own user say, writes it all anew.
        assert (
            self.verified(store, chain_of(list(reversed([{"kind": "cut"}] * (len(self.LINES) - 1))), seal=False))[0]
            == 5
        )

    def test_what_was_written_since_is_not(self, store: Store) -> None:
        note_stand(store, RUN, words_of(self.LINES[:-2]))
        assert self.verified(store, self.LINES)[0] == 6
        assert self.verified(store, self.LINES)[0] == 6


def test_a_turn_that_is_followed_keeps_what_is_new_and_tells_trouble_once() -> None:
    kept: list[str] = []
    told: list[str] = []
    state = ContainerState(
        id="e", name="egress", image_id="i", status="running", exit_code=0, health="healthy", started_at="", pid=1,
        labels=(), oom_killed=False, health_words=f"chain 3 {A}", raw={},
    )  # fmt: skip

    class Machine:
        def inspect(self, container: str) -> ContainerState:
            return state

    def note(words: str) -> str:
        kept.append(words)
        return "the disk is full"

    def hear(event: Event) -> None:
        told.append(str(getattr(event, "text", "")))

    watch = TurnWatch(
        engine=cast(Engine, Machine()), egress="e", agent="a", turn="t",
        profile=own_profile(command=("true",), environment=(), hosts=()), limits=TurnLimits(9, 9), on_event=hear,
        stop=lambda: None, stop_requested=lambda: False, now=lambda: STARTED,
        started=RunStarted(at=STARTED, run=RUN, agent="demo", task="x"), note=note,
    )  # fmt: skip
    progress = _Progress(watch)
    for _ in range(3):
        assert _check_alive(watch, progress) is None
    assert kept == [f"chain 3 {A}"]
    state = ContainerState(**{**vars(state), "health_words": f"chain 9 {B}"})
    assert _check_alive(watch, progress) is None
    assert kept == [f"chain 3 {A}", f"chain 9 {B}"]
    assert [text for text in told if text] == ["where the receipts stand could not be kept: the disk is full"]
