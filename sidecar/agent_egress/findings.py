"""What follows from what a body holds: blocked or only noted, by whose secret it is, where it goes and the session's
mode; the receipts of it and the words for who is refused. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from agent_egress import kills
from agent_egress.fingerprints import Fingerprint
from agent_egress.policy import Policy
from agent_egress.receipts import Fields, cut_text
from agent_egress.scan import Finding, Patterns, Scanner

UNDECODABLE = "undecodable-body"


class Armed:
    """What is looked for in this session."""

    def __init__(self, fingerprints: Iterable[Fingerprint], *, mode: str) -> None:
        self.mode = mode
        rows = tuple(fingerprints)
        own = [row for row in rows if row.role == "own"]
        sent = rows if mode != "off" else tuple(row for row in rows if row.role != "stored")
        self.requests = Patterns(sent) if mode != "off" else Patterns(sent, kinds=())
        self.answers = Patterns(own, kinds=())


class Transaction:
    """One request's body, or one answer."""

    def __init__(self, armed: Armed, policy: Policy, *, host: str, port: int, answers: bool) -> None:
        self.patterns = armed.answers if answers else armed.requests
        self.refusal = ""
        """Words for the client; empty while the transaction may go on."""
        self.written = False
        """Whether the receipts were handed over."""
        self._armed = armed
        self._policy = policy
        self._host, self._port = host, port
        self._answers = answers
        self._bound = host in policy.bindings
        self._noted: Counter[tuple[str, str, str]] = Counter()
        """By what, coding and action."""
        self._tripped: list[Finding] = []

    @property
    def _blocks(self) -> bool:
        # Agents read keys in files and tell their model of it: at a host that holds a credential it is noted alone.
        return self._armed.mode == "enforce" and not self._bound

    def look_at_header(self, header: bytes) -> None:
        """An answer's header can hold the real secret too."""
        if self.patterns:
            self.add(Scanner(self.patterns).feed(header, last=True))

    def add(self, findings: Iterable[Finding]) -> None:
        """More was found."""
        for finding in findings:
            if finding.role == "decoy":
                if self._host not in finding.hosts:
                    self._tripped.append(finding)
                    where = "where it does not belong"
                    self._refuse(f"the placeholder of credential {finding.what} stands in the body, {where}")
            elif finding.role == "own":
                self._note(f"credential {finding.what}", finding.coding, block=True)
            elif finding.role == "stored":
                self._note(f"stored credential {finding.what}", finding.coding, block=self._blocks)
            else:
                self._note(finding.what, finding.coding, block=self._blocks)

    def unseen(self, problem: str) -> None:
        """The body, or the rest of it, cannot be looked at."""
        if any(what == UNDECODABLE for what, _, _ in self._noted):
            return
        if self._answers and self._bound:
            # It may hold the real secret, in whatever mode.
            self._note(UNDECODABLE, "", block=True, words=f"the body cannot be scanned: {problem}")
        elif self._armed.mode != "off":
            self._note(UNDECODABLE, "", block=self._blocks, words=f"the body cannot be scanned: {problem}")

    def _note(self, what: str, coding: str, *, block: bool, words: str = "") -> None:
        self._noted[what, coding, "block" if block else "log"] += 1
        if block:
            self._refuse(words or f"the body holds {what}" + (f", in {coding}" if coding else ""))

    def _refuse(self, words: str) -> None:
        if self.refusal:
            return
        side = "the answer of" if self._answers else "a request to"
        text = f"agent-container: blocked by body scanning: {side} {self._host}:{self._port}: {words}"
        text += f" (egress.dlp: {self._armed.mode})"
        self.refusal = "".join(char if 0x20 <= ord(char) < 0x7F else "?" for char in text)[:600]

    def receipts(self) -> list[Fields]:
        """One for each thing that was found; nothing of its text."""
        host, port = cut_text(self._host), self._port
        direction = "response" if self._answers else "request"
        found: list[Fields] = []
        for finding in self._tripped:
            found += kills.tripwire(self._policy, credential=finding.what, where="the body", host=host, port=port)
        for (what, coding, action), count in self._noted.items():
            told = {"action": action, "direction": direction, "host": host, "port": port, "what": what, "count": count}
            found.append({"kind": "dlp", **told, **({"coding": coding} if coding else {})})
        return found
