"""Models and data sets by their ids of a hub: a local server gives them to the hub's own client, and a spec finds what
that client brought, and nothing before."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from infra.data.source import weight_files
from infra.errors import UserError
from infra.plan.checks import check
from infra.plan.survey import survey
from infra.spec.campaign import SpecError
from infra.spec.recipe import recipe_of
from tests.serving import serve

COMMITS = {"main": "a" * 40, "v2": "b" * 40}
CONFIG = {
    "model_type": "llama", "vocab_size": 320, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "tie_word_embeddings": False,
}  # fmt: skip
FILES = {
    "models/own/tiny": {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": b"weights" * 1000},
    "datasets/own/texts": {"data/train-0.jsonl": b'{"text": "a document of words"}\n' * 50, "README.md": b"# texts\n"},
}


class HubRequests(BaseHTTPRequestHandler):
    """The part of the hub's interface that a download asks: a repository's files at a revision, and each file."""

    def do_GET(self) -> None:
        words = self.path.partition("?")[0].strip("/").split("/")
        if words[0] == "api":
            files = FILES.get("/".join(words[1:4]))
            commit = COMMITS.get(words[5] if len(words) > 5 else "main", words[-1])
            if files is None or commit not in COMMITS.values():
                return self._answer(404, b"{}")
            siblings = [{"rfilename": name} for name in files]
            facts = {"id": "/".join(words[2:4]), "sha": commit, "siblings": siblings, "private": False, "tags": []}
            tree = [{"type": "file", "path": name, "size": len(body), "oid": "0" * 40} for name, body in files.items()]
            return self._answer(200, json.dumps(tree if "tree" in words else facts).encode())
        owner = words[:3] if words[0] == "datasets" else ["models", *words[:2]]
        _, _, name = self.path.partition("?")[0].partition("/resolve/")
        body = FILES["/".join(owner)][name.partition("/")[2]]
        etag = f'"{hashlib.sha256(body).hexdigest()}"'
        revision = name.partition("/")[0]
        return self._answer(200, body, {"ETag": etag, "X-Repo-Commit": COMMITS.get(revision, revision)})

    do_HEAD = do_GET

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        kinds = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        for name, value in {**kinds, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *rest: object) -> None:
        pass


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub-client"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), HubRequests)
    serve(server)
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def download(address: str, *words: str) -> None:
    """Run the client's own command."""
    command = [str(Path(sys.executable).with_name("hf")), "download", *words]
    environment = {**os.environ, "HF_ENDPOINT": address, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy", "HF_HUB_OFFLINE"):
        environment.pop(proxy, None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def errors(file: Any) -> list[str]:
    facts = survey(file.spec)
    return [f"{row.field}: {row.cure}" for row in check(file, facts, facts.prices.as_of)]


@pytest.mark.parametrize(
    ("suffix", "options"), [("", ()), ("@v2", ("--revision", "v2")), ("@" + "b" * 40, ("--revision", "b" * 40))]
)
def test_a_model_is_found_by_its_id_once_the_client_has_brought_it(
    suffix: str, options: tuple[str, ...], address: str, spec_file: Any
) -> None:
    place = f"hf:own/tiny{suffix}"
    hint = " ".join(["`hf download own/tiny", *options]) + "` on this machine first"
    with pytest.raises(SpecError, match="hf download own/tiny"):
        spec_file({"training.model": {"name": place}})
    with pytest.raises(UserError) as refusal:
        weight_files(place)
    assert refusal.value.cure == hint
    warm = {"training.model": {"name": "debug"}, "training.init_from": place}
    assert f"training.init_from: {hint}" in errors(spec_file(warm))
    download(address, "own/tiny", *options)
    spec = spec_file({"training.model": {"name": place}, "training.init_from": place}).spec
    assert spec.training.model.vocabulary == 320 and spec.training.model.layers == 2
    assert place in survey(spec).folders
    rows = {file.name: file.sha256 for file in weight_files(place)}
    assert rows == {name: hashlib.sha256(body).hexdigest() for name, body in FILES["models/own/tiny"].items()}


def test_a_data_set_is_a_source_by_its_id_and_one_that_is_not_whole_is_none(
    address: str, spec_file: Any, tmp_path: Path
) -> None:
    changes = {"data.source": "hf:datasets/own/texts", "data.pattern": "data/*.jsonl", "data.format": "jsonl"}
    file = spec_file(changes)
    hint = "data.source: `hf download own/texts --repo-type dataset` on this machine first"
    assert hint in errors(file)
    download(address, "own/texts", "--repo-type", "dataset")
    assert hint not in errors(file)
    folder = Path(recipe_of(file.spec).sources[0].location)
    assert (folder / "data/train-0.jsonl").read_bytes() == FILES["datasets/own/texts"]["data/train-0.jsonl"]
    (blob,) = tmp_path.glob("hub-client/hub/datasets--own--texts/blobs")
    (blob / "ab.incomplete").write_bytes(b"half")
    assert hint in errors(file)
