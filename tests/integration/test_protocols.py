"""What developers' tools speak, through the sidecar: git, package managers, HTTP/2 and gRPC, clients that know of no
proxy; at a host whose TLS passes unopened, and at one whose TLS is opened. The far end is a double of its own."""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.world import ROOT, TEST_LABEL, World, docker

SPLICED, OPENED = "spliced.work.test", "opened.work.test"
HOSTS = {"a host that is not opened": SPLICED, "a host that is opened": OPENED}
SPEC = f"""version: 1
agent: gemini
image: {{packages: [npm, python3-pip]}}
egress:
  allow: [{SPLICED}]
  inspect: [{OPENED}]
"""


@dataclass(frozen=True)
class Bench:
    """A standing environment whose image has the tools, and who uses it."""

    world: World
    project: Path

    def sh(self, script: str, *, code: int | None = 0) -> str:
        done = self.world.agc("exec", "/bin/sh", "-ec", script, cwd=self.project, code=code)
        return done.text


@pytest.fixture(scope="module")
def bench(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    place = tmp_path_factory.mktemp("workshop")
    world.agc("credential", "set", "google", cwd=world.path / "home", stdin=b"sk-workshop-0123456789abcdef\n")
    certificates(place)
    (world.path / "both.pem").write_text((world.path / "upstream.pem").read_text() + (place / "ca.pem").read_text())
    user = replace(world, settings_name=world.write_settings("workshop.yaml", upstream_ca=str(world.path / "both.pem")))
    project = user.project("tools", SPEC)
    image = dict(user.agc("--json", "plan", "--clone", cwd=project).result["fields"])["agent image"]
    repositories(place)
    name = f"{world.network}-workshop"
    server = ROOT / "tests" / "doubles" / "workshop.js"
    docker("run", "-d", "--name", name, "--network", world.network, "--user", "0", "-v", f"{place}:/workshop",
           "-v", f"{server}:/workshop.js:ro", "--label", TEST_LABEL, "--entrypoint", "node", image, "/workshop.js",
           *(f"/workshop/{file}" for file in ("key.pem", "site.pem", "repositories")))  # fmt: skip
    try:
        row = json.loads(docker("inspect", name).stdout)[0]["NetworkSettings"]["Networks"][world.network]
        world.ask("zone", zone={host: {"A": [row["IPAddress"]]} for host in HOSTS.values()})
        user.agc("up", "--clone", cwd=project)
        yield Bench(user, project)
        user.agc("down", "-v", "--force", cwd=project)
    finally:
        docker("rm", "-f", name)


def certificates(place: Path) -> None:
    """A CA of its own, and a site that it vouches for."""
    now = datetime.datetime.now(datetime.UTC)
    life = (now - datetime.timedelta(days=1), now + datetime.timedelta(days=2))

    def made(name: str, key: ec.EllipticCurvePrivateKey, issuer: str, signer: ec.EllipticCurvePrivateKey) -> bytes:
        def called(text: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

        site = name != issuer
        builder = (
            x509.CertificateBuilder(called(issuer), called(name), key.public_key(), x509.random_serial_number(), *life)
            .add_extension(x509.BasicConstraints(ca=not site, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in HOSTS.values()]), critical=False)
        )
        return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    authority, site = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    (place / "ca.pem").write_bytes(made("workshop CA", authority, "workshop CA", authority))
    (place / "site.pem").write_bytes(made("workshop", site, "workshop CA", authority))
    private = serialization.PrivateFormat.PKCS8
    nothing = serialization.NoEncryption()
    (place / "key.pem").write_bytes(site.private_bytes(serialization.Encoding.PEM, private, nothing))


def repositories(place: Path) -> None:
    """One bare repository a host, so that both start alike."""
    for host in HOSTS.values():
        bare = place / "repositories" / f"{host}.git"
        subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(bare)], check=True)
        subprocess.run(["git", "-C", str(bare), "config", "http.receivepack", "true"], check=True)


@pytest.fixture(params=HOSTS.values(), ids=HOSTS)
def host(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_git_clones_and_pushes_over_https(bench: Bench, host: str) -> None:
    url = f"https://{host}/git/{host}.git"
    bench.sh(f"""rm -rf /tmp/{host} && git clone -q {url} /tmp/{host} && cd /tmp/{host}
        git config user.name agent && git config user.email agent@work.test
        head -c 3000000 /dev/urandom > blob && git add blob && git commit -qm work && git push -q origin HEAD:main""")
    assert "main" in bench.sh(f"git ls-remote {url}")


def test_npm_installs(bench: Bench, host: str) -> None:
    made = bench.sh(f"""rm -rf /tmp/npm && mkdir /tmp/npm && cd /tmp/npm && echo '{{}}' > package.json
        npm install --no-audit --no-fund --fetch-retries 0 --registry https://{host}/npm/ tiny
        cat node_modules/tiny/package.json""")
    assert '"version":"1.0.0"' in made


def test_pip_installs(bench: Bench, host: str) -> None:
    made = bench.sh(f"""rm -rf /tmp/pip && python3 -m pip install -q --no-cache-dir --target /tmp/pip --retries 0 \\
        --index-url https://{host}/simple/ tiny
        PYTHONPATH=/tmp/pip python3 -c 'import tiny; print(tiny.WORD)'""")
    assert "installed" in made


def test_a_client_that_knows_of_no_proxy_gets_through(bench: Bench, host: str) -> None:
    script = f"fetch('https://{host}/blind').then(r => r.json()).then(j => console.log(j.path))"
    unset = "env -u HTTP_PROXY -u HTTPS_PROXY -u http_proxy -u https_proxy"
    assert "/blind" in bench.sh(f'{unset} node -e "{script}"')


def test_plain_http(bench: Bench, host: str) -> None:
    assert "/plain" in bench.sh(f"curl -sS http://{host}/plain")


def test_a_client_that_prefers_http_2_gets_what_there_is(bench: Bench, host: str) -> None:
    found = bench.sh(f"curl -sS --http2 -o /dev/null -w '%{{http_version}} %{{http_code}}' https://{host}/two")
    assert found.strip().endswith("2 200" if host == SPLICED else "1.1 200")


GRPC = """
const http2 = require("http2");
const client = http2.connect("https://HOST", { ca: require("fs").readFileSync(process.env.SSL_CERT_FILE) });
client.on("error", (error) => { console.log("error", error.code); process.exit(0); });
const head = { ":method": "POST", ":path": "/echo.Echo/Say", "content-type": "application/grpc", te: "trailers" };
const call = client.request(head);
let text = "";
call.on("data", (data) => { text += data.toString("latin1"); });
call.on("trailers", (last) => { console.log("grpc-status", last["grpc-status"], text.slice(5)); client.close(); });
call.on("error", (error) => { console.log("error", error.code); client.destroy(); });
call.end(Buffer.concat([Buffer.from([0, 0, 0, 0, 5]), Buffer.from("hello")]));
setTimeout(() => { console.log("error timeout"); process.exit(0); }, 20000).unref();
"""


def test_grpc_passes_where_tls_is_not_opened_and_only_there(bench: Bench, host: str) -> None:
    found = bench.sh(f"cat > /tmp/grpc.js <<'END'\n{GRPC.replace('HOST', host)}\nEND\nnode /tmp/grpc.js")
    assert ("grpc-status 0 hello" in found) == (host == SPLICED), found
    assert ("error" in found) == (host == OPENED), found
