"""Credentials: what is taken as a secret, that it is never shown, and bindings that a spec can only narrow."""

from __future__ import annotations

import copy
import json
import pickle
import traceback
from itertools import product
from pathlib import Path

import pytest

from agent_container.credential_kinds import KINDS, checksum, in_repositories, make_decoy
from agent_container.credentials import (
    Binding,
    Credential,
    SecretBytes,
    bind,
    covers,
    narrow,
    new_credential,
    parse_credential,
    read_secret,
    rotated,
)
from agent_container.errors import SpecError, StoreError, UsageError
from agent_container.spec import CredentialUse, load_spec
from agent_egress.paths import match_path, template_is_valid
from agent_egress.policy import Policy

GENERIC = bind("generic", hosts=("api.test", "b.test"), methods=("GET", "POST"), paths=("/v1/**", "/me"))


def credential(secret: bytes = b"sk-test-SECRET") -> Credential:
    return new_credential("demo", "generic", value=SecretBytes(secret), binding=GENERIC)


REFUSED_SECRETS = {
    "nothing": (b"", "is empty"),
    "only a line end": (b"\n", "is empty"),
    "a line end inside": (b"sk-test-SECRET\nX", "line end inside"),
    "two line ends at the end": (b"sk-test-SECRET\n\n", "line end inside"),
    "a carriage return inside": (b"sk-test-SECRET\rX", "line end inside"),
    "a NUL": (b"sk-test-SECRET\0", "byte 15 of the secret"),
    "a tab": (b"sk-test-SECRET\tX", "byte 15 of the secret"),
    "a letter that no header carries": ("sk-test-SECRET€".encode(), "byte 15 of the secret"),
    "an escape": (b"sk-test-SECRET\x1b[0m", "byte 15 of the secret"),
    "a space in front": (b" sk-test-SECRET", "byte 1 of the secret"),
    "two words": (b"sk test SECRET", "byte 3 of the secret"),
    "a whole file": (b"SECRET" * 4000, "the most is 8192"),
}


@pytest.mark.parametrize(("raw", "reason"), REFUSED_SECRETS.values(), ids=REFUSED_SECRETS)
def test_a_secret_that_no_header_can_carry_is_refused_without_showing_it(raw: bytes, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        read_secret(raw)
    shown = (
        "".join(traceback.format_exception_only(caught.value)) + "".join(caught.value.details) + str(caught.value.hint)
    )
    assert "SECRET" not in shown


@pytest.mark.parametrize(("raw", "noticed"), [(b"abc", False), (b"abc\n", True), (b"abc\r\n", True)])
def test_the_line_end_of_echo_is_cut_off_with_a_notice(raw: bytes, noticed: bool) -> None:
    secret, notice = read_secret(raw)
    assert secret.reveal() == raw.strip()
    assert bool(notice) == noticed


def test_a_secret_hides_from_everything_that_prints() -> None:
    held = credential()
    for text in (
        repr(held),
        str(held),
        f"{held.secret}",
        f"{held.secret!s:>40}",
        ascii(held.secret),
    ):
        assert "SECRET" not in text
    with pytest.raises(TypeError):
        pickle.dumps(held.secret)
    with pytest.raises(TypeError):
        copy.deepcopy(held)
    with pytest.raises(TypeError):
        json.dumps({"secret": held.secret})  # type: ignore[dict-item]
    assert held.secret == SecretBytes(b"sk-test-SECRET")
    assert held.secret != SecretBytes(b"x")
    assert held.secret != b"sk-test-SECRET"


def test_what_is_sealed_is_read_back() -> None:
    held = credential()
    assert parse_credential(held.encode(), name="demo") == held
    assert rotated(held, SecretBytes(b"new")).binding == held.binding


DAMAGED = {
    "half of it": lambda body: body[: len(body) // 2],
    "nothing": lambda _: b"",
    "another name": lambda body: body.replace(b'"demo"', b'"other"'),
    "another version": lambda body: body.replace(b'"version": 1', b'"version": 9'),
    "another kind": lambda body: body.replace(b'"generic"', b'"alien"'),
    "a key more in the binding": lambda body: body.replace(b'"port":', b'"pirate": 1, "port":'),
    "a secret that is no text": lambda body: body.replace(b'"sk-test-SECRET"', b"7"),
    "a secret with a line end": lambda body: body.replace(b"SECRET", b"SECRET\\nX"),
    "a list": lambda _: b'["SECRET"]',
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_entry_names_the_credential_and_not_its_content(damage: object) -> None:
    with pytest.raises(StoreError, match="the credential demo") as caught:
        parse_credential(damage(credential().encode()), name="demo")  # type: ignore[operator]
    assert "SECRET" not in "".join(traceback.format_exception(caught.value, chain=True))


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.hosts])
def test_every_kind_binds_by_itself_and_the_sidecar_takes_it(kind: str) -> None:
    binding = bind(kind)
    policy = Policy.parse(Policy(credentials=binding.rows(kind)).encode())
    assert len(policy.credentials) == sum(len(place.hosts) * len(place.formats) for place in binding.places)
    assert binding.env
    assert all(template_is_valid(path) for place in binding.places for path in place.paths)


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if not kind.hosts])
def test_a_kind_without_a_host_of_its_own_is_told_one(kind: str) -> None:
    with pytest.raises(UsageError, match="needs to know where"):
        bind(kind)
    binding = bind(kind, hosts=("registry.test",), paths=KINDS[kind].paths or ("/x",))
    assert all(template_is_valid(path) for path in binding.paths)


