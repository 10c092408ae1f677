"""Commands and copies in a nodelet's container: its own port and the client's code at it, without a control plane."""

from __future__ import annotations

import io
import json
import os
import signal
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import pytest

from infra.cluster import transfer
from infra.cluster.execution import STDERR, STDOUT, Containers, read_refusals
from infra.cluster.ranks import Member
from infra.errors import PermanentError, TemporaryError, UserError
from infra.rehearsal.kubernetes.pki import Authority
from infra.rehearsal.nodelet.pods.confinement import confinement
from infra.rehearsal.nodelet.pods.logs import serve_kubelet
from infra.rehearsal.nodelet.pods.sandbox import Bind, Container, PodNetwork, RootSpec, python_path
from infra.rehearsal.site import network
from tests.waiting import until

pytestmark = pytest.mark.inside("net", "pid")
ADDRESS, PORT = "127.0.0.1", 10250
POD, NAME = "train-a1-gang-0-0-x", "trainer"
MEMBER = Member(attempt=1, node=0, pod=POD, container=NAME, phase="Running", ending=False)
PROGRAM = "import time; print('up', flush=True); time.sleep(10**6)"
CONTEXT = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


class AsTheApiServer(httpx2.HTTPTransport):
    """Passes an exec request on to the node as the API server does: `streamLocation` in pkg/registry/core/pod."""

    asked: ClassVar[list[str]] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(str(request.url))
        names = {"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}
        _, _, _, namespace, _, pod, _ = request.url.path.strip("/").split("/")
        asked = [(names[k], "1") if k in names else (k, v) for k, v in request.url.params.multi_items()]
        container = request.url.params["container"]
        params = httpx2.QueryParams([(k, v) for k, v in asked if k != "container"])
        request.url = request.url.copy_with(path=f"/exec/{namespace}/{pod}/{container}", query=str(params).encode())
        return super().handle_request(request)


class Nobody:
    def of(self, total: int) -> None:
        self.total = total

    def passed(self, count: int) -> None:
        self.count = getattr(self, "count", 0) + count

    def note(self, text: str) -> None:
        self.notes = [*getattr(self, "notes", []), text]


def started(work: Path, user: int) -> Container:
    own = work / f"own-{user}"
    own.mkdir()
    own.chmod(0o777)
    pod = {"securityContext": {"runAsUser": user, "runAsGroup": user}} if user else {}
    root = RootSpec(
        root=work / f"root-{user}",
        hostname="rank-0",
        argv=["python3", "-c", PROGRAM],
        env={"PATH": python_path(), "GREETING": "hello", "HOME": "/root"},
        cwd="/workspace",
        binds=[Bind(own, "/own", read_only=False)],
        confined=confinement(pod, {"name": NAME, "securityContext": CONTEXT}),
    )
    log = work / f"{user}.log"
    one = Container(root, log, PodNetwork())
    until(lambda: "up" in log.read_text(), log.read_text)
    return one


def test_a_volume_at_tmp_hides_no_interpreter_that_lies_below_it(work: Path) -> None:
    """A clone below /tmp: its packages are mounted where they are, and a pod's own /tmp is a volume."""
    packages, scratch = work / "packages", work / "scratch"
    for folder in (packages, scratch):
        folder.mkdir()
    (packages / "module.py").write_text("")
    code = "import os; os.stat('/tmp/clone/.venv/module.py'); open('/tmp/mine', 'w'); print('both', flush=True)"
    binds = [Bind(packages, "/tmp/clone/.venv"), Bind(scratch, "/tmp", read_only=False)]
    argv, log = ["python3", "-c", code], work / "below.log"
    root = RootSpec(work / "root-below", "steward", argv, {"PATH": python_path()}, binds=binds)
    assert Container(root, log, None).wait() == 0, log.read_text()
    assert log.read_text() == "both\n" and (scratch / "mine").exists()


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exec")


@pytest.fixture(scope="module")
def running(work: Path) -> Iterator[dict[str, Container]]:
    network.add_addresses("lo", ())
    made = {POD: started(work, 0), "nobody": started(work, 65532)}
    yield made
    for one in made.values():
        one.signal(signal.SIGKILL)


@pytest.fixture(scope="module")
def containers(work: Path, running: dict[str, Container]) -> Iterator[Containers]:
    authority = Authority(work / "pki", "test")

    def program(namespace: str, pod: str, container: str) -> Container | None:
        return running.get(pod) if (namespace, container) == ("campaign", NAME) else None

    serve_kubelet(ADDRESS, "node", work, authority.pem, lambda *_: None, lambda *_: False, program)
    pair = authority.client("api", "kube-apiserver")
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    tls.load_cert_chain(pair.certificate, pair.key)
    with httpx2.Client(
        base_url=f"https://{ADDRESS}:{PORT}", transport=AsTheApiServer(verify=tls), trust_env=False, timeout=30
    ) as http:
        http.event_hooks = {"response": [read_refusals]}
        yield Containers(http)


class Ended:
    def __init__(self, containers: Containers, *words: str, stdin: bytes = b"", pod: str = POD) -> None:
        streams = {STDOUT: io.BytesIO(), STDERR: io.BytesIO()}

        def take(channel: int, data: bytes) -> None:
            streams[channel].write(data)

        with containers.running(pod, NAME, words) as run:

            def feed() -> None:
                run.execution.write(stdin)
                run.execution.end_input()

            feeder = threading.Thread(target=feed)
            feeder.start()
            self.code = run.execution.run(take)
            feeder.join()
        self.out, self.err = (streams[one].getvalue() for one in (STDOUT, STDERR))


SEE = """
import json, os, socket
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "uid": os.getuid(), "gid": os.getgid(), "cwd": os.getcwd(), "host": socket.gethostname(),
    "greeting": os.environ["GREETING"], "own": os.listdir("/own"), "first": open("/proc/1/cmdline").read(),
    "bounding": int(status["CapBnd"], 16), "more": status["NoNewPrivs"].strip(),
    "nets": [os.readlink("/proc/%s/ns/net" % one) for one in ("self", 1)],
}))
"""


@pytest.mark.parametrize(("pod", "user"), [(POD, 0), ("nobody", 65532)])
def test_a_command_runs_where_the_containers_own_program_runs(containers: Containers, pod: str, user: int) -> None:
    ended = Ended(containers, "python3", "-c", SEE, pod=pod)
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert (document["uid"], document["gid"], document["cwd"], document["host"]) == (user, user, "/workspace", "rank-0")
    assert (
        document["greeting"] == "hello" and "time.sleep(10**6)" in document["first"] and len(set(document["nets"])) == 1
    )
    assert document["bounding"] == 0 and document["more"] == "1"


def test_streams_are_apart_and_the_commands_exit_code_is_ours(containers: Containers) -> None:
    ended = Ended(containers, "sh", "-c", "cat; echo wrong >&2; exit 42", stdin=b"in\x00\xff\n")
    assert (ended.out, ended.err, ended.code) == (b"in\x00\xff\n", b"wrong\n", 42)
    assert Ended(containers, "sh", "-c", "kill -9 $$").code == 137
    assert Ended(containers, "true").code == 0


def test_much_more_than_any_buffer_holds_passes_both_ways_at_once(containers: Containers) -> None:
    much = os.urandom(2**20) * 8
    assert Ended(containers, "cat", stdin=much).out == much


def test_words_stay_whole_and_those_of_the_request_do_not_hold_them(containers: Containers) -> None:
    """A cluster's audit log keeps the request."""
    words = ["a b", "", "ü\n", "$HOME", "s3cret"]
    ended = Ended(containers, "python3", "-c", "import sys, json; print(json.dumps(sys.argv[1:]))", *words)
    assert json.loads(ended.out) == words
    assert "BIVOUAC_EXEC" in AsTheApiServer.asked[-1] and "s3cret" not in "".join(AsTheApiServer.asked)


def test_a_command_that_is_not_there_is_named_as_a_shell_does(containers: Containers) -> None:
    missing, forbidden = Ended(containers, "no-such-program"), Ended(containers, "/etc/passwd")
    assert missing.code == 127 and b"no-such-program: No such file" in missing.err
    assert forbidden.code == 126 and b"/etc/passwd: Exec format error" in forbidden.err
    with (
        pytest.raises(PermanentError, match="no-python"),
        containers.started(POD, NAME, ["no-python"]) as execution,
    ):
        execution.run(lambda *_: None)


def test_a_container_that_does_not_run_is_told_from_one_that_does(containers: Containers) -> None:
    with pytest.raises(TemporaryError, match="container not found"), containers.running("gone", NAME, ["true"]):
        pass


def test_a_signal_reaches_the_command_and_its_children(containers: Containers, work: Path) -> None:
    script = "trap 'echo told; exit 7' INT; sh -c 'echo $$ > /own/child; sleep 1000'; echo on"
    out: list[bytes] = []
    with containers.running(POD, NAME, ["sh", "-c", script]) as run:
        run.execution.end_input()
        until(lambda: (work / "own-0/child").exists() and (work / "own-0/child").read_text())
        assert run.end(signal.SIGINT) >= 2
        assert run.execution.run(lambda channel, data: out.append(data)) == 7
    assert b"".join(out) == b"told\n"


def test_a_command_whose_caller_leaves_runs_on_as_in_kubernetes(containers: Containers, work: Path) -> None:
    with containers.running(
        POD, NAME, ["sh", "-c", "cat; until test -e /own/go; do sleep 0.05; done; touch /own/done"]
    ):
        pass
    (work / "own-0/go").touch()
    until((work / "own-0/done").exists)


def test_a_terminal_has_a_size_and_passes_ctrl_c_on(containers: Containers) -> None:
    script = "stty size; tty -s && echo terminal; exec sleep 1000"
    out = io.BytesIO()
    with containers.running(POD, NAME, ["sh", "-c", f"read x; {script}"], terminal=True) as run:
        run.execution.resize(os.terminal_size((101, 33)))
        run.execution.write(b"\n")

        def take(channel: int, data: bytes) -> None:
            out.write(data)
            if b"terminal" in out.getvalue() and not sent:
                sent.append(run.execution.write(b"\x03"))

        sent: list[int] = []
        assert run.execution.run(take) == 130
    assert b"33 101" in out.getvalue()


def tree(root: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(root)): (
            path.lstat().st_mode & 0o777,
            os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None,
        )
        for path in sorted(root.rglob("*"))
    }


