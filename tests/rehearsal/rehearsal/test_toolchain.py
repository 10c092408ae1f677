from __future__ import annotations

import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from infra.errors import PermanentError, UserError
from infra.folders import cache_root
from infra.toolchain.ensure import ensure, select
from infra.toolchain.table import (
    DL_K8S,
    ETCD,
    ETCD_RELEASES,
    GET_PULUMI,
    KUBERNETES,
    MODULES,
    ON_REQUEST,
    PULUMI,
    TOOLS,
    Tool,
)
from tests.root import ROOT
from tests.serving import serve
from tests.waiting import HUNG_S
from tests.waiting import until as eventually

BASE_PYTHON = Path(sys.base_prefix) / "bin" / "python3"


class Mirror:
    """A publisher on loopback; `asked` holds the paths in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        asked = self.asked

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                asked.append(self.path)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        serve(self.server)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def put(self, path: str, content: bytes) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    (tmp_path / "mirror").mkdir()
    mirror = Mirror(tmp_path / "mirror")
    for publisher in (DL_K8S, ETCD_RELEASES, GET_PULUMI):
        monkeypatch.setenv(publisher.variable, mirror.url)
    yield mirror
    mirror.server.shutdown()
    mirror.server.server_close()


def says(version: str) -> bytes:
    return f"#!/bin/sh\necho 'Version: v{version}'\n".encode()


def publish_kubectl(mirror: Mirror, content: bytes, digest: str | None = None) -> None:
    path = f"v{KUBERNETES}/bin/linux/amd64/kubectl"
    for arch in ("amd64", "arm64"):
        mirror.put(path.replace("amd64", arch), content)
        mirror.put(path.replace("amd64", arch) + ".sha256", (digest or hashlib.sha256(content).hexdigest()).encode())


def on_path(folder: Path, name: str, version: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(says(version))
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return folder / name


def leftovers(tools: Path) -> list[Path]:
    return [path for path in (tools.parent / "work").rglob("*")] + list(tools.glob(".*"))


def test_a_release_with_the_published_checksum_is_installed_and_then_cached(mirror: Mirror, tools: Path) -> None:
    publish_kubectl(mirror, says(KUBERNETES))
    (first,) = ensure(["kubectl"], tools=tools)
    assert (first.origin, first.version) == ("downloaded", KUBERNETES)
    assert os.access(tools / "kubectl", os.X_OK)
    asked = len(mirror.asked)
    (second,) = ensure(["kubectl"], tools=tools)
    assert second == first
    assert len(mirror.asked) == asked
    assert not leftovers(tools)


def test_a_release_with_another_checksum_is_refused_and_not_installed(mirror: Mirror, tools: Path) -> None:
    publish_kubectl(mirror, says(KUBERNETES), digest="0" * 64)
    with pytest.raises(PermanentError, match=r"checksum.*BIVOUAC_DOWNLOAD_KUBERNETES="):
        ensure(["kubectl"], tools=tools)
    assert not (tools / "kubectl").exists()
    assert not leftovers(tools)


def publish_archives(mirror: Mirror, files: dict[str, str], sums: str, members: dict[str, bytes]) -> None:
    """Archives by Go architecture, each beside others in one list of checksums."""
    lines = []
    for arch, file in files.items():
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            for name, content in members.items():
                member = tarfile.TarInfo(name.format(arch=arch))
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        mirror.put(file, packed.getvalue())
        name = file.rpartition("/")[2]
        lines += [f"{'1' * 64}  other-{arch}", f"{hashlib.sha256(packed.getvalue()).hexdigest()}  {name}"]
    mirror.put(sums, "\n".join(lines).encode())


def test_an_executable_is_unpacked_from_an_archive_listed_among_others(mirror: Mirror, tools: Path) -> None:
    files = {arch: f"v{ETCD}/etcd-v{ETCD}-linux-{arch}.tar.gz" for arch in ("amd64", "arm64")}
    publish_archives(mirror, files, f"v{ETCD}/SHA256SUMS", {f"etcd-v{ETCD}-linux-{{arch}}/etcd": says(ETCD)})
    assert ensure(["etcd"], tools=tools)[0].origin == "downloaded"


def test_the_language_host_comes_with_its_executor_beside_it(mirror: Mirror, tools: Path) -> None:
    files = {arch: f"pulumi-v{PULUMI}-linux-{arch}.tar.gz" for arch in ("x64", "arm64")}
    members = {f"pulumi/{name}": b"#!/bin/sh\n" for name in ("pulumi-language-python", "pulumi-language-python-exec")}
    publish_archives(mirror, files, f"pulumi-{PULUMI}-checksums.txt", members)
    (first,) = ensure(["pulumi-language-python"], tools=tools)
    assert (first.origin, first.version) == ("downloaded", PULUMI)
    assert os.access(tools / "pulumi-language-python-exec", os.X_OK)
    asked = len(mirror.asked)
    assert ensure(["pulumi-language-python"], tools=tools) == (first,) and len(mirror.asked) == asked
    (tools / "pulumi-language-python-exec").unlink()
    ensure(["pulumi-language-python"], tools=tools)
    assert os.access(tools / "pulumi-language-python-exec", os.X_OK)


def test_a_release_that_does_not_run_is_refused(mirror: Mirror, tools: Path) -> None:
    publish_kubectl(mirror, says("1.9.0"))
    with pytest.raises(PermanentError, match=r"does not run here; seen: 1\.9\.0"):
        ensure(["kubectl"], tools=tools)
    assert not (tools / "kubectl").exists()


def test_the_right_version_on_path_is_linked_and_the_wrong_one_passed_over(
    mirror: Mirror, tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_kubectl(mirror, says(KUBERNETES))
    on_path(tmp_path / "old", "kubectl", "1.20.1", monkeypatch)
    assert ensure(["kubectl"], tools=tools)[0].origin == "downloaded"
    patched = KUBERNETES.rpartition(".")[0] + ".99"
    own = on_path(tmp_path / "own", "kubectl", patched, monkeypatch)
    (found,) = ensure(["kubectl"], tools=tools)
    assert (found.origin, found.version) == ("PATH", patched)
    assert (tools / "kubectl").readlink() == own


def test_kubebuilder_assets_are_looked_at_for_kubernetes(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path(tmp_path / "assets", "kube-apiserver", KUBERNETES, monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    assert ensure(["kube-apiserver"], tools=tools)[0].origin == "PATH"


def test_without_path_release_and_go_the_error_names_all_sources_and_the_cure(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DL_K8S.variable, "")
    with pytest.raises(
        PermanentError, match=r"PATH and .*download: .*Debian: no .*build: Go is not installed; cure: .*Go 1\.26"
    ):
        ensure(["kubectl"], tools=tools)


def test_a_host_that_does_not_answer_is_asked_once_for_all_its_tools(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as closed:
        port = closed.server_port
    monkeypatch.setenv(DL_K8S.variable, f"http://127.0.0.1:{port}")
    started = time.monotonic()
    with pytest.raises(PermanentError, match="does not answer"):
        ensure(["kubectl"], tools=tools)
    assert time.monotonic() - started < 5


def test_an_unknown_tool_is_refused_with_the_list_of_those_that_exist() -> None:
    with pytest.raises(UserError, match=r"kubctl.*kubectl"):
        select(["kubctl"])


@pytest.mark.parametrize("entry", [tool for tool in (*TOOLS, *ON_REQUEST) if tool.package], ids=lambda tool: tool.name)
def test_every_tool_is_built_from_the_version_that_the_table_names(entry: Tool) -> None:
    pinned = (MODULES / entry.module / "go.mod").read_text()
    assert any(
        entry.package.startswith(words[0]) and words[1] == f"v{entry.version}"
        for words in map(str.split, pinned.splitlines())
        if len(words) > 1
    )
    assert (MODULES / entry.module / "go.sum").stat().st_size > 0


def test_the_toolchain_runs_on_a_bare_interpreter_without_third_party_packages() -> None:
    command = [str(BASE_PYTHON), "-S", "-m", "infra.toolchain", "list"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "pulumi" in answer.stdout, answer.stderr


def test_two_runs_make_a_tool_once_and_an_interrupted_one_leaves_nothing(mirror: Mirror, tools: Path) -> None:
    """A publisher that stalls holds the first run inside its lock."""
    publish_kubectl(mirror, says(KUBERNETES))
    stalled = threading.Event()

    class Stalling(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.endswith(".sha256"):
                mirror.asked.append(self.path)
                stalled.wait(120)
            super().do_GET()

        def log_message(self, *_: object) -> None:
            pass

    mirror.server.RequestHandlerClass = partial(Stalling, directory=str(mirror.folder))  # type: ignore[assignment]
    command = [str(BASE_PYTHON), "-S", "-m", "infra.toolchain", "ensure", "kubectl"]
    options: Any = {"cwd": ROOT, "env": {**os.environ, "BIVOUAC_CACHE": str(tools.parent)}, "text": True}
    # Whoever runs the tests may ignore it, which is inherited.
    options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, **options)
    eventually(lambda: bool(mirror.asked))
    second = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, **options)
    assert second.stderr and "another process is making it" in second.stderr.readline()
    first.send_signal(signal.SIGINT)
    assert first.wait(timeout=HUNG_S) == 130
    stalled.set()
    output, _ = second.communicate(timeout=HUNG_S)
    assert "downloaded" in output
    assert not leftovers(tools)


def test_etcd_is_built_from_its_pinned_module_where_go_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ETCD_RELEASES.variable, "")
    go = shutil.which("go")
    if go is None:
        pytest.skip("no Go here: this machine's tools are downloaded")
    monkeypatch.setenv("PATH", str(Path(go).parent))
    (found,) = ensure(["etcd"], tools=tmp_path / "bin")
    assert (found.origin, found.version) == ("built", ETCD)


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIVOUAC_CACHE", "/somewhere")
    assert cache_root() == Path("/somewhere")
    monkeypatch.delenv("BIVOUAC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_root() == Path("/xdg/bivouac")
