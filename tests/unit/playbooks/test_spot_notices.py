"""The node's program that reads spot notices, run against a metadata service as AWS documents it (IMDSv2)."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.root import ROOT

PROGRAM = ROOT / "playbooks/roles/health_checks/files/spot-notices"
ACTION = {"action": "terminate", "time": "2026-11-27T04:00:00Z"}


class Service:
    """Answers with a session's token only, 404 for a notice that is not there, and 401 for another token."""

    def __init__(self, life: str) -> None:
        self.leaves = {"instance-life-cycle": life}
        self.asked: list[str] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                is_right = self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
                self._answer(200 if is_right else 400, "a-token")

            def do_GET(self) -> None:
                name = self.path.removeprefix("/latest/meta-data/")
                service.asked.append(name)
                if self.headers["X-aws-ec2-metadata-token"] != "a-token":
                    return self._answer(401, "")
                self._answer(200 if name in service.leaves else 404, service.leaves.get(name, "<html>Not Found"))

            def _answer(self, code: int, text: str) -> None:
                self.send_response(code)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def start(self, folder: Path) -> subprocess.Popen[bytes]:
        address = f"http://127.0.0.1:{self.server.server_address[1]}"
        environment = {"BIVOUAC_METADATA": address, "PATH": "/usr/bin:/bin"}
        return subprocess.Popen(["bash", str(PROGRAM), str(folder)], env=environment)


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service("spot")
    yield made
    made.server.shutdown()
    made.server.server_close()


def wait_for(path: Path) -> str:
    while not path.exists():
        time.sleep(0.02)
    return path.read_text()


def test_a_notice_is_written_whole_and_one_that_is_not_there_leaves_no_file(service: Service, tmp_path: Path) -> None:
    process = service.start(tmp_path)
    try:
        while service.asked.count("spot/instance-action") < 2:
            time.sleep(0.02)
        assert not [path.name for path in tmp_path.iterdir() if not path.name.endswith(".new")]
        service.leaves["spot/instance-action"] = json.dumps(ACTION)
        assert json.loads(wait_for(tmp_path / "instance-action.json")) == ACTION
        service.leaves["events/recommendations/rebalance"] = '{"noticeTime": "2026-11-27T03:58:00Z"}'
        assert "noticeTime" in wait_for(tmp_path / "rebalance.json")
    finally:
        process.kill()
        process.wait()


def test_on_an_instance_that_is_no_spot_instance_it_ends_well(tmp_path: Path) -> None:
    service = Service("on-demand")
    assert service.start(tmp_path).wait() == 0
    assert service.asked == ["instance-life-cycle"] and not list(tmp_path.iterdir())
    service.server.shutdown()
    service.server.server_close()
