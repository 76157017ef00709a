"""Settings of the host: strict, private, and what the system's own files say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent_container.errors import SpecError
from agent_container.settings import Settings, host_addresses, host_resolvers, load_settings, parse_settings

PATH = Path("config.yaml")


def test_everything_can_be_set() -> None:
    settings = parse_settings(
        b"resolvers: [203.0.113.53, '2001:db8::53']\nupstream_ca: /etc/ssl/corp.pem\nbuild_ca: 'off'\n"
        b"network: {internal: true, join: [test-net], ipv6: true, pool: 10.99.0.0/16}\n",
        path=PATH,
    )
    assert settings.resolvers == ("203.0.113.53", "2001:db8::53")
    assert settings.network.join == ("test-net",)
    assert settings.network.pool == "10.99.0.0/16"
    assert (settings.upstream_ca, settings.build_ca) == ("/etc/ssl/corp.pem", "off")


@pytest.mark.parametrize("text", ["", "resolvers:\nnetwork:\n", "network: {join: }"])
def test_nothing_set_is_the_defaults(text: str) -> None:
    assert parse_settings(text.encode(), path=PATH) == Settings()


REFUSED = {
    "an unknown key": (
        "resolver: [203.0.113.53]",
        "config.yaml:1: resolver: unknown key `resolver`; did you mean `resolvers`",
    ),
    "a name as a resolver": ("resolvers: [dns.test]", "resolvers[0]: found `dns.test`: expected an address"),
    "loopback as a resolver": ("resolvers: [127.0.0.53]", "cannot reach this host's loopback"),
    "another word for roots": ("upstream_ca: everyone", "expected public, system or an absolute path"),
    "a relative path of roots": ("build_ca: ca.pem", "expected auto, off or an absolute path"),
    "an unquoted off": ("build_ca: off", 'quote it: "off"'),
    "a network with a space": ("network: {join: [a b]}", "network.join[0]"),
    "a pool that is too small": ("network: {pool: 10.0.0.0/30}", "between /8 and /28"),
    "a pool of v6": ("network: {pool: '2001:db8::/32'}", "IPv4 range"),
    "text for a switch": ("network: {ipv6: sure}", "expected true or false"),
}


@pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED)
def test_refused(text: str, reason: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_settings(text.encode(), path=PATH)
    assert reason in "\n".join(caught.value.details)


def test_a_missing_file_is_the_defaults(tmp_path: Path) -> None:
    assert load_settings(tmp_path / "config.yaml") == Settings()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("network: {ipv6: true}\n")
    path.chmod(mode)
    with pytest.raises(SpecError, match="can be written by others") as caught:
        load_settings(path)
    assert "chmod go-w" in (caught.value.hint or "")
    path.chmod(0o644)
    assert load_settings(path).network.ipv6


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.yaml")
    with pytest.raises(SpecError, match="no plain file"):
        load_settings(tmp_path / "config.yaml")


RESOLVERS = {
    "listed resolvers, once each": ("nameserver 203.0.113.53\nnameserver 203.0.113.53\nnameserver 2001:db8::53\n", "", (
        "203.0.113.53", "2001:db8::53")),
    "behind a stub": ("# made\nnameserver 127.0.0.53\noptions edns0\n", "nameserver 198.51.100.1\n", ("198.51.100.1",)),
    "a stub and a real one": ("nameserver 127.0.0.1\nnameserver 203.0.113.1\n", "", ("203.0.113.1",)),
    "nothing usable": ("nameserver 127.0.0.1\n", "", ()),
    "an empty file": ("", "nameserver 198.51.100.1\n", ()),
    "an address with a zone": ("nameserver fe80::1%eth0\nnameserver 203.0.113.1\n", "", ("203.0.113.1",)),
    "rubbish": ("nameserver\nnameserver x\nnameserverr 203.0.113.1\n", "", ()),
}  # fmt: skip


@pytest.mark.parametrize(("listed", "behind", "found"), RESOLVERS.values(), ids=RESOLVERS)
def test_resolvers_of_the_host(tmp_path: Path, listed: str, behind: str, found: tuple[str, ...]) -> None:
    (tmp_path / "a").write_text(listed)
    (tmp_path / "b").write_text(behind)
    assert host_resolvers(tmp_path / "a", tmp_path / "b") == found


FIB_TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
     +-- 198.51.100.0/24 2 0 1
        |-- 198.51.100.0
           /24 link UNICAST
        |-- 198.51.100.7
           /32 host LOCAL
        |-- 198.51.100.255
           /32 link BROADCAST
Local:
        |-- 198.51.100.7
           /32 host LOCAL
        |-- 203.0.113.9
           /32 host LOCAL
"""
IF_INET6 = """\
00000000000000000000000000000001 01 80 10 80       lo
20010db8000000000000000000000002 02 40 00 00     eth0
fe80000000000000021122fffe334455 02 40 20 80     eth0
"""


def test_addresses_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "fib_trie").write_text(FIB_TRIE)
    (tmp_path / "if_inet6").write_text(IF_INET6)
    assert host_addresses(tmp_path / "fib_trie", tmp_path / "if_inet6") == (
        "198.51.100.7",
        "203.0.113.9",
        "2001:db8::2",
        "fe80::211:22ff:fe33:4455",
    )


def test_a_host_without_proc_has_none(tmp_path: Path) -> None:
    assert host_addresses(tmp_path / "a", tmp_path / "b") == ()
