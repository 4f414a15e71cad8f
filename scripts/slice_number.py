"""The number of the slice that the gate takes of this commit: how many commits there are.

So a commit's slice is the next one's neighbour, and all slices have their turn. A clone without its
history cannot count: there, and without git, the number comes from the commit's name, or is 0.
"""

from __future__ import annotations

import subprocess


def git(*arguments: str) -> str:
    """What git says, or nothing where it fails or is not there."""
    try:
        made = subprocess.run(("git", *arguments), capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return made.stdout.strip() if made.returncode == 0 else ""


def number() -> int:
    """The number; the same for the same commit."""
    if git("rev-parse", "--is-shallow-repository") == "false":
        return int(git("rev-list", "--count", "HEAD") or 0)
    return int(git("rev-parse", "--short=6", "HEAD")[:6] or "0", 16)


if __name__ == "__main__":
    print(number())
