"""The git gateway's boundary with one rule taken away: of the kernel's, or of the policy's repositories and refs."""

from __future__ import annotations

from dataclasses import replace

from agent_container.stack import Container
from agent_egress import identity
from tests.redteam.mutants import Mutant

NFT, POLICY_FILE = "nftables.nft", "policy.json"
_WAY = f'    meta skuid {identity.GATEWAY} oifname "lo" ip daddr 127.0.0.2 tcp dport 3128 accept\n'
_PUSH = '"push":["refs/heads/agent/*"]'
_REFS = ("push_main", "push_tag", "delete_a_branch")


def _gateway(container: Container) -> Container:
    return replace(container, user=f"{identity.GATEWAY}:{identity.GATEWAY}")


GIT: tuple[Mutant, ...] = (
    Mutant(
        "the agent reaches all of loopback",
        ("as_the_gateway",),
        NFT,
        'oifname "lo" ip saddr 127.0.0.0/8 ip daddr 127.0.0.1 accept',
        'oifname "lo" ip saddr 127.0.0.0/8 ip daddr 127.0.0.0/8 accept',
        still=("through_the_proxy",),
    ),
    Mutant("the gateway has no way out", ("control_fetch",), NFT, _WAY, ""),
    Mutant(
        "the gateway's uid may go anywhere",
        ("straight_to_the_forge",),
        NFT,
        _WAY,
        f"    meta skuid {identity.GATEWAY} accept\n",
        agent=_gateway,
    ),
    Mutant("the gateway's uid as it is", (), agent=_gateway, still=("straight_to_the_forge",)),
    Mutant(
        "every branch may be pushed",
        ("push_main",),
        POLICY_FILE,
        _PUSH,
        '"push":["refs/heads/*"]',
        still=("push_tag", "delete_a_branch", "another_repository"),
    ),
    Mutant(
        "every tag may be pushed",
        ("push_tag",),
        POLICY_FILE,
        _PUSH,
        '"push":["refs/heads/agent/*","refs/tags/*"]',
        still=("push_main", "delete_a_branch"),
    ),
    Mutant(
        "its branches may be deleted",
        ("delete_a_branch",),
        POLICY_FILE,
        '"delete":[]',
        '"delete":["refs/heads/agent/*"]',
        still=("push_main", "push_tag"),
    ),
    Mutant(
        "another repository is the one", ("another_repository", "control_fetch"), POLICY_FILE, "acme/api", "acme/other"
    ),
    Mutant(
        "the host's ssh is allowed to everybody",
        ("through_the_proxy",),
        POLICY_FILE,
        '"rules":[]',
        '"rules":[{"action":"allow","pattern":"git.test","ports":[22]}]',
        still=_REFS,
    ),
)
