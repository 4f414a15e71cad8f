"""Every fenced block of the documentation runs, and prints what the page says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = (
    REPOSITORY / "README.md",
    *sorted(REPOSITORY.glob("packages/*/README.md")),
    *sorted(REPOSITORY.glob("docs/**/*.md")),
)


def run_page(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    script = REPOSITORY / "scripts" / "run_page.py"
    command = [sys.executable, "-W", "error", str(script), str(page)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)


@pytest.mark.slice(10)
@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(REPOSITORY)) for p in PAGES])
def test_every_block_of_the_page_runs(page: Path, tmp_path: Path) -> None:
    done = run_page(page, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def outcome(text: str, folder: Path) -> tuple[int, str]:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    done = run_page(page, folder)
    return done.returncode, done.stdout + done.stderr


RIGHT = {
    "one namespace": "```python\nx = 1\n```\ntext\n```python\nassert x == 1\n```\n",
    "files of one page": "```python\nopen_ = __import__('pathlib').Path\n"
    "open_('a').write_text('hi')\n```\n```console\n$ cat a\nhi\n```\n",
    "several commands": "```sh\n$ echo a\na\n$ echo b\n```\n",
    "what Python prints": "```python\nprint(1)\nprint(2)\n```\n```text output\n1\n...\n```\n",
    "ellipsis": "```console\n$ printf 'a\\nb\\nc\\n'\na\n...\nc\n```\n",
    "data": "```toml\nx = [\n```\n```text\n$ false\n```\n",
}
WRONG = {
    "exception": ("```python\n1 / 0\n```\n", "line 2"),
    "exit status": ("```console\n$ cat missing\n```\n", "ended with 1"),
    "output": ("```console\n$ echo a\nb\n```\n", "the page says\nb"),
    "printed": ("```python\nprint(1)\n```\n```text output\n2\n```\n", "the page says\n2"),
    "nothing printed": ("```text output\n2\n```\n", "no `python` fence comes before"),
    "not allowed": ("```console\n$ pip list\n```\n", "'pip' is not run"),
    "no command": ("```sh\necho a\n```\n", "starts with a `$ ` line"),
    "marked noexec": ("```python noexec\nx = 1\n```\n", "would not run"),
    "misspelt": ("```bash\n$ echo a\n```\n", "would not run"),
    "warning": ("```python\nimport warnings\nwarnings.warn('old')\n```\n", "UserWarning: old"),
}


@pytest.mark.parametrize("case", RIGHT)
def test_right_page_is_accepted(case: str, tmp_path: Path) -> None:
    status, printed = outcome(RIGHT[case], tmp_path)
    assert (status, printed) == (0, "")


@pytest.mark.parametrize("case", WRONG)
def test_wrong_page_is_refused_with_its_reason(case: str, tmp_path: Path) -> None:
    text, reason = WRONG[case]
    status, printed = outcome(text, tmp_path)
    assert status == 1
    assert reason in printed
