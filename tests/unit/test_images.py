"""What the builder reads from the host: private authorities, apt's mirror, the progress of a build; how it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_container.engine.base import find_mirror
from agent_container.engine.build import Progress, printable
from agent_container.images import find_private_ca, read_image_files, read_sidecar_files


def pem(word: str) -> bytes:
    return f"-----BEGIN CERTIFICATE-----\n{word}\n-----END CERTIFICATE-----\n".encode()


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A Debian host that trusts the public authorities only."""
    write(tmp_path / "usr/share/ca-certificates/mozilla/A.crt", pem("PublicA"))
    write(tmp_path / "usr/share/ca-certificates/mozilla/B.crt", pem("PublicB"))
    write(tmp_path / "etc/ssl/certs/ca-certificates.crt", pem("PublicA") + pem("PublicB"))
    return tmp_path


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_a_host_with_public_authorities_only_hands_nothing_over(host: Path) -> None:
    assert find_private_ca({}, root=host) is None
    assert find_private_ca({"SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt"}, root=host) is None
    assert find_private_ca({"SSL_CERT_FILE": "/no/such/file"}, root=host) is None


def test_a_local_anchor_hands_over_the_whole_bundle_with_it(host: Path) -> None:
    write(host / "usr/local/share/ca-certificates/corp/gate.crt", pem("Private"))
    bundle = find_private_ca({}, root=host)
    assert bundle is not None
    assert bundle.startswith(pem("Private").rstrip())
    assert b"PublicA" in bundle
    assert bundle.count(b"BEGIN CERTIFICATE") == 3


def test_an_authority_that_only_the_bundle_has_is_found(host: Path) -> None:
    write(host / "etc/ssl/certs/ca-certificates.crt", pem("PublicA") + pem("Private"))
    assert b"Private" in (find_private_ca({}, root=host) or b"")


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"])
def test_an_authority_that_only_a_variable_names_is_found(host: Path, variable: str) -> None:
    write(host / "opt/gate.pem", pem("Private"))
    assert b"Private" in (find_private_ca({variable: "/opt/gate.pem"}, root=host) or b"")


def test_a_bundle_too_large_for_a_build_secret_keeps_the_private_ones(host: Path) -> None:
    write(host / "etc/ssl/certs/ca-certificates.crt", b"".join(pem(f"Public{i}" + "A" * 1000) for i in range(600)))
    write(
        host / "usr/share/ca-certificates/mozilla/A.crt", b"".join(pem(f"Public{i}" + "A" * 1000) for i in range(600))
    )
    write(host / "usr/local/share/ca-certificates/gate.crt", pem("Private"))
    assert find_private_ca({}, root=host) == pem("Private")


def test_a_host_that_is_not_debian_is_understood(tmp_path: Path) -> None:
    assert find_private_ca({}, root=tmp_path) is None
    write(tmp_path / "etc/pki/tls/certs/ca-bundle.crt", pem("PublicA"))
    assert find_private_ca({}, root=tmp_path) is None
    write(tmp_path / "etc/pki/ca-trust/source/anchors/gate.pem", pem("Private"))
    assert b"PublicA" in (find_private_ca({}, root=tmp_path) or b"")


@pytest.mark.parametrize(
    ("name", "content", "mirror"),
    [
        ("sources.list", "deb http://mirror.example/debian trixie main", "http://mirror.example/debian"),
        (
            "sources.list",
            "# deb http://no.example/debian x main\ndeb [arch=amd64] https://m.test/debian/ x main",
            "https://m.test/debian",
        ),
        (
            "sources.list.d/debian.sources",
            "Types: deb\nURIs: http://m.test/pub/debian http://other.test/debian\n",
            "http://m.test/pub/debian",
        ),
        ("sources.list.d/x.list", "deb http://m.test/debian-security x main\ndeb http://m.test/ubuntu y main", None),
        ("sources.list", "deb cdrom:[Debian]/ trixie main\ndeb file:/srv/debian trixie main", None),
    ],
)
def test_the_mirror_is_the_one_that_apt_uses(tmp_path: Path, name: str, content: str, mirror: str | None) -> None:
    write(tmp_path / name, content.encode())
    assert find_mirror(tmp_path) == mirror


def test_a_host_without_apt_has_no_mirror(tmp_path: Path) -> None:
    assert find_mirror(tmp_path / "none") is None


BUILD = """\
#0 building with "default" instance using docker driver
#1 [internal] load build definition from Dockerfile
#1 DONE 0.0s
#5 [tools 2/2] RUN --mount=type=secret,id=ca ["/bin/sh", "-c", "a \\u003c b"]
#5 0.512 Reading package lists...
#5 0.900 \x1b[31mE: Unable to locate package nope\x1b[0m
#5 ERROR: process "/bin/sh -c x" did not complete successfully: exit code: 100
#6 [packages 1/1] RUN true
#6 CANCELED
ERROR: failed to solve: exit code: 100
"""


def test_progress_names_each_step_once_and_keeps_the_failed_ones_output() -> None:
    said: list[str] = []
    progress = Progress("agent image", said.append)
    for line in BUILD.splitlines(keepends=True):
        progress.take(line)
    assert said == [
        "agent image: tools 2/2: RUN a < b",
        "agent image: packages 1/1: RUN true",
    ]
    assert progress.step.startswith("tools 2/2")
    assert progress.tail == [
        "Reading package lists...",
        "E: Unable to locate package nope",
        'ERROR: process "/bin/sh -c x" did not complete successfully: exit code: 100',
    ]


def test_a_build_that_fails_before_any_step_shows_what_there_is() -> None:
    progress = Progress("agent image", lambda _line: None)
    progress.take("ERROR: BuildKit is enabled but the buildx component is missing or broken.\n")
    assert progress.tail == ["ERROR: BuildKit is enabled but the buildx component is missing or broken."]


def test_what_a_build_prints_cannot_drive_the_terminal() -> None:
    assert printable("a\x1b]0;title\x07\x1b[2Jb\r\n") == "a]0;titleb"
    assert len(printable("x" * 10_000)) == 400


def test_the_images_own_files_are_complete_and_without_leftovers() -> None:
    files = read_image_files()
    assert {"runner", "demo", "lib/agent_runner/cli.py", "steps/net/apt", "steps/last/finish.py"} <= set(files)
    assert "Dockerfile" in read_sidecar_files()
    assert not any("__pycache__" in path for path in (*files, *read_sidecar_files()))