MINTING = {
    "a deploy key": ("github", "/repos/acme/app/keys"),
    "an installation's token": ("github", "/app/installations/1/access_tokens"),
    "a runner's token": ("github", "/repos/acme/app/actions/runners/registration-token"),
    "a user's key": ("github", "/user/keys"),
    "a repository's secret": ("github", "/repos/acme/app/actions/secrets/X"),
    "a web hook": ("github", "/repos/acme/app/hooks"),
    "an Anthropic key": ("anthropic", "/v1/organizations/api_keys"),
    "an Anthropic login": ("anthropic-oauth", "/v1/oauth/token"),
    "an Anthropic evaluation": ("anthropic", "/api/eval/sdk-x"),
    "an OpenAI key": ("openai", "/v1/organization/admin_api_keys"),
    "an OpenAI session": ("openai", "/v1/realtime/sessions"),
    "an OpenRouter key": ("openrouter", "/api/v1/keys"),
    "a user's ssh keys": ("github", "/user/ssh_signing_keys"),
    "a personal token, in the browser's way": ("github", "/settings/tokens/new"),
    "a token of an app's device flow": ("github", "/login/oauth/access_token"),
    "an authorization": ("github", "/authorizations"),
    "a key by the repository's number": ("github", "/repositories/1/keys"),
    "what LFS hands out": ("github", "/acme/app.git/info/lfs/objects/batch"),
    "an npm token": ("npm", "/-/npm/v1/tokens"),
    "an npm login": ("npm", "/-/user/org.couchdb.user:me"),
    "an npm login in the browser": ("npm", "/-/v1/login/x"),
    "a PyPI token": ("pypi", "/manage/account/token"),
    "a PyPI token of a publisher": ("pypi", "/_/oidc/mint-token"),
}


@pytest.mark.parametrize(("kind", "path"), MINTING.values(), ids=MINTING)
def test_no_kind_reaches_a_path_that_mints(kind: str, path: str) -> None:
    row = KINDS[kind]
    every = [*row.paths, *(template for place in row.more for template in place.paths)]
    assert not any(match_path(template, path) for template in every)
    for repository in ("acme/app", "login/oauth", "settings/tokens", "user/keys"):
        assert not any(match_path(template, path) for template in in_repositories(tuple(every), (repository,)))


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("anthropic", "/v1/messages?beta=true"),
        ("openai", "/v1/responses"),
        ("google", "/v1beta/models/gemini-x:streamGenerateContent?alt=sse"),
        ("github", "/repos/acme/app/pulls/7/reviews"),
        ("npm", "/left-pad"),
        ("npm", "/@acme/app/-/app-1.0.0.tgz"),
        ("pypi", "/simple/acme-app/"),
        ("pypi", "/packages/ab/acme-app-1.0.0.whl"),
    ],
)
def test_what_agents_call_is_covered(kind: str, path: str) -> None:
    assert any(match_path(template, path) for template in KINDS[kind].paths)


