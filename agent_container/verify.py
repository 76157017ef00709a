"""Whether a run's record is what was written: signature, digests, every link of the chain, its seal, the host's
checkpoint, each dialled address explained, each decision decided again.

Reads one record directory and nothing else; keys, checkpoint and further policies are parameters. Changed means
tampered (5); what cannot be said for want of a key, a seal, a policy or the record itself is unverifiable (6), and
nothing checked is never a success.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from agent_container.drain import RECEIPTS, RECORD, digest_file, file_pieces, list_files
from agent_container.errors import StoreError, Tampered, Unverifiable
from agent_container.frames import whole_lines
from agent_container.manifest import MANIFEST, Manifest, key_fingerprint, parse_manifest, signature_fits
from agent_container.records import RunRecord, parse_record
from agent_container.store import VerifiedHead
from agent_container.store.sessions import CHAIN_KEY_BYTES
from agent_container.store.writer import read_file
from agent_egress.identity import MAX_RECEIPT_BYTES
from agent_egress.policy import Policy, PolicyError
from agent_egress.receipts import ZERO_MAC, ChainReport, Checkpoint, Fields, verify_chain
from agent_egress.replay import Reconciliation, Replay

VERIFIED: Final = 0
TAMPERED: Final = 5
UNVERIFIABLE: Final = 6
EXTRA_CHAIN_LINE_BYTES = 64
MAX_NAMED = 50

Weight = Literal["tampered", "unverifiable"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong or cannot be said."""

    weight: Weight
    kind: str
    where: str
    """The file, or `receipts.jsonl:12`."""
    detail: str


@dataclass(frozen=True)
class Counts:
    """What was looked at."""

    files: int = 0
    receipts: int = 0
    replayed: int = 0
    policies: int = 0


@dataclass(frozen=True)
class VerifyResult:
    """The verdict, everything that speaks against it, and what it rests on."""

    run: str
    exit_code: Literal[0, 5, 6]
    findings: tuple[Finding, ...]
    counts: Counts
    head: VerifiedHead | None = None
    """The chain's head when the chain verified: the next checkpoint."""
    signer: str = ""
    """The fingerprint of the host key that signed; empty while nothing is known of it."""

    @property
    def verdict(self) -> str:
        """In a word."""
        return {VERIFIED: "verified", TAMPERED: "tampered", UNVERIFIABLE: "cannot be verified"}[self.exit_code]


def verify_run(
    run_dir: Path,
    *,
    chain_key: bytes | None = None,
    checkpoint: VerifiedHead | None = None,
    policies: Mapping[str, bytes] | None = None,
    host_key: bytes | None = None,
    former_keys: Collection[bytes] = (),
    egress_only: bool = False,
    elsewhere: bool = False,
) -> VerifyResult:
    """Checks one record directory.

    Without `chain_key` the key in the manifest is used, which holds as far as the manifest's signature does.
    `host_key` is this host's public half: without it, or with another's signature, nobody here vouches for the record.
    `former_keys` are those that it had before, each as good. `policies` adds to those in the record, by digest.
    `egress_only` leaves the other files' digests out. `elsewhere`: it lies outside a store, where a directory's name
    says nothing.
    """
    return _Verification(
        run_dir,
        chain_key=chain_key,
        checkpoint=checkpoint,
        policies=policies or {},
        host_key=host_key,
        former_keys=former_keys,
        egress_only=egress_only,
        elsewhere=elsewhere,
    ).run()


def check_files(run_dir: Path, *, host_key: bytes | None, former_keys: Collection[bytes] = ()) -> VerifyResult:
    """The cheap part of `verify_run`: whether the manifest is this host's and every file has the digest in it.

    Says nothing of the chain, the decisions or the host's checkpoint.
    """
    return _Verification(run_dir, host_key=host_key, former_keys=former_keys).files_only()