def test_a_folder_goes_in_and_comes_out_as_it_was(containers: Containers, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep/er").mkdir(parents=True)
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "deep/er/large").write_bytes(os.urandom(3 * 2**20))
    (source / "deep/latest").symlink_to("er/large")
    os.link(source / "run.sh", source / "deep/same.sh")
    (source / "deep/closed").mkdir(mode=0o500)
    watcher = Nobody()
    done = transfer.into(containers, MEMBER, str(source), "/own/in", watcher)
    assert (done["path"], done["files"]) == ("/own/in", 3)
    watcher = Nobody()
    done = transfer.out_of(containers, MEMBER, "/own/in", str(tmp_path / "back"), watcher)
    assert tree(tmp_path / "back") == tree(source) and watcher.total == done["bytes"] <= watcher.count
    (tmp_path / "there").mkdir()
    transfer.out_of(containers, MEMBER, "/own/in/run.sh", str(tmp_path / "there"), Nobody())
    assert tree(tmp_path / "there") == {"run.sh": (0o755, b"#!/bin/sh\n")}


def test_what_cannot_be_copied_is_refused_at_either_end_and_leaves_nothing(
    containers: Containers, work: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("old")
    (work / "own-0/file").mkdir()
    for copy, source, target, word in (
        (transfer.out_of, "/no/such", tmp_path / "x", "no such file"),
        (transfer.out_of, "/etc/passwd", tmp_path / "no/such", "does not exist"),
        (transfer.out_of, "/own", tmp_path / "file", "is there"),
        (transfer.into, tmp_path / "file", "/no/such/folder", "does not exist"),
        (transfer.into, tmp_path / "file", "/own", "is there"),
    ):
        with pytest.raises(UserError, match=word):
            copy(containers, MEMBER, str(source), str(target), Nobody())
    assert tree(tmp_path) == {"file": (0o644, b"old")}
    assert not list((work / "own-0").glob(".bivouac*"))


def test_a_copy_that_is_cut_leaves_nothing_half(containers: Containers, work: Path, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(2**24))

    class Cut(Nobody):
        def passed(self, count: int) -> None:
            super().passed(count)
            if self.count > 2**22:
                raise OSError(5, "Input/output error")

    for copy, source, target in (
        (transfer.into, str(tmp_path / "large"), "/own/cut"),
        (transfer.out_of, "/own/whole", str(tmp_path / "cut")),
    ):
        if copy is transfer.out_of:
            transfer.into(containers, MEMBER, str(tmp_path / "large"), "/own/whole", Nobody())
        with pytest.raises(OSError, match="Input"):
            copy(containers, MEMBER, source, target, Cut())
    until(lambda: not list((work / "own-0").glob(".bivouac*")))
    assert not (work / "own-0/cut").exists() and tree(tmp_path).keys() == {"large"}


def test_the_end_of_a_container_ends_its_commands(containers: Containers, running: dict[str, Container]) -> None:
    with containers.running("nobody", NAME, ["sleep", "1000"]) as run:
        until(lambda: Ended(containers, "pgrep", "sleep", pod="nobody").code == 0)
        running["nobody"].signal(signal.SIGKILL)
        assert run.execution.run(lambda *_: None) == 137