BAD_BINDINGS = {
    "no host": ({"paths": ("/**",)}, "hosts are missing"),
    "no path": ({"hosts": ("api.test",)}, "paths are missing"),
    "a wildcard host": ({"hosts": ("*.test",), "paths": ("/**",)}, "host"),
    "an address as a host": ({"hosts": ("203.0.113.7",), "paths": ("/**",)}, "host"),
    "a path that climbs": ({"hosts": ("api.test",), "paths": ("/../x",)}, "path"),
    "a header that frames": ({"hosts": ("api.test",), "paths": ("/**",), "header": "Content-Length"}, "header"),
    "a header with a line end": ({"hosts": ("api.test",), "paths": ("/**",), "header": "A\r\nB"}, "header"),
    "a format without a place": ({"hosts": ("api.test",), "paths": ("/**",), "formats": ("Bearer",)}, "format"),
    "TRACE": ({"hosts": ("api.test",), "paths": ("/**",), "methods": ("TRACE",)}, "method"),
    "a repository of no forge": ({"hosts": ("api.test",), "paths": ("/**",), "repositories": ("a/b",)}, ""),
    "no port": ({"hosts": ("api.test",), "paths": ("/**",), "port": 0}, "port"),
    "a variable of the loader": ({"hosts": ("api.test",), "paths": ("/**",), "env": ("LD_PRELOAD",)}, "env"),
}


@pytest.mark.parametrize(("given_", "word"), BAD_BINDINGS.values(), ids=BAD_BINDINGS)
def test_a_binding_that_the_sidecar_would_refuse_is_refused_when_it_is_made(
    given_: dict[str, object], word: str
) -> None:
    with pytest.raises(UsageError) as caught:
        bind("generic", **given_)  # type: ignore[arg-type]
    assert word in "".join(caught.value.details)


def test_hosts_are_bound_in_their_canonical_form() -> None:
    assert bind("generic", hosts=("API.Test.", "api.test"), paths=("/**",)).hosts == ("api.test",)


def test_an_unknown_kind_and_a_bad_name_are_refused() -> None:
    with pytest.raises(UsageError, match="no kind of credential"):
        bind("alien")
    with pytest.raises(UsageError, match="cannot name a credential"):
        new_credential("../x", "generic", value=SecretBytes(b"x"), binding=GENERIC)


def use(**fields: object) -> CredentialUse:
    return CredentialUse(name="demo", **fields)  # type: ignore[arg-type]


def test_a_spec_narrows_what_it_names_and_leaves_the_rest() -> None:
    narrowed = narrow(GENERIC, use(hosts=("b.test",), methods=("GET",), paths=("/v1/items/*",), env="DEMO_KEY"))
    assert narrowed == Binding(
        hosts=("b.test",),
        methods=("GET",),
        paths=("/v1/items/*",),
        header="Authorization",
        formats=("Bearer {}",),
        env=("DEMO_KEY",),
    )
    assert narrow(GENERIC, use()) == GENERIC


WIDER = {
    "another host": ({"hosts": ("api.test", "evil.test")}, ["host evil.test"]),
    "a host below": ({"hosts": ("x.api.test",)}, ["host x.api.test"]),
    "another method": ({"methods": ("GET", "DELETE")}, ["method DELETE"]),
    "another path": ({"paths": ("/v2/x",)}, ["path /v2/x"]),
    "everything": ({"paths": ("/**",)}, ["path /**"]),
    "a star over a fixed path": ({"paths": ("/*",)}, ["path /*"]),
    "all of it at once": (
        {"hosts": ("c.test",), "methods": ("PUT",), "paths": ("/x",)},
        ["host c.test", "method PUT", "path /x"],
    ),
}


@pytest.mark.parametrize(("fields", "named"), WIDER.values(), ids=WIDER)
def test_a_spec_that_would_widen_is_refused_by_name(fields: dict[str, object], named: list[str]) -> None:
    with pytest.raises(SpecError, match="asks for more") as caught:
        narrow(GENERIC, use(**fields))
    assert list(caught.value.details) == [f"not in its binding: {what}" for what in named]


def test_a_use_read_from_a_spec_narrows_too() -> None:
    text = b"credentials: [{name: demo, hosts: [API.test.], methods: [GET]}]"
    spec = load_spec(text, path=Path("agent-container.yaml"), default_name="a")
    assert narrow(GENERIC, spec.credentials[0]).hosts == ("api.test",)


TEMPLATES = [
    "/" + "/".join((*head, *tail))
    for length in (1, 2, 3)
    for head in product(("a", "b", "*"), repeat=length)
    for tail in ((), ("**",))
]
PATHS = ["/" + "/".join(parts) for length in (1, 2, 3, 4, 5) for parts in product("abc", repeat=length)]


def test_a_template_that_is_covered_matches_nothing_more() -> None:
    matched = {template: {path for path in PATHS if match_path(template, path)} for template in TEMPLATES}
    pairs = [(outer, inner) for outer in TEMPLATES for inner in TEMPLATES if covers(outer, inner)]
    assert len(pairs) > len(TEMPLATES)
    assert [pair for pair in pairs if not matched[pair[1]] <= matched[pair[0]]] == []