class _Verification:
    """One verification; findings gather as it goes."""

    def __init__(
        self,
        run_dir: Path,
        *,
        host_key: bytes | None,
        former_keys: Collection[bytes],
        chain_key: bytes | None = None,
        checkpoint: VerifiedHead | None = None,
        policies: Mapping[str, bytes] = MappingProxyType({}),
        egress_only: bool = False,
        elsewhere: bool = False,
    ) -> None:
        self.dir = run_dir
        self.run_id = run_dir.name
        self.chain_key = chain_key
        self.checkpoint = checkpoint
        self.policies = policies
        self.host_key = host_key
        self.former_keys = former_keys
        self.egress_only = egress_only
        self.elsewhere = elsewhere
        self.signer = ""
        self._opened: Fields | None = None
        self._bodies: dict[str, bytes] = {}
        self._parsed: dict[str, Policy | None] = {}
        """Those that the chain names; None where no body has the digest."""
        self._replay = Replay(self._policy)
        self._reconciliation = Reconciliation()
        self.findings: list[Finding] = []
        self.files = self.receipts = self.replayed = 0
        self.head: VerifiedHead | None = None

    def run(self) -> VerifyResult:
        """Manifest, files, chain, replay, in this order."""
        try:
            manifest = self._manifest()
            if manifest is not None:
                self._files(manifest)
                self._record(manifest)
                self._chain(manifest)
        except StoreError as bad:
            self._cannot("unreadable", str(self.dir), bad.message)
        except Unverifiable as bad:
            self._cannot("key-missing", RECEIPTS, bad.message)
        except Tampered as bad:
            self._tampered("policy", "policies", bad.message)
        return self._result()

    def files_only(self) -> VerifyResult:
        """Manifest and files."""
        try:
            manifest = self._manifest()
            if manifest is not None:
                self._files(manifest)
        except StoreError as bad:
            self._cannot("unreadable", str(self.dir), bad.message)
        return self._result()

    def _result(self) -> VerifyResult:
        weights = {finding.weight for finding in self.findings}
        code: Literal[0, 5, 6] = 5 if "tampered" in weights else 6 if weights else 0
        return VerifyResult(
            run=self.run_id,
            exit_code=code,
            findings=tuple(self.findings),
            counts=Counts(self.files, self.receipts, self.replayed, len(self.policies)),
            head=self.head if code == VERIFIED else None,
            signer=self.signer,
        )

    def _manifest(self) -> Manifest | None:
        if not self.dir.is_dir():
            self._cannot("nothing-there", str(self.dir), "there is no record")
            return None
        body = read_file(self.dir / MANIFEST)
        if body is None:
            self._cannot("no-manifest", MANIFEST, "the record was never finished, or its manifest was removed")
            return None
        try:
            manifest = parse_manifest(body)
        except ValueError as bad:
            self._tampered("manifest", MANIFEST, f"not a manifest: {bad}")
            return None
        if manifest.encode() != body:
            self._tampered("manifest", MANIFEST, "it is not spelled as it was written, though it may say the same")
        if not signature_fits(manifest):
            self._tampered("signature", MANIFEST, "the signature does not fit the manifest")
        try:
            signer = base64.b64decode(manifest.host_key)
        except ValueError:
            signer = b""  # a key that is none: the signature does not fit either, which is said above
        self.signer = key_fingerprint(signer)
        if self.host_key is None:
            self._cannot("host-key-missing", MANIFEST, f"the host key {self.signer} is not here")
        elif signer not in (self.host_key, *self.former_keys):
            ours, whose = key_fingerprint(self.host_key), "that given" if self.elsewhere else "this host's"
            self._cannot("other-host", MANIFEST, f"signed by host key {self.signer}, {whose} is {ours}")
        if self.elsewhere:
            self.run_id = manifest.run
        elif manifest.run != self.dir.name:
            self._tampered("wrong-place", MANIFEST, f"this is the record of run {manifest.run}")
        return manifest

    def _files(self, manifest: Manifest) -> None:
        names = [name for name in list_files(self.dir) if self._looked_at(name)]
        self.files = len(names)
        for name in names:
            claimed = manifest.files.get(name)
            path = self.dir / name
            if path.is_symlink() or not path.is_file():
                self._tampered("special-file", name, "not a regular file")
            elif claimed is None:
                self._tampered("extra-file", name, "it is not in the manifest")
            elif (row := digest_file(path)) != claimed:
                self._tampered("digest", name, f"{row.bytes} bytes with another digest, expected {claimed.bytes} bytes")
        for name in manifest.files:
            if self._looked_at(name) and name not in names:
                self._tampered("missing-file", name, "the manifest has it, the record has not")

    def _looked_at(self, name: str) -> bool:
        return not self.egress_only or name == RECEIPTS or name.startswith("policies/")

    def _record(self, manifest: Manifest) -> None:
        body = read_file(self.dir / RECORD)
        if body is None or self.egress_only:
            return  # its absence is a finding of `_files`
        try:
            record: RunRecord = parse_record(body, origin=RECORD)
        except StoreError as bad:
            self._tampered("record", RECORD, "; ".join([bad.message, *bad.details[:3]]))
            return
        if record.host.run != manifest.run or record.host.session != manifest.chain.session:
            self._tampered("record", RECORD, "it names another run or session than the manifest")
        if record.host.egress.chain_head != manifest.chain.head:
            self._tampered("record", RECORD, "it names another chain head than the manifest")

    def _chain(self, manifest: Manifest) -> None:
        key = self._key(manifest)
        if key is None:
            return
        if not (self.dir / RECEIPTS).exists():
            gone = "the host has verified receipts of this session, and they are gone"
            if self.checkpoint or manifest.chain.length:
                self._tampered("cut-tail", RECEIPTS, gone)
            else:
                self._cannot("nothing-there", RECEIPTS, "there are no receipts")
            return
        self._bodies = {**self._own_policies(), **self.policies}
        known = self.checkpoint
        report = verify_chain(
            self._lines(),
            key=key,
            checkpoint=Checkpoint(known.length, known.head) if known else None,
            observe=self._observe,
        )
        self.receipts = sum(count for kind, count in report.counts.items() if "." not in kind)
        for fault in report.faults[:MAX_NAMED]:
            where = f"{RECEIPTS}:{fault.line}" if fault.line else RECEIPTS
            self._find(
                "unverifiable" if report.status == "unverifiable" else "tampered", fault.kind, where, fault.detail
            )
        if known and known.sealed and report.length != known.length:
            self._tampered("behind-checkpoint", RECEIPTS, f"the chain was sealed at {known.length} receipts")
        self._same_chain(manifest, report)
        if not self.receipts and not report.faults:
            self._cannot("nothing-there", RECEIPTS, "no receipt was verified")
        if report.status == "verified":
            self.head = VerifiedHead(manifest.chain.session, report.length, report.head, report.sealed)
        self._rests_on(report)

    def _key(self, manifest: Manifest) -> bytes | None:
        published = None
        if manifest.chain.key is not None:
            try:
                published = bytes.fromhex(manifest.chain.key)
                if len(published) != CHAIN_KEY_BYTES:
                    raise ValueError
            except ValueError:
                published = None
                self._tampered("key", MANIFEST, "the chain key in it is no key")
        if self.chain_key and published and published != self.chain_key:
            self._tampered("key", MANIFEST, "the chain key in it is not the session's")
        key = self.chain_key or published
        if key is None:
            self._cannot("key-missing", RECEIPTS, f"the chain key of session {manifest.chain.session} is missing")
        return key

    def _same_chain(self, manifest: Manifest, report: ChainReport) -> None:
        claimed = manifest.chain
        head = None if report.head == ZERO_MAC else report.head
        if report.status != "tampered" and (claimed.head, claimed.length, claimed.sealed) != (
            head,
            report.length,
            report.sealed,
        ):
            self._tampered("head", MANIFEST, f"it names a head at {claimed.length} receipts, found {report.length}")
        opened = self._opened
        if opened is not None and opened.get("kind") == "open" and opened.get("session") != claimed.session:
            self._tampered(
                "wrong-session", f"{RECEIPTS}:1", f"these are the receipts of session {opened.get('session')}"
            )

    def _observe(self, receipt: Fields) -> None:
        """Everything that the receipts say is looked at in one pass: a chain may have millions."""
        if self._opened is None:
            self._opened = receipt
        self._replay.add(receipt)
        self._reconciliation.add(receipt)

    def _policy(self, digest: str) -> Policy | None:
        """A policy that the chain names, where its body is here and has that digest; `_rests_on` says the rest."""
        if digest not in self._parsed:
            body, policy = self._bodies.get(digest), None
            if body is not None and _digest(body) == digest:
                with contextlib.suppress(PolicyError):
                    policy = Policy.parse(body)
            self._parsed[digest] = policy if policy is not None and policy.digest == digest else None
        return self._parsed[digest]

    def _rests_on(self, report: ChainReport) -> None:
        """The policies that the chain names; then each decision and destination in their light."""
        for digest in report.digests:
            body = self._bodies.get(digest)
            if self._policy(digest) is not None:
                continue
            if body is None:
                self._cannot("policy-missing", "policies", f"the policy {digest} is not stored")
                continue
            try:
                digests = {Policy.parse(body).digest, _digest(body)}
            except PolicyError as bad:
                self._tampered("policy", f"policies/{digest}", f"it cannot be read: {bad}")
                continue
            self._tampered("policy", f"policies/{digest}", f"its digest is {min(digests - {digest})}")
        named = {digest.removeprefix("sha256:")[:16] for digest in report.digests}
        for short, seq in self._replay.unjudged.items():
            if short not in named:  # else said above
                self._cannot("policy-missing", f"receipt {seq}", f"the policy {short} that it names is not stored")
        self.policies = {digest: self._bodies[digest] for digest in report.digests if self._policy(digest)}
        for fault in (*self._replay.faults(), *self._reconciliation.faults()):
            self._tampered(fault.kind, f"receipt {fault.line}", fault.detail)
        self.replayed = self._replay.count

    def _own_policies(self) -> dict[str, bytes]:
        directory = self.dir / "policies"
        if not directory.is_dir():
            return {}
        found = {}
        for path in sorted(directory.iterdir()):
            try:
                body = read_file(path)
            except StoreError as bad:
                self._cannot("unreadable", f"policies/{path.name}", bad.message)
                continue
            if body is not None:
                found["sha256:" + path.name.removesuffix(".json")] = body
        return found

    def _lines(self) -> Iterator[bytes]:
        return whole_lines(file_pieces(self.dir / RECEIPTS), max_bytes=MAX_RECEIPT_BYTES + EXTRA_CHAIN_LINE_BYTES)

    def _tampered(self, kind: str, where: str, detail: str) -> None:
        self._find("tampered", kind, where, detail)

    def _cannot(self, kind: str, where: str, detail: str) -> None:
        self._find("unverifiable", kind, where, detail)

    def _find(self, weight: Weight, kind: str, where: str, detail: str) -> None:
        self.findings.append(Finding(weight, kind, where, detail))


def _digest(body: bytes) -> str:
    """Of the bytes themselves, which is all that somebody without a parser of policies can compare."""
    return f"sha256:{hashlib.sha256(body).hexdigest()}"
