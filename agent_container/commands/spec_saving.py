"""`--save`: what was allowed, denied or removed live, written into the project's spec with all else in it kept.

The edit is worked out before anything is put in force, and written after. Nothing else asks the user again for what
they have just typed; whatever else changed in the spec still waits for its yes.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent_container.agents import profile_of
from agent_container.commands.context import Context
from agent_container.commands.resolve import asked_grants, read_project_spec
from agent_container.errors import UsageError
from agent_container.project import SPEC_NAME, Project, find_project, read_spec
from agent_container.spec import EgressRule
from agent_container.spec_edit import Entry, add_entry, remove_entries
from agent_container.trust import Grants, parse_grants
from agent_egress.policy import DEFAULT_PORTS


@dataclass(frozen=True)
class Saving:
    """An edit of the spec, worked out before anything is put in force."""

    project: Project
    path: Path
    before: str
    after: str

    @property
    def changes(self) -> bool:
        """Whether the spec does not say so already."""
        return self.before != self.after

    @classmethod
    def plan(cls, ctx: Context, verb: Literal["allow", "deny", "rm"], entry: EgressRule) -> Saving:
        """Raises: UsageError, SpecError; nothing was written."""
        project = find_project(ctx.directory, ctx.spec_path)
        if project.spec_path is None:
            raise UsageError(
                f"there is no {SPEC_NAME} to save to", hint=f"write one that says at least `agent: NAME` as {SPEC_NAME}"
            )
        read_project_spec(project)  # its mistakes are the user's to mend first
        body = read_spec(project.spec_path).decode()
        ports = () if entry.ports == DEFAULT_PORTS else entry.ports
        if verb == "rm":
            after = remove_entries(remove_entries(body, "allow", entry.host), "deny", entry.host)
        elif verb == "deny":
            after = add_entry(body, "deny", Entry(entry.host))
        else:
            after = add_entry(body, "allow", Entry(entry.host, ports, entry.addresses))
        spec_rules = read_project_spec(project).egress
        if verb == "allow" and any(_holds(rule, entry) for rule in spec_rules.allow):
            after = body
        if verb == "deny" and entry.host in spec_rules.deny:
            after = body
        return cls(project, project.spec_path, body, after)

    def write(self, ctx: Context) -> tuple[str, ...]:
        """Replaces the file; a spec that was approved as it stood stays approved, since its user typed the change."""
        if not self.changes:
            return (f"{self.path.name} says so already",)
        approved = ctx.store.approvals.load(self.project.id)
        was = self._grants(ctx)
        _replace(self.path, self.after.encode())
        if approved is not None and parse_grants(approved) == was:
            ctx.store.approvals.save(self.project.id, self._grants(ctx).encode())
            return (f"saved in {self.path.name}",)
        return (
            f"saved in {self.path.name}; the next `agent-container up` asks for your yes to all that changed in it",
        )

    def _grants(self, ctx: Context) -> Grants:
        spec = read_project_spec(self.project)
        return asked_grants(ctx, self.project, spec, profile_of(spec))


def _holds(rule: EgressRule, entry: EgressRule) -> bool:
    return (
        rule.host == entry.host and set(entry.ports) <= set(rule.ports) and set(entry.addresses) <= set(rule.addresses)
    )


def _replace(path: Path, data: bytes) -> None:
    """A new file in the old one's place, whole or not at all, with its mode and owner."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    there = path.stat()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(descriptor, there.st_mode & 0o777)
            if os.geteuid() == 0:
                os.fchown(descriptor, there.st_uid, there.st_gid)
            stream.write(data)
            stream.flush()
            os.fsync(descriptor)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
