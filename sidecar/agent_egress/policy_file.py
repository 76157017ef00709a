"""The policy in force, as a file that the supervisor replaces: looked at before every batch, so that the next request
or query obeys. What cannot be read denies everything."""

from __future__ import annotations

from pathlib import Path

from agent_egress.policy import deny_all
from agent_egress.rules import Policy, PolicyError


class PolicyFile:
    """Reads the file again whenever its identity, size or time changed."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._mark: tuple[int, int, int] | None = None
        self._policy = deny_all("no policy")

    def current(self) -> Policy:
        """The policy now in force."""
        try:
            stat = self._path.stat()
            mark = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if mark != self._mark:
                self._policy = Policy.parse(self._path.read_bytes())
                self._mark = mark
        except OSError:
            self._mark, self._policy = None, deny_all("no policy could be read")
        except PolicyError:
            self._mark, self._policy = mark, deny_all("the policy is broken")
        return self._policy
