"""The two images of a sandbox, made when they are missing: reads what they are built from, finds the host's private
certificate authorities, and has the engine build. What goes into them is `image_plan`'s to say.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from agent_container.engine.base import ensure_base
from agent_container.engine.build import build_image, image_id
from agent_container.engine.connection import Connection
from agent_container.engine.protocol import Report
from agent_container.image_plan import ImagePlan
from agent_container.resources import data_dir

__all__ = ["ensure_base", "ensure_image", "find_private_ca", "read_image_files", "read_sidecar_files"]

SYSTEM_BUNDLES = ("etc/ssl/certs/ca-certificates.crt", "etc/pki/tls/certs/ca-bundle.crt", "etc/ssl/ca-bundle.pem")
LOCAL_ANCHORS = ("usr/local/share/ca-certificates", "etc/pki/ca-trust/source/anchors", "usr/share/pki/trust/anchors")
PUBLIC_ROOTS = "usr/share/ca-certificates/mozilla"
CA_VARIABLES = ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
SECRET_MAX_BYTES = 500 * 1024
"""BuildKit's limit for one secret."""

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")
_SKIPPED = {"__pycache__", ".dockerignore"}


def ensure_image(
    plan: ImagePlan,
    *,
    connection: Connection,
    report: Report,
    build: Callable[..., None] = build_image,
) -> str:
    """The image's id; builds it when no image has the plan's tag. Raises: EngineError."""
    found = image_id(plan.tag, connection=connection)
    if found is None:
        build(plan, connection=connection, report=report)
        found = image_id(plan.tag, connection=connection)
    return found or plan.tag


def read_image_files(directory: Path | None = None) -> dict[str, bytes]:
    """The content of image/, for `plan_agent_image`."""
    return _read_tree(directory or data_dir() / "image")


def read_sidecar_files(directory: Path | None = None) -> dict[str, bytes]:
    """The content of sidecar/, for `plan_sidecar_image`."""
    return _read_tree(directory or data_dir() / "sidecar")


def find_private_ca(environ: Mapping[str, str], *, root: Path = Path("/")) -> bytes | None:
    """The host's certificate bundle as PEM, when it trusts more than the public authorities; else None.

    A build behind a TLS-terminating gateway needs it: the host trusts the gateway's authority, a container does not.
    """
    system = _certificates(next((root / name for name in SYSTEM_BUNDLES if (root / name).is_file()), None))
    anchors = {key: pem for place in LOCAL_ANCHORS for key, pem in _certificates_below(root / place).items()}
    public = _certificates_below(root / PUBLIC_ROOTS)
    named: dict[str, bytes] = {}
    for variable in CA_VARIABLES:
        path = environ.get(variable)
        if path and path.startswith("/"):
            named |= _certificates(root / path.lstrip("/"))
    unknown = {key: pem for key, pem in system.items() if key not in public} if public else {}
    private = {**anchors, **unknown, **{key: pem for key, pem in named.items() if key not in (public or system)}}
    if not private:
        return None
    bundle = _encode({**private, **system, **named})
    # Private ones come first and are all that is kept when the whole does not fit.
    return bundle if len(bundle) <= SECRET_MAX_BYTES else _encode(private)[:SECRET_MAX_BYTES]


def _encode(certificates: Mapping[str, bytes]) -> bytes:
    return b"".join(pem + b"\n" for pem in certificates.values())


def _certificates(path: Path | None) -> dict[str, bytes]:
    """Fingerprint of the text to PEM."""
    if path is None:
        return {}
    try:
        data = path.read_bytes()
    except OSError:
        return {}
    return {hashlib.sha256(b"".join(pem.split())).hexdigest(): pem for pem in _CERTIFICATE.findall(data)}


def _certificates_below(directory: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for path in _files(directory):
        if path.suffix in (".crt", ".pem", ".cer"):
            found |= _certificates(path)
    return found


def _read_tree(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in _files(directory)
        if not _SKIPPED.intersection(path.relative_to(directory).parts)
    }


def _files(directory: Path) -> Iterator[Path]:
    if directory.is_dir():
        yield from (path for path in sorted(directory.rglob("*")) if path.is_file())
