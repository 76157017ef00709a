"""The spec: what is read, and every refusal with its line, path and the way out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agent_container.errors import SpecError
from agent_container.spec import (
    KNOWN_AGENTS,
    LATER,
    EgressRule,
    OwnAgent,
    ProjectSpec,
    default_spec,
    json_schema,
    load_spec,
    safe_name,
)
from agent_container.spec_load import _all_paths

PATH = Path("/srv/acme/agent-container.yaml")

FULL = """\
# yaml-language-server: $schema=spec.json
version: 1
name: acme-api
agent: claude
model: claude-sonnet-4-5
image:
  base: debian:trixie-slim
  packages: [ripgrep, g++, libssl3=3.5.1-1]
  setup: ["./configure", {run: make tools, root: true, network: true}]
workspace:
  mode: bind
  protect: [./ci/, deploy/*.sh]
  hide: [.env]
memory: shared
env: {LOG_LEVEL: debug}
mounts: [{source: ~/datasets, target: /data}]
egress:
  tls: splice
  allow:
    - github.com
    - "*.githubusercontent.com"
    - {host: git.example.com, ports: [22]}
    - {host: llm.lan, addresses: [10.20.0.0/16], ports: [1234]}
    - 10.30.0.0/16
  deny: [ads.example.com]
  allow_metadata: false
  dlp: off
credentials:
  - github
  - {name: jira, hosts: [acme.example.net], env: JIRA_TOKEN}
resources: {cpus: 2, memory: 1.5g, pids: 2048}
limits: {time: 1h30m, idle: 15m, model_requests: 500, model_bytes: 200m, cost_usd: 5, turns: 100}
"""


def load(text: str | bytes) -> ProjectSpec:
    data = text if isinstance(text, bytes) else text.encode()
    return load_spec(data, path=PATH, default_name="acme")


def mistakes(text: str | bytes) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load(text)
    return list(caught.value.details)


def test_the_whole_format_is_read() -> None:
    spec = load(FULL.replace("dlp: off", 'dlp: "off"'))
    assert spec.name == "acme-api"
    assert spec.image.packages == ("ripgrep", "g++", "libssl3=3.5.1-1")
    assert [(step.run, step.root, step.network) for step in spec.image.setup] == [
        ("./configure", False, False),
        ("make tools", True, True),
    ]
    assert spec.workspace.protect == ("ci", "deploy/*.sh")
    assert spec.mounts[0].read_only
    assert spec.egress.allow[0] == EgressRule(host="github.com", ports=(443, 80), addresses=())
    assert spec.egress.allow[3] == EgressRule(host="llm.lan", ports=(1234,), addresses=("10.20.0.0/16",))
    assert spec.credentials[0].name == "github"
    assert spec.credentials[1].hosts == ("acme.example.net",)
    assert spec.resources.memory_bytes == 1536 * 1024**2
    assert (spec.limits.time_s, spec.limits.idle_s) == (5400, 900)
    budget = (spec.limits.model_requests, spec.limits.model_bytes, spec.limits.cost_usd, spec.limits.turns)
    assert budget == (500, 200 * 2**20, 5.0, 100)


def test_an_empty_file_is_all_defaults() -> None:
    assert load("").model_dump() == default_spec(default_name="acme").model_dump()
    spec = load("# nothing yet\n")
    assert (spec.name, spec.agent, spec.resources.pids, spec.limits.time_s) == ("acme", "claude", 2048, 7200)
    assert spec.egress.allow == ()
    assert spec.workspace.mode is None


def test_every_rule_remembers_its_line() -> None:
    spec = load(FULL.replace("dlp: off", 'dlp: "off"'))
    assert spec.line_of("egress.allow[2]") == 22
    assert spec.line_of("egress.deny[0]") == 25
    assert default_spec(default_name="a").line_of("egress.allow[0]") is None


SAME = {
    "an empty, a null and a commented-out allow list": (
        "egress: {allow: []}",
        "egress: {allow: }",
        "egress:\n  allow:\n    # - api.example.com\n",
        "egress:\n",
        "",
    ),
    "CRLF and a byte-order mark": (
        b"\xef\xbb\xbfname: a\r\negress:\r\n  allow:\r\n    - api.example.com\r\n",
        "name: a\negress:\n  allow:\n    - api.example.com\n",
    ),
    "hosts in any case, with a final dot": (
        "egress: {allow: [API.Example.COM.]}",
        "egress: {allow: [api.example.com]}",
    ),
    "an international name and its A-label": (
        "egress: {allow: [bücher.example]}",
        "egress: {allow: [xn--bcher-kva.example]}",
    ),
    "keys of later versions that are switched off": (
        "egress: {inspect: [], kill: , allow: }\nssh_key: false\nservices: {}\nlimits: {turns: }",
        "",
    ),
    "a wildcard over what one operator hands out": (
        "egress: {allow: ['*.githubusercontent.com', '*.city.kawasaki.jp']}",
        "egress: {allow: [{host: '*.githubusercontent.com'}, {host: '*.city.kawasaki.jp'}]}",
    ),
    "one text and its long form": ("egress: {allow: [a.test]}", "egress: {allow: [{host: a.test, ports: [443, 80]}]}"),
    "a mode left open": ("workspace: {mode: }", ""),
}


@pytest.mark.parametrize("texts", SAME.values(), ids=SAME)
def test_these_mean_the_same(texts: tuple[str | bytes, ...]) -> None:
    first, *rest = (load(text).model_dump() for text in texts)
    assert all(other == first for other in rest)


# (the file, line, path, words of the reason)
REFUSED = {
    "a boolean where a name is meant": ("name: no", 1, "name", 'quote it: "no"'),
    "a boolean in env": ("env: {FEATURE: on}", 1, "env.FEATURE", 'found `on`, which YAML reads as a boolean.*"on"'),
    "an octal number in env": ("env: {MODE: 0644}", 1, "env.MODE", "`0644`.*quote it"),
    "a number in sixties in env": ("env: {PORTS: 22:22}", 1, "env.PORTS", "`22:22`.*quote it"),
    "a version in env": ("env: {VER: 1.10}", 1, "env.VER", "`1.10`.*quote it"),
    "an id in env": ("env: {ID: 012345678901}", 1, "env.ID", "`012345678901`.*quote it"),
    "digits with underscores in env": ("env: {BIG: 1_000}", 1, "env.BIG", "`1_000`.*quote it"),
    "a date in env": ("env: {T: 2026-01-02}", 1, "env.T", "`2026-01-02`, which YAML reads as a date"),
    "an exponent in env": ("env: {E: 1e5}", 1, "env.E", "`1e5`.*quote it"),
    "a boolean as a host": ("egress: {allow: [no]}", 1, "egress.allow[0]", "quote it"),
    "a number as a host": ("egress: {allow: [a.test, 1.1]}", 1, "egress.allow[1]", "quote it"),
    "a number as a setup command": ("image: {setup: [5]}", 1, "image.setup[0]", "quote it"),
    "a null in env is not the host's variable": ("env:\n  FOO:\n", 2, "env.FOO", "found nothing, expected text"),
    "a list where keys are meant": ("egress: [a.test]", 1, "egress", "found a list, expected `key: value` lines"),
    "a text where a list is meant": ("egress: {allow: a.test}", 1, "egress.allow", "found `a.test`, expected a list"),
    "a text where true or false is meant": (
        "egress: {allow_metadata: yes please}",
        1,
        "egress.allow_metadata",
        "expected true or false",
    ),
    "another version": ("version: 2", 1, "version", "found `2`.*expected 1"),
    "an unknown agent": ("agent: clod", 1, "agent", "expected claude, codex, gemini, opencode, pi or demo"),
    "camel case in egress": ('egress: {allowedHosts: ["a.test"]}', 1, "egress.allowedHosts", "did you mean `allow`"),
    "a misspelt section": ("name: a\negres: {allow: []}", 2, "egres", "did you mean `egress`"),
    "a key at the wrong level": ('allow: ["a.test"]', 1, "allow", "does not belong here; it stands as `egress.allow`"),
    "a key at the wrong level that is like one here": ("mode: bind", 1, "mode", "it stands as `workspace.mode`"),
    "a boolean where a section is meant": ("limits: true", 1, "limits", "a boolean, expected `key: value` lines"),
    "a key with nothing near": ("image: {qqq: 1}", 1, "image.qqq", "the keys here are base, packages, setup"),
    "a misspelt key in a list": ("mounts:\n- {sorce: /a, target: /b}", 2, "mounts[0].sorce", "did you mean `source`"),
    "a missing key": ("mounts:\n- {source: /a}", 2, "mounts[0]", "the key `target` is missing"),
    "a misspelt key of an own agent": ("agent: {comand: [x]}", 1, "agent.comand", "did you mean `command`"),
    "a mapping of credentials": ("credentials: {claude: {file: a}}", 1, "credentials", "expected a list"),
    "a duplicate key": ("egress: {deny: [a.test]}\negress: {}", 2, "egress", "twice, on lines 1 and 2"),
    "a duplicate key below": ("env:\n  A: x\n  A: y", 3, "env.A", "twice, on lines 2 and 3"),
    # egress entries
    "a URL": ("egress: {allow: ['https://api.example.com/v1']}", 1, "egress.allow[0]", "write api.example.com"),
    "a path": ("egress: {allow: [api.example.com/v1]}", 1, "egress.allow[0]", "write api.example.com"),
    "a port": ("egress: {allow: ['api.example.com:443']}", 1, "egress.allow[0]", "ports: \\[443\\]"),
    "a user": ("egress: {allow: [user@api.example.com]}", 1, "egress.allow[0]", "user part"),
    "spaces around": ("egress: {allow: [' api.example.com ']}", 1, "egress.allow[0]", "spaces"),
    "two hosts in one": ("egress: {allow: ['a.example.com,b.example.com']}", 1, "egress.allow[0]", "one host an entry"),
    "a second star": ("egress: {allow: ['*.*.example.com']}", 1, "egress.allow[0]", "wildcard|no part of a host"),
    "a star in a label": ("egress: {allow: ['img-*.example.com']}", 1, "egress.allow[0]", "wildcard"),
    "two stars": ("egress: {allow: ['**.example.com']}", 1, "egress.allow[0]", "wildcard"),
    "a star alone": ("egress: {allow: ['*']}", 1, "egress.allow[0]", "wildcard"),
    "a whole top-level domain": ("egress: {allow: ['*.com']}", 1, "egress.allow[0]", "top-level"),
    "a registry's suffix": ("egress: {allow: ['*.co.uk']}", 1, "egress.allow[0]", "anybody"),
    "everybody's pages": ("egress: {allow: ['*.github.io']}", 1, "egress.allow[0]", "anybody"),
    "a dot": ("egress: {allow: ['.']}", 1, "egress.allow[0]", "empty"),
    "a hexadecimal address": ("egress: {allow: ['0x7f000001']}", 1, "egress.allow[0]", "address"),
    "a short address": ("egress: {allow: ['127.1']}", 1, "egress.allow[0]", "address"),
    "a decimal address": ("egress: {allow: ['2130706433']}", 1, "egress.allow[0]", "address"),
    "loopback": ("egress: {allow: [127.0.0.0/8]}", 1, "egress.allow[0]", "no rule opens it"),
    "localhost": ("egress: {allow: [localhost]}", 1, "egress.allow[0]", "never leaves"),
    # A start looks whether it is refused: allowed, no sandbox would start; killed, each would be ended at once.
    "a name of our own": ("egress: {kill: ['*.agent-container.invalid']}", 1, "egress.kill[0]", "never leaves"),
    "everything": ("egress: {allow: [0.0.0.0/0]}", 1, "egress.allow[0]", "too wide"),
    "half of everything": ("egress: {allow: [128.0.0.0/1]}", 1, "egress.allow[0]", "too wide"),
    "a range with host bits": ("egress: {allow: [10.1.2.3/8]}", 1, "egress.allow[0]", "host bits"),
    "a bracketed v6 address": ("egress: {allow: ['[2001:db8::1]:8443']}", 1, "egress.allow[0]", "brackets"),
    "a v6 address in another spelling": ("egress: {allow: ['2001:DB8:0::1']}", 1, "egress.allow[0]", "2001:db8::1"),
    "a v4 address inside v6": ("egress: {allow: ['::ffff:203.0.113.5']}", 1, "egress.allow[0]", "IPv4 address"),
    "a newline that adds a directive": (
        'egress: {allow: ["ok.example.com\\nhttp_access allow all"]}',
        1,
        "egress.allow[0]",
        "no part of a host name",
    ),
    "a quote": ("egress: {allow: ['x\"; include: /etc/passwd']}", 1, "egress.allow[0]", "."),
    "a variable": ("egress: {allow: ['${HOME}.example']}", 1, "egress.allow[0]", "no part of a host name"),
    "a dash in front": ("egress: {allow: [-dash.example]}", 1, "egress.allow[0]", "no part of a host name"),
    "an empty label": ("egress: {allow: [a..b.example]}", 1, "egress.allow[0]", "no part of a host name"),
    "a bad deny": ("egress: {deny: ['*']}", 1, "egress.deny[0]", "wildcard"),
    "metadata without the switch": ("egress: {allow: [169.254.169.254]}", 1, "egress", "allow_metadata: true"),
    "metadata behind a name": (
        "egress: {allow: [{host: a.test, addresses: [169.254.0.0/16]}]}",
        1,
        "egress",
        "allow_metadata: true",
    ),
    "addresses of a range": (
        "egress: {allow: [{host: 10.0.0.0/8, addresses: [10.0.0.0/8]}]}",
        1,
        "egress.allow[0]",
        "goes with a host name",
    ),
    "port 0": ("egress: {allow: [{host: a.test, ports: [0]}]}", 1, "egress.allow[0].ports[0]", "at least 1"),
    "port 65536": ("egress: {allow: [{host: a.test, ports: [65536]}]}", 1, "egress.allow[0].ports[0]", "at most 65535"),
    "no port": ("egress: {allow: [{host: a.test, ports: []}]}", 1, "egress.allow[0].ports", "at least 1 entry"),
    "a port as text": (
        "egress: {allow: [{host: a.test, ports: ['22']}]}",
        1,
        "egress.allow[0].ports[0]",
        "whole number",
    ),
    # an agent of one's own
    "another word for the task": ("agent: {command: [x, '{prompt}']}", 1, "agent.command[1]", "did you mean `{task}`"),
    "the task in capitals": ("agent: {command: [x, '--do={TASK}']}", 1, "agent.command[1]", "did you mean `{task}`"),
    "the task misspelt": ("agent: {command: [x, 'please {taks}!']}", 1, "agent.command[1]", "did you mean `{task}`"),
    # image
    "a flag as an image": ("image: {base: --platform=x}", 1, "image.base", "image reference"),
    "an image with a space": ("image: {base: 'debian AS x'}", 1, "image.base", "image reference"),
    "an image with a newline": ('image: {base: "debian\\nRUN x"}', 1, "image.base", "image reference"),
    "an option as a package": ("image: {packages: [-o]}", 1, "image.packages[0]", "package name"),
    "a removal as a package": ("image: {packages: [sudo-]}", 1, "image.packages[0]", "package name"),
    "a package in capitals": ("image: {packages: [Foo]}", 1, "image.packages[0]", "package name"),
    "a setup command that is a flag": ("image: {setup: ['--mount=type=bind x']}", 1, "image.setup[0]", "flag of RUN"),
    "the same after spaces": ("image: {setup: [{run: ' --network=host x'}]}", 1, "image.setup[0].run", "flag of RUN"),
    "an empty setup command": ("image: {setup: ['']}", 1, "image.setup[0]", "expected a command"),
    # environment
    "the proxy": ("env: {https_proxy: x}", 1, "env.https_proxy", "egress sidecar"),
    "certificates": ("env: {NODE_EXTRA_CA_CERTS: x}", 1, "env.NODE_EXTRA_CA_CERTS", "egress sidecar"),
    "the loader": ("env: {LD_PRELOAD: x}", 1, "env.LD_PRELOAD", "load code"),
    "the home": ("env: {HOME: /x}", 1, "env.HOME", "reserved"),
    "a name with a dash": ("env: {A-B: x}", 1, "env.A-B", "not a variable name"),
    "a name that assigns": ("env: {'A=B': x}", 1, "env.A=B", "not a variable name"),
    # workspace and mounts
    "a path that leaves the workspace": ("workspace: {hide: [../x]}", 1, "workspace.hide[0]", "below the workspace"),
    "an absolute path to hide": ("workspace: {hide: [/etc]}", 1, "workspace.hide[0]", "below the workspace"),
    "an empty source": ("mounts: [{source: '', target: /a}]", 1, "mounts[0].source", "expected a path"),
    "a colon in a source": ("mounts: [{source: '/srv/data:v2', target: /a}]", 1, "mounts[0].source", "`:`"),
    "a relative target": ("mounts: [{source: ./f, target: rel}]", 1, "mounts[0].target", "absolute path"),
    "a target that climbs": ("mounts: [{source: ./f, target: /data/../etc}]", 1, "mounts[0].target", "absolute path"),
    "a target over the CA": (
        "mounts: [{source: ./f, target: /etc/agent-container/ca}]",
        1,
        "mounts[0].target",
        "belongs to the image",
    ),
    "a target over the workspace": ("mounts: [{source: ./f, target: /workspace}]", 1, "mounts[0].target", "belongs to"),
    "a target over everything": ("mounts: [{source: ./f, target: //}]", 1, "mounts[0].target", "absolute path"),
    "two mounts at one place": (
        "mounts: [{source: ./f, target: /a}, {source: ./g, target: /a/}]",
        1,
        "",
        "mounts: /a is given twice",
    ),
    "one credential twice": ("credentials: [github, github]", 1, "", "github is given twice"),
    "one variable for two things": ("env: {T: x}\ncredentials: [{name: a, env: T}]", 1, "", "env: T is given twice"),
    "a credential path with dots": (
        "credentials: [{name: a, paths: [/v1/../x]}]",
        1,
        "credentials[0].paths[0]",
        "expected a path",
    ),
    "TRACE": ("credentials: [{name: a, methods: [TRACE]}]", 1, "credentials[0].methods[0]", "not TRACE"),
    "a credential without hosts": (
        "credentials: [{name: a, hosts: []}]",
        1,
        "credentials[0].hosts",
        "at least 1 entry",
    ),
    # amounts
    "a duration without a unit": ("limits: {time: 5}", 1, "limits.time", "with its unit"),
    "a duration of words": ("limits: {idle: soon}", 1, "limits.idle", "such as 2h"),
    "no duration at all": ("limits: {time: 0s}", 1, "limits.time", "between 1s and 7d"),
    "a month": ("limits: {time: 30d}", 1, "limits.time", "between 1s and 7d"),
    "no request at all": ("limits: {model_requests: 0}", 1, "limits.model_requests", "at least 1"),
    "half a request": ("limits: {model_requests: 1.5}", 1, "limits.model_requests", "a whole number"),
    "bytes without a unit": ("limits: {model_bytes: 5}", 1, "limits.model_bytes", "with its unit"),
    "no money": ("limits: {cost_usd: 0}", 1, "limits.cost_usd", "more than 0"),
    "no finite amount of money": ("limits: {cost_usd: .nan}", 1, "limits.cost_usd", "expected a number"),
    "a turn as text": ("limits: {turns: ten}", 1, "limits.turns", "a whole number"),
    "memory without a unit": ("resources: {memory: 4}", 1, "resources.memory", "with its unit"),
    "too little memory": ("resources: {memory: 1k}", 1, "resources.memory", "at least"),
    "no processor": ("resources: {cpus: 0}", 1, "resources.cpus", "more than 0"),
    "a fork bomb's worth": ("resources: {pids: 99999999}", 1, "resources.pids", "at most"),
    "a model that is an option": ("model: --dangerous", 1, "model", "model's name"),
    "a name that is an option": ("name: -x", 1, "name", "printable"),
    "another word for TLS": ("egress: {tls: bump}", 1, "egress.tls", "splice or inspect"),
    "another word for one host's TLS": (
        "egress: {allow: [{host: a.test, tls: bump}]}",
        1,
        "egress.allow[0].tls",
        "splice or inspect",
    ),
    "a spliced host to inspect": (
        "egress: {inspect: [{host: a.test, tls: splice}]}",
        1,
        "egress.inspect[0].tls",
        "ins",
    ),
    "inspected ssh": (
        "egress: {inspect: [{host: a.test, ports: [22]}]}",
        1,
        "egress.inspect[0]",
        "cannot be inspected",
    ),
    "a killed URL": ("egress: {kill: ['https://a.test/']}", 1, "egress.kill[0]", "write a.test"),
    "a tripwire that is off": ("egress: {tripwire: off}", 1, "egress.tripwire", "for text, quote it"),
    "scanning in another way": ("egress: {dlp: maybe}", 1, "egress.dlp", "expected enforce, log or off"),
    "scanning that is off without quotes": ("egress: {dlp: off}", 1, "egress.dlp", "for text, quote it"),
    "metadata to inspect": ("egress:\n  inspect: [169.254.169.254]", 1, "egress", "allow_metadata"),
    "a country's companies": ("egress:\n  allow:\n  - ok.test\n  - '*.co.uk'", 4, "egress.allow[1]", "below co.uk"),
    "a suffix that only the list knows": (
        "egress: {allow: ['*.a.kawasaki.jp']}",
        1,
        "egress.allow[0]",
        "below a.kawas",
    ),
    "a suffix of all below another": ("egress: {inspect: ['*.any.ck']}", 1, "egress.inspect[0]", "below any.ck"),
    "a suffix in another script": ("egress: {allow: ['*.公司.cn']}", 1, "egress.allow[0]", "below xn--55qx5d.cn"),
    "an own agent's suffix": ("agent: {command: [x], hosts: ['*.co.jp']}", 1, "agent.hosts[0]", "below co.jp"),
    # what this version does not do
    "no repository": ("ssh_key: true\ngit: [{repo: x}]", 2, "git[0].repo", "expected a repository over ssh"),
    "a repository over https": ("ssh_key: true\ngit: [https://git.test/a/b]", 2, "git[0]", "over ssh, such as"),
    "a ref's short name": (
        "ssh_key: true\ngit: [{repo: git@git.test:a/b, push: [main]}]",
        2,
        "git[0].push[0]",
        "full ref",
    ),
    "a path with a way up": ("ssh_key: true\ngit:\n  - git@git.test:a/../b", 3, "git[0]", "`..` in it"),
    "repositories without a key": ("git: [git@git.test:a/b]", 1, "", "ssh_key: true"),
    "a repository twice": ("ssh_key: true\ngit: [git@git.test:a/b, git@git.test:a/b]", 1, "", "given twice"),
    "services": ("services: {db: {image: x}}", 1, "services", "not supported by this version"),
}


@pytest.mark.parametrize(("text", "line", "where", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused_with_line_path_and_reason(text: str, line: int, where: str, reason: str) -> None:
    found = mistakes(text)
    place = f"agent-container.yaml:{line}: {where}: " if where else f"agent-container.yaml:{line}: "
    assert any(detail.startswith(place) and re.search(reason, detail) for detail in found), found
    assert all(detail.isprintable() for detail in found)


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    found = mistakes("name: no\nagnt: x\nenv:\n  A: 1\n  A: 2\negress:\n  allow: ['*']\n  kill: [a/b]\n")
    assert [detail.split(": ")[0] for detail in found] == [f"agent-container.yaml:{n}" for n in (1, 2, 4, 5, 7, 8)]


def test_the_headline_counts_and_the_list_is_capped() -> None:
    with pytest.raises(SpecError, match="has 2 mistakes"):
        load("a: 1\nb: 2")
    found = mistakes("".join(f"q{n}: 1\n" for n in range(400)))
    assert len(found) == 51
    assert found[-1] == "and 350 more"


@pytest.mark.parametrize(
    "text",
    [
        'env: {TOKEN: "sk-SECRET\\0"}',
        "env: {TOKEN: [sk-SECRET]}",
        "env: {'BAD-NAME': sk-SECRET}",
        "env: {HOME: sk-SECRET}",
    ],
)
def test_no_message_shows_a_value_of_env(text: str) -> None:
    assert "SECRET" not in "".join(mistakes(text))


def test_dollars_in_env_come_through_as_written() -> None:
    spec = load('env:\n  DB_PASS: "m3d$tone$08$x"\n  OPEN: "${"\n  MIX: \'a$$b\'\n  END: hunter$\n')
    assert spec.env == {"DB_PASS": "m3d$tone$08$x", "OPEN": "${", "MIX": "a$$b", "END": "hunter$"}


def test_an_agent_of_ones_own() -> None:
    spec = load("agent: {command: [my-agent, '--task', '{task}'], env: {A: b}, hosts: [{host: a.test, ports: [8443]}]}")
    assert isinstance(spec.agent, OwnAgent)
    assert spec.agent.command == ("my-agent", "--task", "{task}")
    assert spec.agent.hosts[0].ports == (8443,)
    assert spec.agent_name == "own"


@pytest.mark.parametrize(
    "word",
    [
        "{task}", "do {task} now", "${HOME}", "${prompt}", "{}", "{print}", "{print $1}", "%{http_code}", "{{prompt}}",
        '{"prompt": "{task}"}', 'print(f"{message}")', "a{b,c}", "{0}", "{x}", "BEGIN {query=1} {next}", "\\{prompt}",
    ],
)  # fmt: skip
def test_braces_of_the_commands_own_are_nobodys_placeholder(word: str) -> None:
    spec = load("agent: {command: [x, " + json.dumps(word) + "]}")
    assert isinstance(spec.agent, OwnAgent)
    assert spec.agent.command[1] == word


def test_metadata_with_the_switch_is_taken() -> None:
    assert load("egress: {allow_metadata: true, allow: [169.254.169.254]}").egress.allow_metadata


def test_a_private_address_that_is_named_is_taken_and_so_is_a_range_around_metadata() -> None:
    spec = load("egress: {allow: [192.168.50.7, 100.64.0.0/10, 'fd00::/8']}")
    assert [rule.host for rule in spec.egress.allow] == ["192.168.50.7", "100.64.0.0/10", "fd00::/8"]


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "\n", "-rf", "x" * 300, "", "Ünï", "a b"])
def test_any_directory_name_gives_a_name_that_the_format_takes(name: str) -> None:
    assert default_spec(default_name=name).name == safe_name(name)


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load("").name = "b"  # type: ignore[misc]


def test_every_field_of_the_schema_is_described() -> None:
    schema = json_schema()
    parts = [schema, *schema["$defs"].values()]
    parts = [choice for part in parts for choice in (part, *part.get("anyOf", ()))]
    fields = [(name, field) for part in parts for name, field in part.get("properties", {}).items()]
    assert len(fields) > 40
    assert [name for name, field in fields if not {"description", "$ref"} & set(field)] == []
    assert "name" not in schema["required"]


def test_keys_named_in_messages_exist_in_the_schema() -> None:
    known = {path.rpartition(".")[2] for path in _all_paths(json_schema())}
    for text, *_ in REFUSED.values():
        for detail in mistakes(text):
            named = re.findall(r"(?:did you mean|it stands as|the key) `([a-z_.]+)`", detail)
            assert {name.rpartition(".")[2] for name in named} <= known, detail


def test_keys_of_later_versions_are_not_in_the_schema_unless_they_have_a_value() -> None:
    known = set(_all_paths(json_schema()))
    assert [item.path for item in LATER if (item.path in known) != bool(item.only)] == []


def test_known_agents_are_those_of_the_schema() -> None:
    assert set(KNOWN_AGENTS) == set(json_schema()["properties"]["agent"]["oneOf"][0]["enum"])


def test_inspected_and_killed_hosts_are_read() -> None:
    spec = load(
        "egress:\n  tls: inspect\n  tripwire: kill\n  inspect: [a.test, {host: b.test, ports: [8443]}]\n"
        "  allow: [{host: c.test, tls: splice}, d.test]\n  kill: [Canary.Test., '*.x.test', 10.0.0.1]\n"
    )
    egress = spec.egress
    assert (egress.tls, egress.tripwire) == ("inspect", "kill")
    assert [(rule.host, rule.ports, rule.tls) for rule in egress.inspect] == [
        ("a.test", (443, 80), "inspect"),
        ("b.test", (8443,), "inspect"),
    ]
    assert [rule.tls for rule in egress.allow] == ["splice", None]
    assert egress.kill == ("canary.test", "*.x.test", "10.0.0.1")
    assert spec.line_of("egress.inspect[1]") == 4
