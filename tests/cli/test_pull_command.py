"""``ptir pull``: what is fetched, which choices there are, and what each refusal means."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import huggingface_hub
import pytest
from huggingface_hub import hf_api
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

from ptir.cli import pull
from running import Command, command

__all__ = ["command"]

WEIGHTS = "model.safetensors"
GIB = 1 << 30


class Hub(BaseHTTPRequestHandler):
    """Answers what a repository holds, or with the status and the code of an error."""

    files: ClassVar[dict[str, int]] = {}
    error: ClassVar[tuple[int, str] | None] = None
    body: ClassVar[bytes | None] = None
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        type(self).asked.append(self.path)
        status, code = self.error or (200, "")
        siblings = [{"rfilename": name, "size": size} for name, size in self.files.items()]
        told = json.dumps({"id": "o/n", "siblings": siblings}).encode()
        body = told if self.body is None else self.body
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hub]]:
    """The hub, on this machine, and an empty cache; nothing is downloaded."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    kind = type("Answers", (Hub,), {"files": {"config.json": 9, WEIGHTS: 9}, "asked": []})
    served = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=served.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setattr(hf_api.api, "endpoint", f"http://127.0.0.1:{served.server_port}")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", refused)
    yield kind
    served.shutdown()
    served.server_close()


def refused(*_: object, **__: object) -> str:
    raise AssertionError("something was downloaded")


