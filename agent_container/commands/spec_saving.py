"""`--save`: what was allowed, denied or removed live, written into the project's spec with all else in it kept.

The edit is worked out before anything is put in force, and written after. Nothing else asks the user again for what
they have just typed; whatever else changed in the spec still waits for its yes. What is approved is told from the bytes
that were read and written, never from the file again: in a bound workspace an agent may be changing it meanwhile.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent_container.agents import profile_of
from agent_container.commands.context import Context
from agent_container.commands.resolve import grant_sources
from agent_container.errors import UsageError
from agent_container.project import SPEC_NAME, Project, find_project, read_spec
from agent_container.spec import EgressRule, ProjectSpec, load_spec
from agent_container.spec_edit import Entry, add_entry, remove_entries
from agent_container.trust import grants_of, parse_grants
from agent_egress.policy import DEFAULT_PORTS


@dataclass(frozen=True)
class Saving:
    """An edit of the spec, worked out before anything is put in force."""

    project: Project
    path: Path
    before: bytes
    after: bytes

    @property
    def changes(self) -> bool:
        """Whether the spec does not say so already."""
        return self.before != self.after

    @classmethod
    def plan(cls, ctx: Context, verb: Literal["allow", "deny", "rm"], entry: EgressRule) -> Saving:
        """Raises: UsageError, SpecError; nothing was written."""
        project = find_project(ctx.directory, ctx.spec_path)
        path = project.spec_path
        if path is None:
            raise UsageError(
                f"there is no {SPEC_NAME} to save to", hint=f"write one that says at least `agent: NAME` as {SPEC_NAME}"
            )
        if path.is_symlink():  # whose link it is nobody knows: it may lead into another project
            raise UsageError(
                f"{path} is a link, so it was not changed", hint=f"name the file itself: --file {path.resolve()}"
            )
        before = read_spec(path)
        spec_rules = _parsed(project, path, before).egress  # its mistakes are the user's to mend first
        body = before.decode()
        ports = () if entry.ports == DEFAULT_PORTS else entry.ports
        if verb == "rm":
            after = remove_entries(remove_entries(body, "allow", entry.host), "deny", entry.host)
        elif verb == "deny":
            after = add_entry(body, "deny", Entry(entry.host))
        else:
            after = add_entry(body, "allow", Entry(entry.host, ports, entry.addresses))
        if verb == "allow" and any(_holds(rule, entry) for rule in spec_rules.allow):
            after = body
        if verb == "deny" and entry.host in spec_rules.deny:
            after = body
        saving = cls(project, path, before, after.encode())
        _parsed(project, path, saving.after)
        return saving

    def write(self, ctx: Context) -> tuple[str, ...]:
        """Changes the file; a spec that was approved as it stood stays approved, since its user typed the change.

        Raises: UsageError when the file is not what the edit was made from any more; it is then left as it is.
        """
        if not self.changes:
            return (f"{self.path.name} says so already",)
        body = ctx.store.approvals.load(self.project.id)
        approved = parse_grants(body) if body is not None else None
        before, after = (_parsed(self.project, self.path, body) for body in (self.before, self.after))
        digests, also = grant_sources(ctx, self.project, before, profile_of(before))
        was, asked = (grants_of(spec, image_digests=digests, also=also) for spec in (before, after))
        _write(self.path, self.after, expect=self.before)
        if approved is not None and approved == was:
            ctx.store.approvals.save(self.project.id, asked.encode())
            return (f"saved in {self.path.name}",)
        return (
            f"saved in {self.path.name}; the next `agent-container up` asks for your yes to all that changed in it",
        )


def _parsed(project: Project, path: Path, body: bytes) -> ProjectSpec:
    return load_spec(body, path=path, default_name=project.name)


def _holds(rule: EgressRule, entry: EgressRule) -> bool:
    return (
        rule.host == entry.host and set(entry.ports) <= set(rule.ports) and set(entry.addresses) <= set(rule.addresses)
    )


def _write(path: Path, data: bytes, *, expect: bytes) -> None:
    """The same file with other content. Not a new one in its place: the mount that keeps the spec from the agent of a
    bound workspace holds this very file, and the kernel drops it when another takes its name."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{path} was not changed: {(error.strerror or str(error)).lower()}") from None
    with os.fdopen(descriptor, "r+b", buffering=0):
        plain = stat.S_ISREG(os.fstat(descriptor).st_mode)
        if not plain or os.pread(descriptor, len(expect) + 1, 0) != expect:
            raise UsageError(
                f"{path.name} was changed by somebody else meanwhile, so nothing was saved in it",
                hint="look at it, then the same command again",
            )
        # One call, so that who kills us finds no moment in it; a full disk takes a part, and then the former text fits.
        whole = os.pwrite(descriptor, data, 0) == len(data)
        kept = data if whole else expect
        if not whole:
            os.pwrite(descriptor, expect, 0)
        os.ftruncate(descriptor, len(kept))
        os.fsync(descriptor)
    if not whole:
        raise UsageError(f"{path} was not changed: no space left on device")
