"""More of the model's service than the session's budget has: at once, and one after the other."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from .tools import (
    METERED_BYTES,
    METERED_DECOY,
    METERED_REQUESTS,
    attempt,
    bearer,
    over,
    reached_world,
    request,
    tunnel,
)


def _with_the_key(_: int) -> bool:
    try:
        with tunnel("metered.test") as wrapped:
            return reached_world(over(wrapped, request("/v1/messages", "metered.test", headers=bearer(METERED_DECOY))))
    except OSError:
        return False


@attempt
def spend_requests() -> object:
    """All at the same moment, so that each could be taken for the last one that is left."""
    count = METERED_REQUESTS + 5
    with ThreadPoolExecutor(count) as pool:
        done = sum(pool.map(_with_the_key, range(count)))
    return f"{done} requests" if done > METERED_REQUESTS else False


@attempt
def spend_bytes() -> object:
    """Answers of a megabyte, without the key too, each after the former was counted."""
    for _ in range((METERED_BYTES >> 20) * 3):
        with tunnel("metered.test") as wrapped:
            if len(over(wrapped, request("/bulk/1048576", "metered.test"))) < 1 << 20:
                return False
        time.sleep(0.3)
    return True
