"""Names that sort by time and are safe as parts of file and container names."""

from __future__ import annotations

import re
from datetime import UTC, datetime

ID_PATTERN = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")


def new_id(now: datetime, entropy: bytes) -> str:
    """`20261129-153359-7f3a2c`: UTC time to the second, then three bytes of `entropy` in hex."""
    return f"{now.astimezone(UTC):%Y%m%d-%H%M%S}-{entropy[:3].hex()}"
