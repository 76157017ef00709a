"""The decision table: policies as text, and under each what becomes of a host, an address or a request. A row is

    host[>address] port  action  rule           (`?name` is a lookup; `>address` what the name resolves to)

and its action is `splice`, `raw`, `bump` (opened, so scanned), `deny` or `kill`; the rule is the one that is named, `-`
for none. `\\u` and `\\x` escapes stand for what is not seen. A bug found adds a row."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from agent_egress.policy import Decision, Policy, decide_address, decide_lookup, decide_name
from agent_egress.resolved import Resolved
from agent_egress.squidline import Question, Tunnel
from agent_egress.swap import Vault
from agent_egress.verdicts import judge


def parse(text: str) -> Policy:
    """`action pattern [:port,port] [@range,range] [tls=...]`, `own ADDRESS`, `metadata`, `tls inspect`, `credential
    HOST`, separated by `;`."""
    rules: list[object] = []
    credentials: list[object] = []
    own: list[str] = []
    more: dict[str, object] = {}
    for entry in filter(None, (part.split() for part in text.replace("\n", ";").split(";"))):
        match entry:
            case ["metadata"]:
                more["allow_metadata"] = True
            case ["own", address]:
                own.append(address)
            case ["tls", value]:
                more["tls"] = value
            case ["credential", host]:
                row = {"name": "demo", "host": host, "methods": ["GET"], "paths": ["/v1/**"]}
                credentials.append({**row, "header": "Authorization", "format": "Bearer {}"})
            case [action, pattern, *options]:
                rule: dict[str, object] = {"action": action, "pattern": pattern, "origin": "spec"}
                for option in options:
                    if option.startswith(":"):
                        rule["ports"] = [int(port) for port in option[1:].split(",")]
                    elif option.startswith("@"):
                        rule["addresses"] = option[1:].split(",")
                    else:
                        rule["tls"] = option.removeprefix("tls=")
                rules.append(rule)
    document = {"version": 1, "rules": rules, "credentials": credentials, "host_addresses": own, **more}
    return Policy.parse(json.dumps(document).encode())


# Theme -> policy, rows.
TABLE: dict[str, tuple[str, str]] = {
    "nothing": (
        "",
        r"""
        ok.test 443             deny -
        localhost 80            deny -
        203.0.113.7 443         deny -
        127.0.0.1 80            deny -
        ?ok.test 0              deny -
        ?localhost 0            deny -
        """,
    ),
    "exact": (
        "allow ok.test; allow a.b.ok.test",
        r"""
        ok.test 443             splice allow ok.test
        ok.test 80              raw    allow ok.test
        ok.test 8443            deny   allow ok.test
        ok.test 22              deny   allow ok.test
        ok.test 0               deny   allow ok.test
        ok.test 65535           deny   allow ok.test
        OK.test 443             splice allow ok.test
        ok.test. 443            splice allow ok.test
        ok.test.. 443           deny   -
        .ok.test 443            deny   -
        www.ok.test 443         deny   -
        b.ok.test 443           deny   -
        a.b.ok.test 443         splice allow a.b.ok.test
        x.a.b.ok.test 443       deny   -
        test 443                deny   -
        notok.test 443          deny   -
        ok.test.evil.example 443 deny  -
        ok-test 443             deny   -
        oktest 443              deny   -
        ok.tes 443              deny   -
        ok.testx 443            deny   -
        ?ok.test 0              splice allow ok.test
        ?OK.Test. 0             splice allow ok.test
        ?www.ok.test 0          deny   -
        ?test 0                 deny   -
        """,
    ),
    "wildcards": (
        "allow *.w.test; allow *.deep.w2.test; allow apex.test",
        r"""
        a.w.test 443            splice allow *.w.test
        a.b.c.w.test 80         raw    allow *.w.test
        w.test 443              deny   -
        aw.test 443             deny   -
        a.w.test.evil.example 443 deny -
        *.w.test 443            deny   -
        *.a.w.test 443          deny   -
        w2.test 443             deny   -
        deep.w2.test 443        deny   -
        x.deep.w2.test 443      splice allow *.deep.w2.test
        other.w2.test 443       deny   -
        x.apex.test 443         deny   -
        A.W.TEST. 443           splice allow *.w.test
        _dmarc.w.test 443       splice allow *.w.test
        ?a.w.test 0             splice allow *.w.test
        ?w.test 0               deny   -
        """,
    ),
    "the more specific rule is named": (
        "allow *.test.example; allow a.test.example :443; allow *.a.test.example :80",
        r"""
        a.test.example 443      splice allow a.test.example
        a.test.example 80       raw    allow *.test.example
        x.a.test.example 80     raw    allow *.a.test.example
        x.a.test.example 443    splice allow *.test.example
        b.test.example 443      splice allow *.test.example
        ?a.test.example 0       splice allow a.test.example
        """,
    ),
    "ports belong to their entry": (
        "allow ok.test; allow db.test :5432; allow git.test :22; allow tls.test :443,8443; allow two.test :443; "
        "allow two.test :9000",
        r"""
        db.test 5432            raw    allow db.test
        db.test 443             deny   allow db.test
        ok.test 5432            deny   allow ok.test
        git.test 22             raw    allow git.test
        git.test 443            deny   allow git.test
        ok.test 22              deny   allow ok.test
        tls.test 8443           splice allow tls.test
        tls.test 443            splice allow tls.test
        tls.test 80             deny   allow tls.test
        two.test 443            splice allow two.test
        two.test 9000           raw    allow two.test
        two.test 80             deny   allow two.test
        ?db.test 0              splice allow db.test
        """,
    ),
    "deny beats allow": (
        "allow ok.test; allow *.w.test; deny ads.w.test; allow a.bad.test; deny *.bad.test; allow bad.test; "
        "deny both.test; allow both.test",
        r"""
        ads.w.test 443          deny   deny ads.w.test
        ADS.w.test 443          deny   deny ads.w.test
        ads.w.test. 443         deny   deny ads.w.test
        ads.w.test 8080         deny   deny ads.w.test
        ads.w.test 0            deny   deny ads.w.test
        x.ads.w.test 443        splice allow *.w.test
        a.bad.test 443          deny   deny *.bad.test
        x.y.bad.test 443        deny   deny *.bad.test
        bad.test 443            splice allow bad.test
        both.test 443           deny   deny both.test
        ?ads.w.test 0           deny   deny ads.w.test
        ?a.bad.test 0           deny   deny *.bad.test
        ?bad.test 0             splice allow bad.test
        """,
    ),
    "kill beats all": (
        "allow ok.test; kill trap.test; allow trap.test; deny trap.test; inspect trap.test; kill *.trap.test; "
        "allow *.mix.test; kill one.mix.test; deny *.mix2.test; kill deep.mix2.test; kill 203.0.113.66; "
        "allow 203.0.113.0/24; kill 198.51.100.0/24; deny 198.51.100.7; kill 169.254.169.254",
        r"""
        trap.test 443           kill   kill trap.test
        trap.test 80            kill   kill trap.test
        trap.test 22            kill   kill trap.test
        trap.test 0             kill   kill trap.test
        TRAP.Test. 443          kill   kill trap.test
        a.trap.test 443         kill   kill *.trap.test
        a.b.trap.test 443       kill   kill *.trap.test
        atrap.test 443          deny   -
        trap.test.example 443   deny   -
        one.mix.test 443        kill   kill one.mix.test
        two.mix.test 443        splice allow *.mix.test
        x.one.mix.test 443      splice allow *.mix.test
        a.mix2.test 443         deny   deny *.mix2.test
        deep.mix2.test 443      kill   kill deep.mix2.test
        203.0.113.66 443        kill   kill 203.0.113.66
        203.0.113.66 9999       kill   kill 203.0.113.66
        203.0.113.67 443        splice allow 203.0.113.0/24
        198.51.100.9 443        kill   kill 198.51.100.0/24
        198.51.100.7 443        kill   kill 198.51.100.0/24
        64:ff9b::cb00:7142 443  kill   kill 203.0.113.66
        169.254.169.254 80      kill   kill 169.254.169.254
        169.254.169.253 80      deny   -
        3405803842 443          deny   -
        ?trap.test 0            kill   kill trap.test
        ?x.trap.test 0          kill   kill *.trap.test
        ?deep.mix2.test 0       kill   kill deep.mix2.test
        ?a.mix2.test 0          deny   deny *.mix2.test
        ok.test>203.0.113.66 443 deny  kill 203.0.113.66
        ok.test>198.51.100.9 443 deny  kill 198.51.100.0/24
        ok.test>203.0.113.67 443 splice allow ok.test
        """,
    ),
    "inspect": (
        "inspect seen.test; inspect *.seen.test :8443,5432; allow ok.test; allow mixed.test; inspect mixed.test :8443; "
        "allow *.half.test; inspect a.half.test; allow own.test tls=inspect; allow plain.test tls=splice; "
        "inspect 203.0.113.0/24; deny shut.seen.test",
        r"""
        seen.test 443           bump   inspect seen.test
        seen.test 80            bump   inspect seen.test
        seen.test 8443          deny   inspect seen.test
        SEEN.test. 443          bump   inspect seen.test
        a.seen.test 8443        bump   inspect *.seen.test
        a.seen.test 5432        bump   inspect *.seen.test
        a.seen.test 443         deny   inspect *.seen.test
        shut.seen.test 8443     deny   deny shut.seen.test
        ok.test 443             splice allow ok.test
        mixed.test 443          splice allow mixed.test
        mixed.test 8443         bump   inspect mixed.test
        a.half.test 443         bump   inspect a.half.test
        b.half.test 443         splice allow *.half.test
        own.test 443            bump   allow own.test
        own.test 80             bump   allow own.test
        plain.test 443          splice allow plain.test
        203.0.113.7 443         bump   inspect 203.0.113.0/24
        203.0.114.7 443         deny   -
        ?seen.test 0            splice inspect seen.test
        ?a.seen.test 0          splice inspect *.seen.test
        """,
    ),
    "a policy that opens all": (
        "tls inspect; allow ok.test; allow pinned.test tls=splice; allow git.test :22,443; allow db.test :5432; "
        "allow *.w.test; allow kept.w.test tls=splice; allow both.test tls=splice; inspect both.test; "
        "credential api.test; allow api.test; allow 203.0.113.7",
        r"""
        ok.test 443             bump   allow ok.test
        ok.test 80              bump   allow ok.test
        pinned.test 443         splice allow pinned.test
        pinned.test 80          raw    allow pinned.test
        git.test 22             raw    allow git.test
        git.test 443            bump   allow git.test
        db.test 5432            bump   allow db.test
        a.w.test 443            bump   allow *.w.test
        kept.w.test 443         splice allow kept.w.test
        both.test 443           bump   allow both.test
        api.test 443            bump   allow api.test
        203.0.113.7 443         bump   allow 203.0.113.7
        no.test 443             deny   -
        """,
    ),
    "hosts with a credential": (
        "credential api.test; allow api.test :443,80,22,8443; credential shut.test; allow shut.test; deny shut.test; "
        "credential gone.test; credential trap.test; kill trap.test; credential sub.w.test; allow *.w.test",
        r"""
        api.test 443            bump   allow api.test
        API.test. 443           bump   allow api.test
        api.test 80             deny   allow api.test
        api.test 8443           deny   allow api.test
        api.test 22             raw    allow api.test
        api.test 9000           deny   allow api.test
        x.api.test 443          deny   -
        shut.test 443           deny   deny shut.test
        gone.test 443           deny   -
        trap.test 443           kill   kill trap.test
        sub.w.test 443          bump   allow *.w.test
        sub.w.test 80           deny   allow *.w.test
        other.w.test 443        splice allow *.w.test
        ?api.test 0             splice allow api.test
        """,
    ),
    "IPv4 literals and ranges": (
        "allow 203.0.113.0/24; deny 203.0.113.66; allow 198.51.100.7 :22; allow 10.30.0.0/16 :443; deny 10.30.9.0/24",
        r"""
        203.0.113.0 443         splice allow 203.0.113.0/24
        203.0.113.255 80        raw    allow 203.0.113.0/24
        203.0.113.7 22          deny   allow 203.0.113.0/24
        203.0.112.255 443       deny   -
        203.0.114.0 443         deny   -
        203.0.113.66 443        deny   deny 203.0.113.66
        203.0.113.66 22         deny   deny 203.0.113.66
        198.51.100.7 22         raw    allow 198.51.100.7
        198.51.100.7 443        deny   allow 198.51.100.7
        198.51.100.8 22         deny   -
        10.30.0.1 443           splice allow 10.30.0.0/16
        10.30.255.255 443       splice allow 10.30.0.0/16
        10.30.0.1 80            deny   allow 10.30.0.0/16
        10.30.9.1 443           deny   deny 10.30.9.0/24
        10.31.0.1 443           deny   -
        ?203.0.113.7 0          deny   -
        ?10.30.0.1 0            deny   -
        """,
    ),
    "IPv6 literals and ranges": (
        "allow 2001:db8::1; allow 2001:db8:1::/48 :8443; deny 2001:db8:1:9::/64; allow fd00:1::/32; "
        "allow 64:ff9b::/96; deny 203.0.113.0/24",
        r"""
        2001:db8::1 443         splice allow 2001:db8::1
        [2001:db8::1] 443       splice allow 2001:db8::1
        2001:db8::2 443         deny   -
        2001:DB8::1 443         deny   -
        2001:db8:0::1 443       deny   -
        2001:db8:0:0:0:0:0:1 443 deny  -
        2001:db8::0001 443      deny   -
        2001:db8:1:2::3 8443    splice allow 2001:db8:1::/48
        2001:db8:1:2::3 443     deny   allow 2001:db8:1::/48
        2001:db8:1:9::3 8443    deny   deny 2001:db8:1:9::/64
        2001:db8:2::3 8443      deny   -
        fd00:1::5 443           splice allow fd00:1::/32
        fd00:2::5 443           deny   -
        [fe80::1%25eth0] 80     deny   -
        fe80::1%eth0 80         deny   -
        ::1 443                 deny   -
        [::1] 443               deny   -
        :: 443                  deny   -
        64:ff9b::c633:6407 443  splice allow 64:ff9b::/96
        64:ff9b::cb00:7107 443  deny   deny 203.0.113.0/24
        64:ff9b::7f00:1 443     deny   allow 64:ff9b::/96
        64:ff9b::a9fe:a9fe 80   deny   allow 64:ff9b::/96
        """,
    ),
    "other spellings of an address are no host": (
        "allow 203.0.113.0/24; allow 10.0.0.0/8; allow *.w.test; allow ok.test",
        r"""
        2130706433 443          deny -
        3405803783 443          deny -
        167772165 80            deny -
        0x7f000001 443          deny -
        0x7f.1 443              deny -
        0xcb.0.113.7 443        deny -
        017700000001 443        deny -
        0177.0.0.1 443          deny -
        0313.0.0161.07 443      deny -
        127.1 443               deny -
        10.5 80                 deny -
        10.0.5 80               deny -
        203.0.113.007 443       deny -
        203.0.113.7. 443        deny -
        203.0.113.7.. 443       deny -
        203.0.113.256 443       deny -
        203.0.113 443           deny -
        203.0.113.7.1 443       deny -
        0 80                    deny -
        0x 80                   deny -
        1 443                   deny -
        ok.test.1 443           deny -
        a.w.test.0x1 443        deny -
        ::ffff:10.0.0.5 80      deny -
        [::ffff:10.0.0.5] 80    deny -
        ::ffff:a00:5 80         deny -
        [::ffff:203.0.113.7] 443 deny -
        ::10.0.0.5 80           deny -
        [203.0.113.7] 443       deny -
        [ok.test] 443           deny -
        203.0.113.7:443 443     deny -
        203.0.113.7/32 443      deny -
        203\u30020.113.7 443    deny -
        \uff12\uff10\uff13.0.113.7 443 deny -
        \u2461.0.113.7 443      deny -
        """,
    ),
    "names in their one form": (
        "allow xn--bcher-kva.test; allow ok.test; deny ads.test; allow *.test.example; allow my_host.test",
        r"""
        b\xfccher.test 443      splice allow xn--bcher-kva.test
        B\xdcCHER.test 443      splice allow xn--bcher-kva.test
        bu\u0308cher.test 443   splice allow xn--bcher-kva.test
        XN--BCHER-KVA.test. 443 splice allow xn--bcher-kva.test
        bucher.test 443         deny   -
        \u043ek.test 443        deny   -
        \uff4f\uff4b.test 443   splice allow ok.test
        ok\uff0etest 443        deny   -
        ok\u3002test 443        deny   -
        \uff41ds.test 443       deny   deny ads.test
        ADS.TEST. 443           deny   deny ads.test
        o\u200dk.test 443       deny   -
        fa\xdf.test.example 443 deny   -
        \ud800.test 443         deny   -
        my_host.test 443        splice allow my_host.test
        -a.test.example 443     deny   -
        a-.test.example 443     deny   -
        a..test.example 443     deny   -
        ok.test\x00.evil.test 443 deny -
        ok.test\x0a 443         deny   -
        ok.test\x20 443         deny   -
        ok%2etest 443           deny   -
        ok.test:443 443         deny   -
        u@ok.test 443           deny   -
        ok.test/x 443           deny   -
        ok.test#x 443           deny   -
        ok\\.test 443           deny   -
        \x22ok.test\x22 443     deny   -
        ?b\xfccher.test 0       splice allow xn--bcher-kva.test
        ?ok.test\x00 0          deny   -
        """,
    ),
    "the floors, IPv4": (
        "allow ok.test",
        r"""
        ok.test>203.0.113.9 443     splice allow ok.test
        ok.test>1.0.0.1 443         splice allow ok.test
        ok.test>0.0.0.0 443         deny allow ok.test
        ok.test>0.1.2.3 443         deny allow ok.test
        ok.test>9.255.255.255 443   splice allow ok.test
        ok.test>10.0.0.0 443        deny allow ok.test
        ok.test>10.255.255.255 443  deny allow ok.test
        ok.test>11.0.0.0 443        splice allow ok.test
        ok.test>100.63.255.255 443  splice allow ok.test
        ok.test>100.64.0.0 443      deny allow ok.test
        ok.test>100.127.255.255 443 deny allow ok.test
        ok.test>100.128.0.0 443     splice allow ok.test
        ok.test>127.0.0.1 443       deny allow ok.test
        ok.test>127.255.255.254 443 deny allow ok.test
        ok.test>169.253.255.255 443 splice allow ok.test
        ok.test>169.254.0.1 443     deny allow ok.test
        ok.test>169.255.0.0 443     splice allow ok.test
        ok.test>172.15.255.255 443  splice allow ok.test
        ok.test>172.16.0.0 443      deny allow ok.test
        ok.test>172.31.255.255 443  deny allow ok.test
        ok.test>172.32.0.0 443      splice allow ok.test
        ok.test>192.0.0.8 443       deny allow ok.test
        ok.test>192.0.1.0 443       splice allow ok.test
        ok.test>192.88.99.1 443     deny allow ok.test
        ok.test>192.167.255.255 443 splice allow ok.test
        ok.test>192.168.0.1 443     deny allow ok.test
        ok.test>192.169.0.0 443     splice allow ok.test
        ok.test>198.17.255.255 443  splice allow ok.test
        ok.test>198.18.0.0 443      deny allow ok.test
        ok.test>198.19.255.255 443  deny allow ok.test
        ok.test>198.20.0.0 443      splice allow ok.test
        ok.test>223.255.255.255 443 splice allow ok.test
        ok.test>224.0.0.1 443       deny allow ok.test
        ok.test>239.255.255.250 443 deny allow ok.test
        ok.test>240.0.0.1 443       deny allow ok.test
        ok.test>255.255.255.255 443 deny allow ok.test
        ok.test>10.0.0.5\x20 443    deny -
        ok.test>010.0.0.5 443       deny -
        ok.test>167772165 443       deny -
        ok.test>ok.test 443         deny -
        no.test>203.0.113.9 443     deny -
        """,
    ),
    "the floors, IPv6": (
        "allow ok.test",
        r"""
        ok.test>2001:db8::9 443        splice allow ok.test
        ok.test>2606::1 443            splice allow ok.test
        ok.test>:: 443                 deny allow ok.test
        ok.test>::1 443                deny allow ok.test
        ok.test>::a00:1 443            deny allow ok.test
        ok.test>::ffff:203.0.113.9 443 deny -
        ok.test>::ffff:cb00:7109 443   deny -
        ok.test>64:ff9b::cb00:7109 443 splice allow ok.test
        ok.test>64:ff9b::a00:1 443     deny allow ok.test
        ok.test>64:ff9b::7f00:1 443    deny allow ok.test
        ok.test>64:ff9b::a9fe:a9fe 443 deny allow ok.test
        ok.test>64:ff9b::c0a8:101 443  deny allow ok.test
        ok.test>64:ff9b:1::1 443       deny allow ok.test
        ok.test>64:ff9b:1:ffff::1 443  deny allow ok.test
        ok.test>64:ff9b:2::1 443       splice allow ok.test
        ok.test>100::1 443             deny allow ok.test
        ok.test>2001:0:1::1 443        deny allow ok.test
        ok.test>2001::1 443            deny allow ok.test
        ok.test>2002:a00:1::1 443      deny allow ok.test
        ok.test>2002:cb00:7109::1 443  deny allow ok.test
        ok.test>2003::1 443            splice allow ok.test
        ok.test>fbff::1 443            splice allow ok.test
        ok.test>fc00::1 443            deny allow ok.test
        ok.test>fdff::1 443            deny allow ok.test
        ok.test>fe80::1 443            deny allow ok.test
        ok.test>febf::1 443            deny allow ok.test
        ok.test>fec0::1 443            deny allow ok.test
        ok.test>ff02::1 443            deny allow ok.test
        ok.test>ff0e::1 443            deny allow ok.test
        ok.test>2001:DB8::9 443        deny -
        """,
    ),
    "ranges lift the floor for their name and port": (
        "allow lan.test :1234 @10.20.0.0/16; allow *.lan.test @fd00:5::/32; inspect seen.test @10.40.0.0/16; "
        "allow 10.30.0.0/16; allow ok.test; allow two.test @10.50.0.0/16,10.60.0.0/16; deny 10.20.66.0/24",
        r"""
        lan.test>10.20.0.5 1234     raw    allow lan.test
        lan.test>10.20.0.5 443      deny   allow lan.test
        lan.test>10.21.0.5 1234     deny   allow lan.test
        lan.test>10.20.66.5 1234    deny   deny 10.20.66.0/24
        lan.test>203.0.113.5 1234   raw    allow lan.test
        lan.test>fd00:5::1 1234     deny   allow lan.test
        a.lan.test>fd00:5::1 443    splice allow *.lan.test
        a.lan.test>10.20.0.5 443    deny   allow *.lan.test
        seen.test>10.40.0.5 443     bump   inspect seen.test
        seen.test>10.41.0.5 443     deny   inspect seen.test
        ok.test>10.20.0.5 443       deny   allow ok.test
        ok.test>10.30.0.5 443       deny   allow ok.test
        two.test>10.50.0.5 443      splice allow two.test
        two.test>10.60.0.5 443      splice allow two.test
        two.test>10.55.0.5 443      deny   allow two.test
        10.30.0.5>10.30.0.5 443     splice allow 10.30.0.0/16
        10.20.0.5 1234              deny   -
        lan.test>127.0.0.1 1234     deny   allow lan.test
        lan.test>169.254.169.254 1234 deny allow lan.test
        """,
    ),
    "metadata without its switch": (
        "allow ok.test; allow 100.64.0.0/10; allow 192.0.0.0/24; allow fd00::/8",
        r"""
        ok.test>169.254.169.254 80  deny allow ok.test
        ok.test>168.63.129.16 80    deny allow ok.test
        ok.test>fd00:ec2::254 80    deny allow ok.test
        168.63.129.16 80            deny -
        100.100.100.200 80          deny allow 100.64.0.0/10
        100.100.100.201 80          raw  allow 100.64.0.0/10
        192.0.0.192 80              deny allow 192.0.0.0/24
        192.0.0.193 80              raw  allow 192.0.0.0/24
        fd00:ec2::254 80            deny allow fd00::/8
        fd00:ec3::254 80            raw  allow fd00::/8
        """,
    ),
    "metadata with its switch": (
        "metadata; allow 169.254.169.254 :80; allow 168.63.129.16 :80; allow fd00:ec2::254 :80; allow ok.test; "
        "allow meta.test @169.254.169.254; allow 100.100.100.200 :80; allow 192.0.0.192 :80",
        r"""
        169.254.169.254 80          raw  allow 169.254.169.254
        169.254.169.254 443         deny allow 169.254.169.254
        169.254.170.2 80            deny -
        168.63.129.16 80            raw  allow 168.63.129.16
        100.100.100.200 80          raw  allow 100.100.100.200
        192.0.0.192 80              raw  allow 192.0.0.192
        fd00:ec2::254 80            raw  allow fd00:ec2::254
        meta.test>169.254.169.254 80 raw allow meta.test
        meta.test>169.254.170.2 80  deny allow meta.test
        ok.test>169.254.169.254 80  deny allow ok.test
        ok.test>fe80::1 80          deny allow ok.test
        """,
    ),
    "the host's own addresses": (
        "own 198.51.100.1; own 198.51.100.2; own 2001:db8::1; own 192.168.7.7; allow 198.51.100.0/24; "
        "allow 198.51.100.2; allow ok.test; allow me.test @198.51.100.1; allow wide.test @198.51.100.0/24; "
        "allow lan.test @192.168.7.0/24",
        r"""
        198.51.100.1 443            deny   allow 198.51.100.0/24
        198.51.100.2 443            splice allow 198.51.100.2
        198.51.100.3 443            splice allow 198.51.100.0/24
        ok.test>198.51.100.1 443    deny   allow ok.test
        ok.test>198.51.100.2 443    deny   allow ok.test
        ok.test>198.51.100.3 443    splice allow ok.test
        ok.test>2001:db8::1 443     deny   allow ok.test
        ok.test>64:ff9b::c633:6401 443 deny allow ok.test
        ok.test>64:ff9b::c633:6403 443 splice allow ok.test
        me.test>198.51.100.1 443    splice allow me.test
        me.test>198.51.100.2 443    deny   allow me.test
        wide.test>198.51.100.1 443  deny   allow wide.test
        lan.test>192.168.7.8 443    splice allow lan.test
        lan.test>192.168.7.7 443    deny   allow lan.test
        """,
    ),
}


def rows(table: dict[str, tuple[str, str]]) -> Iterator[object]:
    for theme, (policy, text) in table.items():
        parsed = parse(policy)
        for line in filter(None, map(str.strip, text.splitlines())):
            what, port, action, rule = line.split(maxsplit=3)
            yield pytest.param(parsed, what, int(port), action, rule, id=f"{theme}: {what} {port}")


ROWS = list(rows(TABLE))


def decide(policy: Policy, what: str, port: int) -> Decision:
    host, _, address = what.encode().decode("unicode_escape").partition(">")
    if host.startswith("?"):
        return decide_lookup(policy, host[1:])
    return decide_address(policy, host, address, port) if address else decide_name(policy, host, port)


@pytest.mark.parametrize(("policy", "what", "port", "action", "rule"), ROWS)
def test_decision(policy: Policy, what: str, port: int, action: str, rule: str) -> None:
    found = decide(policy, what, port)
    assert (found.action, found.rule or "-") == (action, rule), found.reason
    assert found.allowed == (action not in {"deny", "kill"})
    assert found.scanned == (action == "bump")
    assert found.allowed or (found.reason and not found.floor_lifted)


def test_the_table_is_as_large_as_what_it_has_to_cover() -> None:
    assert len(ROWS) + len(REQUESTS) >= 300
    assert len({row.id for row in ROWS}) == len(ROWS)  # type: ignore[attr-defined]


# Requests whose CONNECT, SNI and Host differ: `tunnel sni asked dialled  answer  host  rule`. `tunnel` is the CONNECT
# that it came through, `asked` a CONNECT or a request inside, `dialled` an address that nft redirected; `-` is none.
PARTS = parse(
    "allow ok.test; allow other.test; inspect seen.test; kill trap.test; kill 203.0.113.66; deny shut.test; "
    "credential api.test; allow api.test; allow 203.0.113.7; allow *.w.test"
)
REQUESTS = r"""
    -         -         CONNECT:ok.test    -            ok   ok.test      allow ok.test
    ok.test   ok.test   CONNECT:ok.test    -            ok   ok.test      allow ok.test
    ok.test   OK.test   CONNECT:ok.test    -            ok   ok.test      allow ok.test
    ok.test   other.test CONNECT:ok.test   -            deny ok.test      allow ok.test
    ok.test   shut.test CONNECT:ok.test    -            deny ok.test      allow ok.test
    ok.test   trap.test CONNECT:ok.test    -            kill trap.test    kill trap.test
    ok.test   -         CONNECT:ok.test    -            deny ok.test      allow ok.test
    ok.test   -         CONNECT:other.test -            deny other.test   allow other.test
    ok.test   -         CONNECT:trap.test  -            kill trap.test    kill trap.test
    seen.test -         CONNECT:seen.test  -            deny seen.test    inspect seen.test
    seen.test seen.test GET:seen.test      -            ok   seen.test    inspect seen.test
    seen.test -         GET:seen.test      -            ok   seen.test    inspect seen.test
    seen.test -         GET:SEEN.test.     -            ok   seen.test    inspect seen.test
    seen.test -         GET:ok.test        -            deny ok.test      allow ok.test
    seen.test -         GET:api.test       -            deny api.test     allow api.test
    seen.test -         GET:shut.test      -            deny shut.test    deny shut.test
    seen.test -         GET:trap.test      -            kill trap.test    kill trap.test
    seen.test other.test GET:seen.test     -            deny seen.test    -
    seen.test trap.test GET:seen.test      -            kill trap.test    kill trap.test
    api.test  api.test  GET:api.test       -            ok   api.test     allow api.test
    api.test  -         GET:seen.test      -            deny seen.test    inspect seen.test
    no.test   -         GET:api.test       -            deny api.test     allow api.test
    -         -         GET:ok.test        -            deny ok.test      allow ok.test
    -         -         HTTP:ok.test       -            ok   ok.test      allow ok.test
    -         -         HTTP:seen.test     -            ok   seen.test    inspect seen.test
    -         -         HTTP:trap.test     -            kill trap.test    kill trap.test
    -         -         HTTP:api.test      -            deny api.test     allow api.test
    -         -         HTTP:203.0.113.66  -            kill 203.0.113.66 kill 203.0.113.66
    -         -         HTTP:no.test       -            deny no.test      -
    -         -         CONNECT:198.51.100.9 198.51.100.9 ok -            -
    -         ok.test   CONNECT:198.51.100.9 198.51.100.9 ok ok.test      allow ok.test
    -         ok.test   CONNECT:198.51.100.8 198.51.100.8 deny ok.test    allow ok.test
    -         seen.test CONNECT:198.51.100.9 198.51.100.9 ok seen.test    inspect seen.test
    -         seen.test CONNECT:198.51.100.8 198.51.100.8 deny seen.test  inspect seen.test
    -         a.w.test  CONNECT:198.51.100.8 198.51.100.8 ok a.w.test     allow *.w.test
    -         no.test   CONNECT:198.51.100.9 198.51.100.9 deny no.test    -
    -         shut.test CONNECT:198.51.100.9 198.51.100.9 deny shut.test  deny shut.test
    -         trap.test CONNECT:198.51.100.9 198.51.100.9 kill trap.test  kill trap.test
    -         ok.test   CONNECT:203.0.113.66 203.0.113.66 kill 203.0.113.66 kill 203.0.113.66
    -         -         CONNECT:203.0.113.7 203.0.113.7 ok  203.0.113.7   allow 203.0.113.7
    -         ok.test   CONNECT:10.0.0.9   10.0.0.9     deny ok.test      allow ok.test
    -         -         HTTP:ok.test       198.51.100.9 ok   ok.test      allow ok.test
    -         -         HTTP:ok.test       198.51.100.8 deny ok.test      allow ok.test
    -         -         HTTP:ok.test       203.0.113.66 kill 203.0.113.66 kill 203.0.113.66
    -         -         HTTP:ok.test       169.254.169.254 deny ok.test   allow ok.test
    ok.test   -         GET:ok.test        198.51.100.9 ok   ok.test      allow ok.test
