"""`egress log` and `egress watch`: receipts as they are, of a sandbox that works or of a record. What is live is only
read here; it is vouched for when it is drained."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from agent_container.commands.context import Context
from agent_container.commands.runs import resolve_run
from agent_container.commands.sandboxes import sandbox_named
from agent_container.drain import RECEIPTS, file_pieces
from agent_container.errors import NotRunning, UsageError
from agent_container.frames import split_lines
from agent_egress.identity import MAX_RECEIPT_BYTES
from agent_egress.receipts import parse_receipt

ARGV = ("/usr/bin/python3", "-I", "-m", "agent_egress.tail")
MAX_LINE = MAX_RECEIPT_BYTES + 64
WAKE_S = 0.5

Receipt = dict[str, object]


@dataclass(frozen=True)
class Wanted:
    """Which receipts a reader wants."""

    denied: bool = False
    host: str = "*"
    """A host, an address, or a pattern with `*`."""
    kinds: tuple[str, ...] = ()

    @property
    def all(self) -> bool:
        """Whether nothing is left out."""
        return not self.denied and self.host == "*" and not self.kinds

    def fits(self, receipt: Receipt) -> bool:
        """Whether it is one of them."""
        if self.kinds and receipt.get("kind") not in self.kinds:
            return False
        if self.denied and not is_refusal(receipt):
            return False
        return self.host == "*" or fnmatchcase(subject(receipt), self.host.lower())


def is_refusal(receipt: Receipt) -> bool:
    """Whether something was kept from leaving."""
    return receipt.get("kind") in ("drop", "tripwire", "kill") or receipt.get("action") in ("deny", "block")


def subject(receipt: Receipt) -> str:
    """The host, name or address that a receipt is about; empty for none."""
    return next((str(receipt[key]) for key in ("host", "name", "address") if receipt.get(key)), "")


def read_log(
    ctx: Context,
    *,
    run: str | None,
    wanted: Wanted,
    last: int,
    follow: bool,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Receipt]:
    """The last so many receipts of a live sandbox or of a record, then with `follow` what comes, until it is sealed.

    Raises: NotRunning when there is neither.
    """
    try:
        sandbox = sandbox_named(ctx, run)
    except NotRunning:
        if follow:
            raise
        yield from _last(_recorded(ctx, run), wanted, last)
        return
    # Of everything the sidecar finds the last ones itself; a filter has to see all of it.
    options = ("--last", str(last)) if wanted.all else ()
    if not follow:
        yield from _last(_live(ctx, sandbox.egress, options, stop), wanted, last)
        return
    if wanted.all:
        yield from _live(ctx, sandbox.egress, (*options, "--follow"), stop)
        return
    history, known = newest(_live(ctx, sandbox.egress, (), stop), wanted, last)
    yield from history
    # From the start again, so that nothing falls between the two.
    following = _live(ctx, sandbox.egress, ("--follow",), stop)
    yield from (row for row in following if sequence(row) > known and wanted.fits(row))


def sequence(receipt: Receipt) -> int:
    """Its place in the chain, from 1; 0 where it names none."""
    seq = receipt.get("seq")
    return seq if isinstance(seq, int) else 0


def newest(receipts: Iterable[Receipt], wanted: Wanted, count: int) -> tuple[deque[Receipt], int]:
    """The last so many that are wanted, and the number of the last of all. No more are held at any time: an agent
    makes as many as it likes."""
    kept: deque[Receipt] = deque(maxlen=max(count, 0))
    known = 0
    for receipt in receipts:
        known = sequence(receipt)
        if wanted.fits(receipt):
            kept.append(receipt)
    return kept, known


def _last(receipts: Iterator[Receipt], wanted: Wanted, count: int) -> Iterator[Receipt]:
    yield from newest(receipts, wanted, count)[0]


def _live(ctx: Context, container: str, options: tuple[str, ...], stop: Callable[[], bool]) -> Iterator[Receipt]:
    channel = ctx.engine.open_channel(container, (*ARGV, *options))
    try:
        while not stop():
            try:
                line = channel.receive(timeout_s=WAKE_S)
            except TimeoutError:
                continue
            if line is None:
                return
            receipt = parse_receipt(line)
            if receipt is not None:
                yield receipt
    finally:
        channel.close()


def _recorded(ctx: Context, run: str | None) -> Iterator[Receipt]:
    try:
        place = resolve_run(ctx, run)
    except UsageError as unknown:
        raise NotRunning(unknown.message, hint=unknown.hint) from None
    path = place.path / RECEIPTS
    if not path.is_file():
        raise NotRunning(f"run {place.run_id} has no receipts", hint=f"agent-container runs show {place.run_id}")
    for line in split_lines(file_pieces(path), max_bytes=MAX_LINE):
        receipt = parse_receipt(line.data.removesuffix(b"\n"))
        if receipt is not None:
            yield receipt


def shown(receipt: Receipt) -> tuple[str, str, str]:
    """Verdict, what it was about, and why, for people."""
    kind, action = str(receipt.get("kind")), str(receipt.get("action", ""))
    count = receipt.get("count")
    times = f" x{count}" if isinstance(count, int) and count > 1 else ""
    where = subject(receipt)
    port = f":{receipt['port']}" if receipt.get("port") else ""
    if kind == "decision":
        method = str(receipt.get("method", ""))
        path = str(receipt.get("path", "")) if method != "CONNECT" else ""
        return action, f"{method} {where}{port}{path}{times}".strip(), _why(receipt)
    if kind == "lookup":
        return action, f"lookup {where} {receipt.get('type', '')}{times}".strip(), _why(receipt)
    if kind == "answer":
        addresses = receipt.get("addresses")
        listed = " ".join(map(str, addresses)) if isinstance(addresses, list) else ""
        return "", f"answer {where}", listed
    if kind == "drop":
        return "drop", f"{receipt.get('proto', '')} {where}{port}{times}".strip(), "past the proxy"
    if kind in ("policy", "open", "seal"):
        digest = str(receipt.get("policy", ""))
        return "", kind, digest or str(receipt.get("outcome", ""))
    rest = {key: value for key, value in receipt.items() if key not in {"seq", "t", "kind", "mac", "prev", "policy"}}
    about = f"{kind} {where}{port}{times}".strip()
    return action, about, " ".join(f"{key}={_text(value)}" for key, value in rest.items() if key not in _SHOWN)


_SHOWN = frozenset({"host", "name", "address", "port", "action", "count"})


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _why(receipt: Receipt) -> str:
    rule = str(receipt.get("rule", ""))
    reason = str(receipt.get("reason") or receipt.get("why") or "")
    if receipt.get("action") == "deny":
        return "; ".join(part for part in (reason, f"rule: {rule}" if rule else "") if part) or "no rule allows it"
    credential = receipt.get("credential")
    return rule + (f", with credential {credential}" if credential else "")
