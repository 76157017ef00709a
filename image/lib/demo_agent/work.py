"""The demo agent's task: repair a function until the project's tests pass, take notes, commit."""

from __future__ import annotations

import os
import subprocess
from typing import List, Tuple

from .output import Output

SOURCE = "slugs.py"
BROKEN = '    return title.lower().replace(" ", "-")\n'
REPAIRED = '    words = re.findall(r"[a-z0-9]+", title.lower())\n    return "-".join(words)\n'
NOTES = """# Notes

- `slugify` kept punctuation and doubled spaces; it now joins the words of letters and digits.
- The tests in test_slugs.py pass.
- The title of an article may be empty: its slug is then empty too. Somebody should decide whether that is right.
"""


def run(argv: List[str], *, timeout_s: int = 120) -> Tuple[bool, str]:
    """A command's success and what it printed."""
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout_s, check=False
    )
    return done.returncode == 0, done.stdout.decode("utf-8", "replace").strip()


def _tests() -> Tuple[bool, str]:
    return run(["/usr/bin/python3", "-B", "-m", "unittest", "-q"])


def _repair() -> Tuple[bool, str]:
    with open(SOURCE, encoding="utf-8") as handle:
        text = handle.read()
    if BROKEN not in text:
        return False, f"{SOURCE} does not look like the demo's"
    text = text.replace(BROKEN, REPAIRED)
    if "\nimport re\n" not in text:
        text = text.replace(
            "\nfrom __future__ import annotations\n", "\nfrom __future__ import annotations\n\nimport re\n", 1
        )
    with open(SOURCE, "w", encoding="utf-8") as handle:
        handle.write(text)
    return True, f"{SOURCE}: slugify rewritten"


def _write_notes() -> Tuple[bool, str]:
    with open("NOTES.md", "w", encoding="utf-8") as handle:
        handle.write(NOTES)
    return True, f"NOTES.md: {len(NOTES)} bytes"


def _commit(paths: List[str]) -> Tuple[bool, str]:
    identity = ["-c", "user.name=demo agent", "-c", "user.email=demo@agent-container.test"]
    added, output = run(["git", "add", "--", *paths])
    if not added:
        return added, output
    return run(["git", *identity, "commit", "-q", "-m", "Slugs hold letters and digits only", "--", *paths])


def do_task(output: Output) -> bool:
    """Whether the project's tests pass at the end, or there was nothing to repair."""
    changed = ["NOTES.md"]
    good = True
    if os.path.exists(SOURCE):
        output.message("I run the tests first.")
        good, _said = output.tool("shell", "python3 -m unittest", _tests)
        if not good:
            output.message("slugify keeps punctuation. I rewrite it.")
            if output.tool("edit", SOURCE, _repair)[0]:
                changed.append(SOURCE)
            good, _said = output.tool("shell", "python3 -m unittest", _tests)
    else:
        output.message(f"There is no {SOURCE} here, so there is nothing that I could repair.")
    output.tool("write", "NOTES.md", _write_notes)
    if run(["git", "rev-parse", "--git-dir"])[0]:
        output.tool("shell", "git commit", lambda: _commit(changed))
    return good
