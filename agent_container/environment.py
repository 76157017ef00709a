"""Names of environment variables: their grammar, and the ones that a spec may not set because the boundary sets them.

`LD_*` and its kin are refused although the agent could set them for its own children: in the container's environment
they would load a library into the runner. What the values are is left to the stack.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")

PROXY_NAMES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY"})
CA_NAMES = frozenset(
    {
        "AWS_CA_BUNDLE",
        "CARGO_HTTP_CAINFO",
        "CURL_CA_BUNDLE",
        "DENO_CERT",
        "GIT_SSL_CAINFO",
        "NODE_EXTRA_CA_CERTS",
        "NPM_CONFIG_CAFILE",
        "PIP_CERT",
        "REQUESTS_CA_BUNDLE",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
    }
)
HOME_NAMES = frozenset({"HOME", "PATH", "USER", "LOGNAME"})
LOADER_NAMES = frozenset({"GCONV_PATH", "GLIBC_TUNABLES", "LOCPATH", "NLSPATH"})


def check_env_name(name: str) -> str:
    """The name itself. Raises: ValueError saying why it cannot be set."""
    if not _NAME.fullmatch(name):
        raise ValueError("not a variable name: letters, digits and `_`, not beginning with a digit, at most 128")
    upper = name.upper()
    if upper in PROXY_NAMES:
        raise ValueError("reserved: the way out is set by the egress sidecar")
    if upper in CA_NAMES:
        raise ValueError("reserved: certificates are set by the egress sidecar")
    if upper in HOME_NAMES:
        raise ValueError("reserved: the image sets it")
    if upper.startswith("LD_") or upper in LOADER_NAMES:
        raise ValueError("reserved: it would load code into the sandbox's first process")
    if upper.startswith("AGENT_CONTAINER"):
        raise ValueError("reserved: names that begin with AGENT_CONTAINER are the tool's own")
    return name


def check_env_value(value: str) -> str:
    """The value itself. Raises: ValueError when a process could not be given it; the message never holds the value."""
    if "\x00" in value:
        raise ValueError("a NUL character is not allowed")
    if len(value) > 32_768:
        raise ValueError(f"{len(value)} characters; the most is 32768")
    return value
