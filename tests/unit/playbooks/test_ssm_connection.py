"""What Ansible's connection makes of an answer of SSM, whose commands run here in sh, as on a builder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.root import ROOT

INTERN = sys.intern

from ansible.errors import AnsibleError  # noqa: E402
from ansible.playbook.play_context import PlayContext  # noqa: E402
from ansible.plugins.loader import connection_loader  # noqa: E402

from tests.serving import serve  # noqa: E402

# Ansible puts a class of its own there, over which torch's compiler, imported later in this process, stumbles.
sys.intern = INTERN

PLUGINS = ROOT / "playbooks/plugins/connection"


class Ssm:
    """Runs a command at once and keeps so many characters of what it prints."""

    class exceptions:
        InvocationDoesNotExist = KeyError

    def __init__(self, kept_characters: int) -> None:
        self.kept_characters = kept_characters

    def send_command(self, **given: Any) -> dict[str, Any]:
        self.done = subprocess.run(["sh", "-c", *given["Parameters"]["commands"]], capture_output=True, text=True)
        return {"Command": {"CommandId": "one"}}

    def get_command_invocation(self, **given: Any) -> dict[str, Any]:
        out = self.done.stdout
        return {
            "Status": "Failed" if self.done.returncode else "Success",
            "ResponseCode": self.done.returncode,
            "StandardOutputContent": out[: self.kept_characters],
            "StandardErrorContent": self.done.stderr,
        }


def connection(kept_characters: int) -> Any:
    connection_loader.add_directory(str(PLUGINS))
    made = connection_loader.get("ssm_command", PlayContext(), "/dev/null")
    made.set_options(direct={"instance": "i-1", "region": "us-east-1", "bucket": "b", "prefix": "p/", "timeout": 60})
    made._ssm, made._connected = Ssm(kept_characters), True
    return made


def test_a_command_answers_with_its_own_code_output_and_errors_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ssm = connection(24_000)
    assert ssm.exec_command("echo said; echo trouble >&2; exit 3") == (3, b"said\n", b"trouble\n")
    assert ssm.exec_command("printf %s 'no end of line'; umask") == (0, b"no end of line0022\n", b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kept_characters", [0, 9_000])
def test_an_answer_that_was_cut_or_lost_is_refused_and_never_read(kept_characters: int) -> None:
    with pytest.raises(AnsibleError, match=f"did not come whole.*{kept_characters} characters without an end.*cure: "):
        connection(kept_characters).exec_command("head -c 9500 /dev/zero | tr '\\0' x")


@pytest.mark.parametrize("region", ["us-east-1", "us-west-2", "eu-south-2"])
def test_a_builder_fetches_and_brings_by_the_endpoint_of_its_own_region(
    monkeypatch: pytest.MonkeyPatch, region: str
) -> None:
    """The state bucket is minutes old at the first bake: the global endpoint redirects then, or refuses for ever."""
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    made = connection(24_000)
    made.set_options(direct={"instance": "i-1", "region": region, "bucket": "state", "prefix": "p/", "timeout": 60})
    made._connected = False
    made._connect()
    made._ssm = Ssm(24_000)
    for operation in ("put_object", "get_object"):
        made._on_instance("pass", operation, "k", "/a")
        assert f" https://state.s3.{region}.amazonaws.com/k?" in made._ssm.done.args[-1].replace("'", "")


@contextmanager
def bucket(refusals: list[int]) -> Iterator[tuple[str, dict[str, bytes]]]:
    """A store that first answers with `refusals`; its address and what it holds."""
    held: dict[str, bytes] = {}

    class Store(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            code = refusals.pop(0) if refusals else 200
            if code == 200 and self.command == "PUT":
                held[self.path] = body
            said = held.get(self.path, b"") if self.command == "GET" else b""
            self.send_response(code)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_PUT = answer

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    serve(server)
    try:
        yield f"http://127.0.0.1:{server.server_port}/k", held
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    def ask(operation: str, url: str, path: Path) -> None:
        made = connection(24_000)
        made._s3 = type("S3", (), {"generate_presigned_url": lambda *_, **__: url})()
        module = sys.modules[type(made).__module__]
        made._on_instance(
            {"get_object": module._FETCH, "put_object": module._SEND}[operation], operation, "k", str(path)
        )

    return ask


def test_a_builder_asks_again_where_s3_asks_it_to_slow_down(tmp_path: Path, ask: Callable[..., None]) -> None:
    sent, fetched = tmp_path / "sent", tmp_path / "fetched"
    sent.write_bytes(bytes(range(256)))
    with bucket([503, 500, 200, 503]) as (url, held):
        ask("put_object", url, sent)
        assert held == {"/k": sent.read_bytes()}
        ask("get_object", url, fetched)
    assert fetched.read_bytes() == sent.read_bytes()


def test_a_builder_does_not_insist_where_s3_refuses_it(tmp_path: Path, ask: Callable[..., None]) -> None:
    refusals = [403, 200]
    with bucket(refusals) as (url, _), pytest.raises(AnsibleError, match=r"(?s)get_object of .*HTTP Error 403"):
        ask("get_object", url, tmp_path / "fetched")
    assert refusals == [200], "asked once"