class Downloads(list[dict[str, Any]]):
    """What was asked for; the folder is the same for all."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __call__(self, hub_id: str, **options: Any) -> str:
        self.append({"hub_id": hub_id, **options})
        return str(self.folder)


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Downloads:
    made = Downloads(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", made)
    return made


def test_pull_prints_where_the_model_is(
    command: Command, downloads: Downloads, server: type[Hub]
) -> None:
    where = f"{downloads.folder}\n"
    assert command("pull", "owner/name", "--revision", "v1").out == where
    (asked,) = downloads
    assert (asked["hub_id"], asked["revision"]) == ("owner/name", "v1")
    assert not any(name.endswith((".bin", ".pt", ".pth")) for name in asked["allow_patterns"])
    assert server.asked == ["/api/models/owner/name/revision/v1?blobs=true"]
    expected = {"model": "owner/name", "path": str(downloads.folder)}
    assert command("pull", "owner/name", "--json").value == expected


def test_pull_of_a_pattern_fetches_that_file_alone(
    command: Command, downloads: Downloads, server: type[Hub]
) -> None:
    parts = [f"q/[n]-Q4_0-0000{n}-of-00002.gguf" for n in (1, 2)]
    server.files = dict.fromkeys(("n-Q8_0.gguf", *parts, "config.json"), 9)
    found = command("pull", "o/n:q4_0", "--revision", "v1")
    assert found.out == f"{downloads.folder}/{parts[0]}\n"
    exact = [f"q/[[]n]-Q4_0-0000{n}-of-00002.gguf" for n in (1, 2)]
    (asked,) = downloads
    assert (asked["hub_id"], asked["allow_patterns"], asked["revision"]) == ("o/n", exact, "v1")
    refused = command("pull", "o/n:Q5_0")
    assert (refused.code, len(downloads)) == (1, 1)
    assert "no GGUF file is called or ends in 'Q5_0'; there are o/n:Q8_0, o/n:Q4_0" in refused.err


def test_the_address_of_a_file_is_that_file_of_its_revision(
    command: Command, downloads: Downloads, server: type[Hub]
) -> None:
    server.files = {"n-Q8_0.gguf": 9, "n-Q4_K_M.gguf": 9}
    for page in ("blob/main/n-Q8_0.gguf", "resolve/v2/n-Q8_0.gguf?download=true"):
        found = command("pull", f"https://huggingface.co/o/n/{page}")
        assert found.out == f"{downloads.folder}/n-Q8_0.gguf\n"
    assert [one["revision"] for one in downloads] == [None, "v2"]


def test_pull_of_a_repository_of_files_says_which_there_are(
    command: Command, server: type[Hub]
) -> None:
    parts = dict.fromkeys((f"q/n-Q8_0-0000{n}-of-00002.gguf" for n in (1, 2)), 2 * 10**9)
    server.files = {**parts, "n-Q4_K_M.gguf": 10**9, "mmproj-n.gguf": 5, "config.json": 5}
    done = command("pull", "hf.co/o/n")
    said = (
        "o/n has GGUF files: Q4_K_M (1.0 GB), Q8_0 (4.0 GB); fetch one of them with"
        " `ptir pull o/n:Q4_K_M`"
    )
    assert (done.code, done.out, done.err) == (1, "", f"error [PTIR-301]: {said}\n")


def test_pull_of_a_repository_of_one_file_fetches_that(
    command: Command, downloads: Downloads, server: type[Hub]
) -> None:
    server.files = {"n-Q4_K_M.gguf": 9, "mmproj-n.gguf": 9, "config.json": 9, "README.md": 9}
    assert command("pull", "o/n").out == f"{downloads.folder}/n-Q4_K_M.gguf\n"
    assert downloads[0]["allow_patterns"] == ["n-Q4_K_M.gguf"]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["mmproj-n.gguf", "README.md"], "o/n has neither config.json with .safetensors files nor"),
        (["config.json", "README.md"], "o/n has neither config.json with .safetensors files nor"),
        (["config.json", "pytorch_model.bin"], "as pickles alone (pytorch_model.bin), which can"),
    ],
)
def test_a_repository_without_a_model_is_refused(
    command: Command, server: type[Hub], files: list[str], said: str
) -> None:
    server.files = dict.fromkeys(files, 9)
    done = command("pull", "o/n")
    assert done.code == 1 and said in done.err


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (401, "RepoNotFound", "o/n: no such repository, or a private one; check the name, or log"),
        (404, "RepoNotFound", "o/n: no such repository, or a private one; check the name, or log"),
        (403, "GatedRepo", "o/n: is gated: accept its terms at https://huggingface.co/o/n and log"),
        (404, "RevisionNotFound", "o/n: has no revision 'v9'; give a branch, a tag or a commit of"),
        (500, "", "o/n: the hub answered: Server error '500 Internal Server Error'"),
        (429, "", "o/n: the hub answered: "),
    ],
)
def test_what_the_hub_answers_is_an_error_that_says_what_to_do(
    command: Command, server: type[Hub], status: int, code: str, said: str
) -> None:
    server.error = status, code
    done = command("pull", "o/n", "--revision", "v9")
    assert (done.code, done.out, len(server.asked)) == (1, "", 1)
    assert said in done.err and "error [PTIR-301]: " in done.err


def test_an_answer_of_somebody_else_is_an_error(command: Command, server: type[Hub]) -> None:
    server.body = b"<html>log in to this network"
    done = command("pull", "o/n")
    assert done.code == 1 and "o/n could not be fetched: " in done.err
    assert "check the network" in done.err


def test_a_refusal_while_files_are_fetched_is_told_too(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: object, **__: object) -> str:
        raise LocalEntryNotFoundError("no route\nmore")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", cut)
    done = command("pull", "o/n")
    said = "o/n could not be fetched: no route; check the network (behind a proxy set"
    assert done.code == 1 and said in done.err


# --- without a network ---


NO_ANSWER = next(one for one in HfHubHTTPError.__bases__ if one.__module__ != "builtins")
"""What errors of the library beneath have in common."""


@pytest.mark.parametrize("spec", ["owner/name", "owner/name:Q4_0", "hf.co/owner/name"])
def test_without_a_network_the_hub_is_asked_once(
    spec: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    opened = hf_api.get_session

    def counted() -> Any:
        asked.append("")
        return opened()

    monkeypatch.setattr(hf_api, "get_session", counted)
    monkeypatch.setattr(hf_api.api, "endpoint", "http://127.0.0.1:1")
    done = command("pull", spec)
    assert (done.code, done.out, len(asked)) == (1, "", 1)
    assert done.err.startswith("error [PTIR-301]: owner/name could not be fetched: ")
    assert "check the network (behind a proxy" in done.err and len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OfflineModeIsEnabled("off\nmore"), "o/n: is not on this machine, and HF_HUB_OFFLINE is"),
        (NO_ANSWER("no route\nmore"), "o/n could not be fetched: no route; check the network"),
    ],
)
def test_what_stands_in_the_way_is_told(
    error: Exception, said: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unanswered(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub, "model_info", unanswered)
    done = command("pull", "o/n")
    assert done.code == 1 and said in done.err and len(done.err.splitlines()) == 1


def test_without_a_network_what_was_fetched_earlier_is_found(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hf_api.api, "endpoint", "http://127.0.0.1:1")
    folder = tmp_path / "hub/models--o--n/snapshots/r1"
    folder.mkdir(parents=True)
    (folder / "n-Q4_0.gguf").touch()
    for spec in ("o/n", "o/n:q4_0"):
        done = command("pull", spec)
        assert (done.code, done.out) == (0, f"{folder}/n-Q4_0.gguf\n")
        assert "not fetched again (" in done.err
    for other in (("o/n:Q8_0",), ("o/n", "--revision", "v1")):
        done = command("pull", *other)
        assert done.code == 1 and "o/n could not be fetched" in done.err


def test_the_hub_may_take_seconds_and_not_minutes() -> None:
    assert pull.PATIENCE <= 15
