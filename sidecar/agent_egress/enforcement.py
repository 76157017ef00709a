"""The policy in force, in every place that holds it: the file that the daemons read, the kernel's sets, unbound's list
of names that may resolve into private ranges, and the switch that shuts all of it. Which policy that is, the boundary
decides; what a policy says about one request, the daemons do."""

from __future__ import annotations

from pathlib import Path

from agent_egress import identity, ruleset
from agent_egress.ca import write_atomically
from agent_egress.daemons import PartError
from agent_egress.policy import Policy, PolicyError
from agent_egress.ruleset import Live, RulesetError

DENY_ALL = Policy.parse(b'{"version":1,"rules":[]}')
"""In force while cut, past the deadline and after the seal: the agent reads a refusal and meets no dead port."""


class Enforcement:
    """What is in force, as last put there. Every method that changes it raises PartError."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self.ruleset_digest = ruleset.read_back().digest
        self.in_force = DENY_ALL
        self.cut = True
        """Whether the switch is off; it is until the session opens."""
        self._sets = DENY_ALL
        self._sets_digest = ""

    def verify(self) -> None:
        """The rules in force are those that were rendered and loaded. Raises: PartError."""
        try:
            live = ruleset.read_back()
            found = ruleset.problems(live, self._source.read_text())
        except (RulesetError, OSError) as error:
            raise PartError("nftables", str(error), getattr(error, "output", "")) from error
        if live.digest != self.ruleset_digest:
            found.append("the rules in force are not the ones that were loaded")
        if found:
            raise PartError("nftables", "the rules in force are not as rendered", "\n".join(found))

    def intact(self, live: Live) -> bool:
        """Whether nobody but us changed the table."""
        ours = (self.ruleset_digest, self._sets_digest, self.cut)
        return (live.digest, live.policy_digest, live.is_cut) == ours

    def reload(self) -> None:
        """Loads the rules anew and puts into them what was in force."""
        cut = self.cut
        try:
            ruleset.load(self._source)
        except RulesetError as error:
            raise PartError("nftables", str(error), error.output) from error
        self.apply_sets(self._sets)
        self.set_cut(cut=cut)
        self.verify()

    def apply_sets(self, policy: Policy) -> None:
        """The kernel's share of a policy; on a failure the former one stays."""
        try:
            ruleset.apply_policy(policy)
            self._sets_digest = ruleset.read_back().policy_digest
        except RulesetError as error:
            raise PartError("nftables", str(error), error.output) from error
        self._sets = policy

    def set_cut(self, *, cut: bool) -> None:
        """Off: nothing leaves, live flows included."""
        try:
            ruleset.set_cut(cut)
        except RulesetError as error:
            raise PartError("nftables", str(error), error.output) from error
        self.cut = cut

    def write(self, policy: Policy) -> None:
        """The daemons' share: they obey from the next request and query on."""
        write_atomically(Path(identity.PRIVATE_DOMAINS_FILE), private_domains(policy))
        write_atomically(Path(identity.POLICY_FILE), policy.encode().decode())
        self.in_force = policy


def checked_policy(data: bytes, *, where: str, headers: tuple[str, ...]) -> Policy:
    """A policy that can be enforced by a squid that knows these credential headers.

    Raises:
        PartError: naming everything that is wrong; nothing of it is then used.
    """
    try:
        policy = Policy.parse(data)
    except PolicyError as error:
        raise PartError("policy", f"{where} refused as a whole", "\n".join(error.problems)) from error
    unknown = sorted({binding.header for binding in policy.credentials} - set(headers))
    if unknown:
        # squid's header names are static: it would neither strip nor add these.
        raise PartError("policy", f"{where}: header {', '.join(unknown)} was not listed when the session began")
    return policy


def private_domains(policy: Policy) -> str:
    """unbound's lines for names that may resolve into the floor."""
    lifted = [rule for rule in policy.rules if rule.allows and rule.network is None and rule.addresses]
    names = sorted({rule.pattern.removeprefix("*.") for rule in lifted})
    return "".join(f'private-domain: "{name}."\n' for name in names)


def narrower(before: Policy, after: Policy) -> bool:
    """Whether something that was allowed may no longer be, or no longer unseen."""
    allows = {rule for rule in before.rules if rule.allows} - set(after.rules)
    stricter = {rule for rule in after.rules if rule.refuses or rule.inspects} - set(before.rules)
    bindings = set(before.credentials) != set(after.credentials)
    repositories = bool(set(before.git) - set(after.git))
    opened = after.tls == "inspect" != before.tls
    return bool(
        allows or stricter or bindings or repositories or opened or (before.allow_metadata and not after.allow_metadata)
    )
