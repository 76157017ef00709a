"""A tree's own git directory, read as data: where it is, its refs, and the few settings that may reach a sandbox."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable

from agent_workspace.git import OID, Clock, Failed, Repository, environment, last_words

MAX_SMALL_BYTES = 1024 * 1024
MAX_REFS_BYTES = 256 * 1024 * 1024
MAX_INDEX_BYTES = 512 * 1024 * 1024
REF = re.compile(r"refs/[^\x00-\x20\x7f~^:?*\[\\]+")


def read_small(path: Path, limit: int = MAX_SMALL_BYTES) -> bytes | None:
    """A regular file's content; None where there is none. A FIFO must not hang us, a link must not lead on."""
    try:
        handle = os.open(str(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        return None
    with os.fdopen(handle, "rb") as stream:
        body = stream.read(limit + 1)
    return body if len(body) <= limit else None


@dataclass(frozen=True)
class Found:
    """Where a tree's git directory is. `git_dir` holds HEAD and the index, `common` the rest; they differ in a
    linked worktree."""

    git_dir: Path
    common: Path


def find_git(tree: Path) -> Found | None:
    """The tree's git directory, whether `.git` is a directory, a file that points, or absent."""
    dotgit = tree / ".git"
    pointer = read_small(dotgit, 8192)
    if pointer is not None:
        words = os.fsdecode(pointer)
        if not words.startswith("gitdir:"):
            return None
        dotgit = tree / words[len("gitdir:") :].strip()
    if not dotgit.is_dir():
        return None
    common = read_small(dotgit / "commondir", 8192)
    where = dotgit / os.fsdecode(common).strip() if common is not None else dotgit
    return Found(dotgit, where) if (where / "objects").is_dir() else None


ALLOWED_KEY = re.compile(
    r"core\.(autocrlf|eol|safecrlf|filemode|symlinks|ignorecase|precomposeunicode|sparsecheckout|sparsecheckoutcone|logallrefupdates)"
    r"|remote\..+\.(url|pushurl|fetch|tagopt)|branch\..+\.(remote|merge|rebase)|submodule\..+\.(url|branch|active)"
    r"|user\.(name|email)|push\.default|pull\.(rebase|ff)|merge\.conflictstyle|init\.defaultbranch",
    re.DOTALL,
)
"""What of a project's configuration reaches the sandbox: none of these names a program, a file to read, or a header
to send."""


def clean_url(url: str) -> str | None:
    """A remote's URL without passwords and tokens; None for a form that runs a program (`ext::...`)."""
    if "::" in url or url.startswith("-"):
        return None
    match = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]*)://(?:([^/?#]*)@)?([^/?#]*)([^?#]*)(.*)", url, re.DOTALL)
    if match is None:
        return url  # a path, or host:path of ssh, which has no place for a password
    scheme, user, host, path, _ = match.groups()
    if scheme.lower() in ("ssh", "git+ssh", "ssh+git"):
        return f"{scheme}://{user.split(':')[0] + '@' if user else ''}{host}{path}"
    return f"{scheme}://{host}{path}" if scheme.lower() in ("http", "https", "git", "file") else None


