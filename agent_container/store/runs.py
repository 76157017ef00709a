"""The records of runs on disk: one directory each, staged out of sight, published by one rename, final once sealed."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path

from agent_container.errors import Ambiguous, StoreError, UsageError
from agent_container.store.journal import Journal
from agent_container.store.paths import SAFE_NAME, safe_name
from agent_container.store.writer import TEMP_PREFIX, Writer, explained

STAGED = ".staging"
"""Where records are filled and removed: apart, so that either costs the same however many records there are."""
STAGING = ".staging-"
REPLACED = ".replaced-"


@dataclass(frozen=True)
class RunPlace:
    """Where one run's record lies, whether or not it is there yet."""

    project_id: str
    run_id: str
    path: Path


class Runs:
    """`runs/<project-id>/<run>/`. Callers that write hold the session's lock; readers need none."""

    def __init__(self, directory: Path, writer: Writer, journal: Journal) -> None:
        self._directory = directory
        self._writer = writer
        self._journal = journal

    def place(self, project_id: str, run_id: str) -> RunPlace:
        """Where the record of a run lies or will lie."""
        path = self._directory / safe_name(project_id, what="project") / safe_name(run_id, what="run")
        return RunPlace(project_id, run_id, path)

    def list(self, project_id: str | None = None) -> tuple[RunPlace, ...]:
        """Published records, newest first, of one project or of all."""
        return tuple(place() for _, place in sorted(self._names(project_id), key=itemgetter(0), reverse=True))

    def find(self, run_id: str) -> RunPlace | None:
        """The record of that very id, whichever project's; costs the same however many there are."""
        if not SAFE_NAME.fullmatch(run_id):
            return None
        places = (self.place(project, run_id) for project in visible(self._directory))
        return next((place for place in places if place.path.is_dir()), None)

    def resolve(self, prefix: str | None, *, project_id: str | None = None) -> RunPlace:
        """The run that an unambiguous prefix names; the newest for None. Raises UsageError."""
        if prefix is not None and SAFE_NAME.fullmatch(prefix):
            here = self.place(project_id, prefix) if project_id is not None else self.find(prefix)
            if here is not None and here.path.is_dir():
                return here
        names = list(self._names(project_id))
        if not names:
            raise UsageError("there are no runs yet", hint='agent-container run "what to do"')
        if prefix is None:
            return max(names, key=itemgetter(0))[1]()
        found = [row for row in names if row[0] == prefix] or [
            row for row in names if prefix and row[0].startswith(prefix)
        ]
        if not found:
            raise UsageError(f"no run is called {prefix!r}", hint="agent-container runs ls")
        if len(found) > 1:
            raise Ambiguous(
                f"{prefix!r} is the beginning of {len(found)} runs",
                details=sorted((name for name, _ in found), reverse=True)[:10],
                hint="type more of the id",
            )
        return found[0][1]()

    def _names(self, project_id: str | None) -> Iterator[tuple[str, Callable[[], RunPlace]]]:
        """Every id, and what makes its place: of a hundred thousand, most are asked for their name alone."""
        for project in [project_id] if project_id is not None else visible(self._directory):
            directory = self._directory / safe_name(project, what="project")
            there = set(visible(directory))
            for run in there:
                yield run, partial(self.place, project, run)
            # A crash between the two renames of `publish` leaves a whole record aside: it is shown where it lies.
            for run in visible(directory, prefix=REPLACED):
                if run not in there:
                    yield run, partial(RunPlace, project, run, directory / f"{REPLACED}{run}")

    @contextmanager
    def staging(self, place: RunPlace) -> Iterator[Path]:
        """An invisible directory to fill. What `publish` has not taken by the end of the block is removed."""
        self.recover(place)
        self._writer.make_dir(place.path.parent)
        with self.scratch(place.run_id) as staged:
            yield staged

    @contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """The same for what has no place yet."""
        staged = self._directory / STAGED / f"{STAGING}{name}-{secrets.token_hex(4)}"
        self._writer.make_dir(staged.parent)
        with explained(staged, "create"):
            staged.mkdir(0o700)
            staged.chmod(0o700)
        try:
            yield staged
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def clear_scratch(self, name: str) -> None:
        """Removes what killed processes left of `scratch`. Callers hold the lock under which such is made."""
        area = self._directory / STAGED
        if not area.is_dir():
            return
        with explained(area, "tidy"):
            for entry in list(area.iterdir()):
                if entry.name.startswith(f"{STAGING}{name}-"):
                    shutil.rmtree(entry)

    def publish(self, staged: Path, place: RunPlace) -> None:
        """Puts a staged record in its place, instead of an unsealed one that was there.

        A directory cannot be renamed over a full one, so the old record steps aside first; `recover` brings it back
        when a crash falls between the two renames.
        """
        self._writer.make_dir(place.path.parent)
        with explained(place.path, "publish"):
            self._writer.sync_tree(staged)  # before anybody else has to wait for it
        with self._changing(place):
            if not place.path.exists():
                self._writer.move_dir(staged, place.path)
                return
            aside = place.path.parent / f"{REPLACED}{place.run_id}"
            with explained(place.path, "replace"):
                place.path.rename(aside)
            self._writer.move_dir(staged, place.path)
            self._writer.remove_tree(aside)

    def recover(self, place: RunPlace) -> None:
        """Undoes what a killed drain left: staging goes, a record that stepped aside comes back."""
        aside, area = place.path.parent / f"{REPLACED}{place.run_id}", self._directory / STAGED
        if aside.is_dir():
            with explained(place.path, "recover"), self._changing(place):
                if place.path.exists():
                    shutil.rmtree(aside)
                else:
                    aside.rename(place.path)
        self.clear_scratch(place.run_id)
        if area.is_dir():
            self._writer.sweep(area)

    def remove(self, place: RunPlace) -> None:
        """Removes a record for good. Raises StoreError when there is none."""
        if not place.path.is_dir():
            raise StoreError(f"there is no record of run {place.run_id}")
        area = self._writer.make_dir(self._directory / STAGED)
        hidden = area / f"{TEMP_PREFIX}{place.run_id}-{secrets.token_hex(4)}"
        with self._changing(place):
            self._writer.move_dir(place.path, hidden)
        self._writer.remove_tree(hidden)

    def _changing(self, place: RunPlace) -> AbstractContextManager[None]:
        return self._journal.change(place.path.parent, place.run_id)


def visible(directory: Path, *, prefix: str = "") -> Iterator[str]:
    """Directories in it whose names, without the prefix, could be ours."""
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(prefix) and entry.is_dir()]
    except FileNotFoundError:
        return iter(())
    return filter(SAFE_NAME.fullmatch, (name.removeprefix(prefix) for name in names))