""".strip().splitlines()


@pytest.mark.parametrize("line", REQUESTS, ids=lambda line: " ".join(line.split()[:4]))
def test_request(line: str) -> None:
    tunnel, sni, asked, dialled, answer, host, rule = line.split(maxsplit=6)
    kind, _, name = asked.partition(":")
    port = 80 if kind == "HTTP" else 443
    question = Question(
        method="CONNECT" if kind == "CONNECT" else "GET",
        host=name,
        port=port,
        sni="" if sni == "-" else sni,
        tunnel=None if tunnel == "-" else Tunnel(tunnel, port),
        local_address="127.0.0.1" if dialled == "-" else dialled,
        raw_path="" if kind == "CONNECT" else "/v1/x",
        scheme={"HTTP": "http", "GET": "https"}.get(kind, ""),
        client_port="40000",
        headers=(),
    )
    resolved = Resolved()
    for known in ("ok.test", "seen.test", "api.test"):
        resolved.add(known, ["198.51.100.9"])
    verdict = judge(PARTS, question, vault=Vault(), resolved=resolved)
    assert verdict.allowed == (answer == "ok"), verdict
    receipts = {str(receipt["kind"]): receipt for receipt in verdict.receipts}
    assert ("kill" in receipts) == (answer == "kill")
    notes = dict(verdict.notes)
    assert (notes.get("rule_") or "-") == rule
    decision = receipts.get("decision")
    if decision is not None:
        assert (decision["host"], decision["action"]) == (host, "allow" if answer == "ok" else "deny")
    assert (notes.get("scan_") == "yes") == (answer == "ok" and host in {"seen.test", "api.test"})