def read_config(path: Path, clock: Clock) -> list[tuple[str, str]]:
    """Every entry of one configuration file, includes not followed; raises on a file that git cannot read."""
    if read_small(path) is None:
        return []
    try:
        done = subprocess.run(
            ["git", "config", "--file", str(path), "--no-includes", "-z", "--list"],
            cwd="/",  # or git would look at the repository around it first, whose HEAD may be a FIFO
            env=environment(),
            capture_output=True,
            timeout=clock.left(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"git took too long over {path}") from None
    if done.returncode != 0:
        raise Failed(f"{path}: {last_words(done.stderr)}")
    entries = []
    for row in done.stdout.decode("utf-8", "surrogateescape").split("\0"):
        if row:
            key, equals, value = row.partition("\n")
            entries.append((key, value if equals else "true"))
    return entries


def allowed(entries: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The entries that may reach the sandbox, URLs cleaned."""
    kept = []
    for key, value in entries:
        if not ALLOWED_KEY.fullmatch(key):
            continue
        if key.endswith(("url",)):
            cleaned = clean_url(value)
            if cleaned is None:
                continue
            kept.append((key, cleaned))
        else:
            kept.append((key, value))
    return kept


def config_text(entries: Iterable[tuple[str, str]]) -> str:
    """Entries as a configuration file, every name and value quoted."""

    def quoted(text: str) -> str:
        return (
            '"'
            + text.replace("\\", "\\\\")
            .replace('"', '\\"')
            .replace("\n", "\\n")
            .replace("\t", "\\t")
            .replace("\b", "\\b")
            + '"'
        )

    lines: list[str] = []
    last = ""
    for key, value in entries:
        section, _, rest = key.partition(".")
        subsection, _, name = rest.rpartition(".")
        escaped = subsection.replace("\\", "\\\\").replace('"', '\\"')
        header = f'[{section} "{escaped}"]' if subsection else f"[{section}]"
        if header != last:
            lines.append(header)
        last = header
        lines.append(f"\t{name} = {quoted(value)}")
    return "\n".join(lines) + "\n"


def check_regular(store: Path) -> None:
    """Raises Failed for anything in an object directory that git would wait for: it opens what has the right name."""
    for folder, folders, files in os.walk(str(store)):
        for name in (*folders, *files):
            mode = os.lstat(os.path.join(folder, name)).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise Failed(f"{os.path.join(folder, name)} is neither a file nor a directory; git would open it")


def object_stores(objects: Path) -> list[Path]:
    """The object directory and every alternate, absolute: git itself ignores relative alternates of alternates."""
    stores, queue = [], [objects]
    while queue and len(stores) < 16:
        store = Path(os.path.realpath(queue.pop(0)))
        if store in stores or not store.is_dir():
            continue
        check_regular(store)
        stores.append(store)
        for line in os.fsdecode(read_small(store / "info" / "alternates") or b"").splitlines():
            if line and not line.startswith("#"):
                queue.append(store / line)
    return stores


def read_refs(found: Found, *, reftable: bool, clock: Clock) -> tuple[str | None, str | None, dict[str, str]]:
    """HEAD's branch, HEAD's commit, and every ref; read as files, so that no broken configuration can stop it."""
    refs: dict[str, str] = {}
    if reftable:
        env = environment(GIT_DIR=str(found.git_dir))

        def ask(*words: str) -> str:
            try:
                done = subprocess.run(["git", *words], env=env, capture_output=True, timeout=clock.left(), check=False)
            except subprocess.TimeoutExpired:
                raise Failed(f"git {words[0]} took too long over {found.git_dir}") from None
            return done.stdout.decode("utf-8", "surrogateescape")

        for line in ask("for-each-ref", "--format=%(objectname) %(refname)").splitlines():
            oid, _, name = line.partition(" ")
            refs[name] = oid
        name, oid = ask("symbolic-ref", "-q", "HEAD").strip(), ask("rev-parse", "--verify", "-q", "HEAD").strip()
        return name or None, oid or None, refs
    for line in os.fsdecode(read_small(found.common / "packed-refs", MAX_REFS_BYTES) or b"").splitlines():
        oid, _, name = line.partition(" ")
        if OID.fullmatch(oid) and REF.fullmatch(name):
            refs[name] = oid
    for folder, _, files in os.walk(str(found.common / "refs")):
        for file in files:
            path = Path(folder, file)
            oid, name = os.fsdecode(read_small(path, 4096) or b"").strip(), str(path.relative_to(found.common))
            if OID.fullmatch(oid) and REF.fullmatch(name):
                refs[name] = oid
    text = os.fsdecode(read_small(found.git_dir / "HEAD", 4096) or b"").strip()
    if text.startswith("ref:"):
        name = text[len("ref:") :].strip()
        return name, refs.get(name), refs
    return None, text if OID.fullmatch(text) else None, refs


def make_git_dir(
    where: Path,
    *,
    object_format: str,
    config: Iterable[tuple[str, str]] = (),
    exclude: str = "",
    shallow: Iterable[str] = (),
) -> None:
    """An empty git directory of ours at `where` (which may exist, empty): no templates, no hooks."""
    for part in ("objects/info", "objects/pack", "refs/heads", "info"):
        (where / part).mkdir(parents=True, exist_ok=True)
    basics = [("core.repositoryformatversion", "0" if object_format == "sha1" else "1"), ("core.bare", "false")]
    if object_format != "sha1":
        basics.append(("extensions.objectformat", object_format))
    (where / "config").write_text(config_text([*basics, *config]), "utf-8", "surrogateescape")
    (where / "info" / "exclude").write_text(exclude, "utf-8", "surrogateescape")
    if boundary := list(shallow):
        (where / "shallow").write_text("".join(f"{oid}\n" for oid in boundary))
    (where / "HEAD").write_text("ref: refs/heads/main\n")


def private_repository(
    tree: Path, scratch: Path, clock: Clock, *, git_dir: Path | None = None, lenient: bool = False
) -> Repository:
    """A repository of ours that sees the tree and its objects. `lenient`: a broken `.git` gives an empty one, not
    an error."""
    found = Found(git_dir, git_dir) if git_dir is not None else find_git(tree)
    private = Path(tempfile.mkdtemp(prefix="git-", dir=str(scratch)))
    repository = Repository(private, tree, clock)
    if found is None:
        make_git_dir(private, object_format="sha1")
        return repository
    try:
        entries = read_config(found.common / "config", clock) + read_config(found.git_dir / "config.worktree", clock)
    except Failed:
        if not lenient:
            raise
        entries = []
    settings = dict(entries)
    repository.object_format = "sha256" if settings.get("extensions.objectformat") == "sha256" else "sha1"
    reftable = settings.get("extensions.refstorage") == "reftable"
    repository.head_branch, repository.head, repository.refs = read_refs(found, reftable=reftable, clock=clock)
    repository.config = allowed(entries)
    repository.shallow = [
        oid for oid in os.fsdecode(read_small(found.common / "shallow") or b"").split() if OID.fullmatch(oid)
    ]
    repository.exclude = os.fsdecode(read_small(found.common / "info" / "exclude") or b"")
    make_git_dir(
        private,
        object_format=repository.object_format,
        config=repository.config,
        exclude=repository.exclude,
        shallow=repository.shallow,
    )
    stores = "".join(f"{store}\n" for store in object_stores(found.common / "objects"))
    (private / "objects" / "info" / "alternates").write_bytes(os.fsencode(stores))
    for path in [found.git_dir / "index", *found.git_dir.glob("sharedindex.*")]:
        body = read_small(path, MAX_INDEX_BYTES)
        if body is not None:
            (private / path.name).write_bytes(body)
    sparse = read_small(found.git_dir / "info" / "sparse-checkout")
    if sparse is not None:
        (private / "info" / "sparse-checkout").write_bytes(sparse)
    if not repository.has(repository.head):
        if repository.head is not None and not lenient:
            raise Failed(
                f"HEAD names {repository.head}, which is not there; in a partial clone `git fetch --refetch` gets it"
            )
        repository.head = None
    return repository
