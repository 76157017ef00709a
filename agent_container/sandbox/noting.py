"""The host's note of where a live session's chain stands: what is cut off below it later is missed, even when the
sidecar is gone and has sealed nothing. It costs no exec: the words come with the container's state."""

from __future__ import annotations

from agent_container.errors import AgentContainerError
from agent_container.store import Store, VerifiedHead
from agent_egress.checkpoint import Stand


def note_stand(store: Store, session: str, words: str) -> str:
    """Keeps what the sidecar's health words tell; why that could not be, empty where it could or there was nothing.

    Never raises: what matters here is what a later verification finds.
    """
    stand = Stand.read(words)
    if stand is None:
        return ""
    try:
        store.checkpoints.note(VerifiedHead(session, stand.length, stand.head))
    except AgentContainerError as error:
        return error.message
    return ""