@pytest.mark.parametrize(
    ("outer", "inner", "covered"),
    [
        ("/a", "/a", True),
        ("/**", "/a/*", True),
        ("/**", "/**", True),
        ("/a/**", "/a/b/**", True),
        ("/a/*/**", "/a/**", False),
        ("/a/**", "/a", False),
        ("/a/**", "/a/", False),
        ("/a/*", "/a/**", False),
        ("/*/x", "/a/x", True),
        ("/a/x", "/*/x", False),
    ],
)
def test_which_template_covers_which(outer: str, inner: str, covered: bool) -> None:
    assert covers(outer, inner) is covered


@pytest.mark.parametrize("kind", KINDS)
def test_a_placeholder_has_the_shape_of_the_real_thing_and_can_be_carried(kind: str) -> None:
    decoy = make_decoy(kind, b"0123456789abcdef")
    assert decoy.startswith(KINDS[kind].prefix)
    assert len(decoy) == KINDS[kind].length
    assert len(decoy) - len(KINDS[kind].prefix) >= 32
    assert read_secret(decoy.encode())[1] is None
    assert decoy == make_decoy(kind, b"0123456789abcdef")
    assert decoy != make_decoy(kind, b"0123456789abcdeg")


def test_a_placeholder_needs_real_randomness() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        make_decoy("openai", b"short")


def test_a_placeholder_ends_in_the_checksum_that_programs_look_at() -> None:
    for number in range(50):
        decoy = make_decoy("github", bytes([number]) * 16)
        body = decoy.removeprefix("ghp_")
        assert len(body) == 36 and body.isalnum()
        assert body[30:] == checksum(body[:30])
    # CRC-32's own check value, 0xCBF43926 for "123456789", in base 62; zeros in front.
    assert checksum("123456789") == "3jZRME"
    assert checksum("") == "000000"


FORGE = bind("github", repositories=("acme/app", "acme/docs.git"))
REACHED = {
    "its API": ("/repos/acme/app/pulls/7", True),
    "the repository itself": ("/repos/acme/docs", True),
    "a fetch": ("/acme/app.git/info/refs?service=git-upload-pack", True),
    "a fetch without the ending": ("/acme/docs/git-upload-pack", True),
    "a push": ("/acme/app.git/git-receive-pack", True),
    "who it is": ("/user", True),
    "another repository's API": ("/repos/acme/other/pulls/7", False),
    "another owner's": ("/repos/evil/app/pulls/7", False),
    "a push elsewhere": ("/evil/app.git/git-receive-pack", False),
    "one that only begins so": ("/repos/acme/app2", False),
    "a search over all that it sees": ("/search/code", False),
}


@pytest.mark.parametrize(("path", "reached"), REACHED.values(), ids=REACHED)
def test_a_forges_token_is_bound_to_the_repositories_that_were_named(path: str, reached: bool) -> None:
    assert any(match_path(template, path) for place in FORGE.places for template in place.paths) is reached


@pytest.mark.parametrize("name", ["acme", "acme/app/x", "../x", "*/*", "acme/*", "/app", "acme/"])
def test_a_repository_is_named_by_owner_and_name(name: str) -> None:
    with pytest.raises(UsageError, match="names no repository"):
        bind("github", repositories=(name,))


def test_a_spec_narrows_each_place_by_itself() -> None:
    assert narrow(FORGE, use()) == FORGE
    fetch = narrow(FORGE, use(hosts=("github.com",), methods=("GET",)))
    assert (fetch.hosts, fetch.methods, fetch.more) == (("github.com",), ("GET",), ())
    assert [place.hosts for place in narrow(FORGE, use(paths=("/repos/acme/app/pulls",))).places] == [
        ("api.github.com",)
    ]
    with pytest.raises(SpecError, match="asks for more"):
        narrow(FORGE, use(paths=("/repos/acme/other/pulls",)))
    with pytest.raises(SpecError, match="is nothing"):
        narrow(FORGE, use(hosts=("github.com",), paths=("/user",)))


def test_what_its_user_says_of_hosts_stands_alone() -> None:
    own = bind("github", hosts=("forge.acme.test",))
    assert [place.hosts for place in own.places] == [("forge.acme.test",)]
    with pytest.raises(UsageError, match="is not bound to repositories"):
        bind("openai", repositories=("acme/app",))
    for path in ("/**", "/repos/**", "/repos/acme/app/issues", "/user"):
        with pytest.raises(UsageError, match="--repo and --path exclude each other"):
            bind("github", paths=("/repos/*/*/pulls", path), repositories=("acme/app",))
