"""The command line inside the throw-away container. The host writes it; results go to stdout, a failure is one line
of JSON on stderr."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Sequence

from agent_workspace.collect import collect, review
from agent_workspace.git import OID, Clock, Failed
from agent_workspace.home import unpack_files
from agent_workspace.pack import pack
from agent_workspace.unpack import Earlier, unpack, unpack_git_dir

RUN = re.compile(r"[0-9a-f][0-9a-f-]{0,63}")


def main(argv: Sequence[str]) -> int:
    """Runs one subcommand; 0, or 1 with `{"error": ...}` on stderr."""
    os.umask(0o022)
    arguments = _parser().parse_args(argv)
    clock = Clock(time.monotonic() + arguments.time_s)
    try:
        with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
            answer = arguments.call(arguments, clock, Path(scratch))
    except (Failed, OSError, ValueError, KeyError) as failure:
        print(json.dumps({"error": str(failure) or type(failure).__name__}), file=sys.stderr)
        return 1
    if answer is not None:
        print(json.dumps(answer))
    return 0


def _pack(arguments: argparse.Namespace, clock: Clock, scratch: Path) -> None:
    pack(
        arguments.tree,
        scratch=scratch,
        clock=clock,
        out=sys.stdout.fileno(),
        committed=arguments.committed,
        with_index=arguments.index,
        hide=arguments.hide,
        exclude=arguments.exclude,
        identity=[
            (f"user.{key}", value) for key, value in (("name", arguments.name), ("email", arguments.email)) if value
        ],
    )


def _unpack(arguments: argparse.Namespace, clock: Clock, scratch: Path) -> dict[str, Any]:
    earlier = None
    if arguments.bundle is not None:
        earlier = Earlier(arguments.bundle, base=arguments.base, head=arguments.have, carried=arguments.carried)
    with arguments.stream.open("rb", buffering=0) as stream:
        return unpack(arguments.destination, run=arguments.run, source=stream.fileno(), clock=clock, earlier=earlier)


def _unpack_home(arguments: argparse.Namespace, clock: Clock, scratch: Path) -> None:
    with arguments.stream.open("rb") as stream:
        unpack_files(arguments.destination, stream)


def _unpack_git_dir(arguments: argparse.Namespace, clock: Clock, scratch: Path) -> dict[str, Any]:
    with arguments.stream.open("rb", buffering=0) as stream:
        return unpack_git_dir(
            arguments.destination, scratch=scratch, source=stream.fileno(), clock=clock, work_tree=arguments.work_tree
        )


def _collect(arguments: argparse.Namespace, clock: Clock, scratch: Path) -> None:
    collect(
        arguments.tree,
        base=arguments.base,
        have=arguments.have,
        git_dir=arguments.git_dir,
        run=arguments.run,
        hide=arguments.hide,
        protect=arguments.protect,
        max_bytes=arguments.max_bytes,
        scratch=scratch,
        clock=clock,
        out=sys.stdout.buffer,
    )


def _review(arguments: argparse.Namespace, clock: Clock, scratch: Path) -> None:
    review(
        arguments.bundle,
        base=arguments.base,
        source=arguments.source,
        protect=arguments.protect,
        with_files=arguments.files,
        scratch=scratch,
        clock=clock,
        out=sys.stdout.buffer,
    )


def _oid(text: str) -> str:
    if not OID.fullmatch(text):
        raise argparse.ArgumentTypeError("expected a commit id")
    return text


def _run(text: str) -> str:
    if not RUN.fullmatch(text):
        raise argparse.ArgumentTypeError("expected a run id")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="workspace", allow_abbrev=False)
    commands = parser.add_subparsers(required=True)

    def command(name: str, call: object, words: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=words, allow_abbrev=False)
        sub.set_defaults(call=call)
        sub.add_argument("--scratch", default="/tmp")
        sub.add_argument("--time-s", type=float, default=600.0)
        return sub

    sub = command("pack", _pack, "a project, mounted read-only, as a stream")
    sub.add_argument("tree", type=Path)
    sub.add_argument("--committed", action="store_true", help="leave uncommitted work behind")
    sub.add_argument("--index", action="store_true", help="with the index, for unpack-gitdir")
    sub.add_argument("--hide", action="append", default=[])
    sub.add_argument("--exclude", default="", help="the user's own ignore rules")
    sub.add_argument("--name")
    sub.add_argument("--email")

    sub = command("unpack", _unpack, "the stream as a clone with agent/<run> checked out")
    sub.add_argument("stream", type=Path)
    sub.add_argument("destination", type=Path)
    sub.add_argument("--run", type=_run, required=True)
    sub.add_argument("--bundle", type=Path, help="the work of an earlier run, to go on from")
    sub.add_argument("--base", type=_oid, help="where that one began")
    sub.add_argument("--have", type=_oid, help="the project's commit below it")
    sub.add_argument("--carried", action="store_true", help="it began with uncommitted work")

    sub = command("unpack-home", _unpack_home, "files that an agent needs to resume, into its HOME")
    sub.add_argument("stream", type=Path)
    sub.add_argument("destination", type=Path)

    sub = command("unpack-gitdir", _unpack_git_dir, "the stream as a private git directory")
    sub.add_argument("stream", type=Path)
    sub.add_argument("destination", type=Path)
    sub.add_argument("--work-tree")

    sub = command("collect", _collect, "the work of a workspace as a tar of summary, patch and bundle")
    sub.add_argument("tree", type=Path)
    sub.add_argument("--run", type=_run, required=True)
    sub.add_argument("--base", type=_oid)
    sub.add_argument("--have", type=_oid)
    sub.add_argument("--git-dir", type=Path)
    sub.add_argument("--hide", action="append", default=[])
    sub.add_argument("--protect", action="append", default=[])
    sub.add_argument("--max-bytes", type=int, default=256 * 1024 * 1024)

    sub = command("review", _review, "what a bundle holds, as a tar of summary, patch and files")
    sub.add_argument("bundle", type=Path)
    sub.add_argument("--base", type=_oid)
    sub.add_argument("--source", type=Path, help="the project's common git directory")
    sub.add_argument("--protect", action="append", default=[])
    sub.add_argument("--files", action="store_true")
    return parser
