"""A workload's git reference becomes one commit, which is fetched with its submodules and without a word of a login."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from pydantic import ValidationError
from rich.console import Console
from typer.testing import CliRunner

from infra.campaign import provision
from infra.cli.main import app
from infra.cli.prepare.checked import checked, with_answers
from infra.data.source import pack
from infra.errors import UserError
from infra.plan import git_source
from infra.session.context import Context
from infra.spec.workload.git_reference import GitSource
from infra.spec.workload.workload import Workload
from tests.root import ROOT

SPEC = yaml.safe_load((ROOT / "trainer/examples/ddp/rehearsal.yaml").read_text())


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIVOUAC_CACHE", str(tmp_path / "cache"))


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always"]
    return subprocess.run(["git", "-C", folder, *who, *words], check=True, capture_output=True, text=True).stdout


def commit(folder: Path, **files: str) -> str:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    git(folder, "add", "-A"), git(folder, "commit", "-qm", "change")
    return git(folder, "rev-parse", "HEAD").strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits on `main`, the first with the annotated tag `v1` and in the branch `old`."""
    folder = tmp_path / "code"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, train="print(1)\n")
    git(folder, "tag", "-a", "v1", "-m", "first"), git(folder, "branch", "old")
    commit(folder, train="print(2)\n", more="")
    return folder


def source(address: str | Path, ref: str) -> GitSource:
    return GitSource(git=address if isinstance(address, str) else f"file://{address}", ref=ref)


def refusal(address: str | Path, ref: str) -> str:
    with pytest.raises(UserError) as refused:
        git_source.fetch(source(address, ref))
    return str(refused.value)


class Smart(BaseHTTPRequestHandler):
    """Git's own server as a CGI program: https://git-scm.com/docs/git-http-backend."""

    root: Path

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        environment = os.environ | {
            "GIT_PROJECT_ROOT": str(self.root), "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path, "QUERY_STRING": query,
            "REQUEST_METHOD": self.command, "CONTENT_TYPE": self.headers.get("Content-Type") or "",
            "CONTENT_LENGTH": str(len(body)), "GIT_PROTOCOL": self.headers.get("Git-Protocol") or "",
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding") or "",
        }  # fmt: skip
        done = subprocess.run(["git", "http-backend"], input=body, env=environment, capture_output=True, check=True)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        rows = [row.partition(": ")[::2] for row in head.decode().splitlines()]
        self.send_response(next((int(value.split()[0]) for name, value in rows if name == "Status"), 200))
        for name, value in rows:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, *words: Any) -> None:
        pass


class Dumb(SimpleHTTPRequestHandler):
    """Files, as any web server has them."""

    def log_message(self, *words: Any) -> None:
        pass


@contextmanager
def served(root: Path, kind: str) -> Iterator[str]:
    smart = type("Rooted", (Smart,), {"root": root})
    server = ThreadingHTTPServer(("127.0.0.1", 0), smart if kind == "smart" else partial(Dumb, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown(), thread.join(), server.server_close()


def test_a_tag_a_branch_and_a_commit_become_the_commit_whose_files_are_fetched(repository: Path) -> None:
    first, second = git(repository, "rev-parse", "v1^{commit}", "main").split()
    for ref, wanted in (("v1", first), ("refs/tags/v1", first), ("old", first), ("main", second), (first, first)):
        known = source(repository, ref)
        assert git_source.fetch(known) == wanted == git_source.known_commit(known)
        text = (git_source.checkout(known, wanted) / "train.py").read_text()
        assert text == ("print(1)\n" if wanted == first else "print(2)\n")


@pytest.mark.parametrize("kind", ["smart", "dumb"])
def test_a_web_server_gives_a_commit_that_is_no_newest_one(repository: Path, tmp_path: Path, kind: str) -> None:
    first = git(repository, "rev-parse", "v1^{commit}").strip()
    git(repository, "branch", "-D", "old"), git(repository, "tag", "-d", "v1")
    git(repository, "update-server-info")
    with served(tmp_path, kind) as address:
        known = source(f"{address}/code/.git", first)
        assert git_source.fetch(known) == first
        assert (git_source.checkout(known, first) / "train.py").read_text() == "print(1)\n"
        assert "no such tag or branch" in refusal(f"{address}/code/.git", "v9")
        assert "git does not get it" in refusal(f"{address}/elsewhere/.git", "main")


def test_submodules_come_along(repository: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q", "-b", "main"), commit(library, inner="x = 1\n")
    git(repository, "submodule", "add", "-q", "../library", "deep/library")
    second = commit(repository)
    place = git_source.checkout(source(repository, "main"), git_source.fetch(source(repository, "main")))
    assert (place / "deep/library/inner.py").read_text() == "x = 1\n"
    workload = git_source.local(job(source(repository, "main")))
    assert isinstance(workload, Workload) and pack(workload).commit == second


def job(code: GitSource) -> Workload:
    raw = {"source": code.model_dump(), "script": "train.py", "estimates": {"steps": 10, "step_seconds": 1}}
    return Workload.model_validate(raw)


def test_a_reference_packs_to_the_bytes_of_a_clone_at_that_commit(repository: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "clone", "-q", "-b", "v1", repository, tmp_path / "clone"], check=True, capture_output=True)
    assert git_source.local(job(source(repository, "v1"))).is_built_in, "nothing is fetched by asking"
    git_source.fetch(source(repository, "v1"))
    workload = git_source.local(job(source(repository, "v1")))
    assert isinstance(workload, Workload)
    assert pack(workload).sha256 == pack(workload.model_copy(update={"source": str(tmp_path / "clone")})).sha256


def test_a_tag_goes_before_a_branch_of_its_name_as_in_git_and_each_has_a_whole_name(repository: Path) -> None:
    first, second = git(repository, "rev-parse", "v1^{commit}", "main").split()
    git(repository, "tag", "old", "main")
    assert git_source.fetch(source(repository, "old")) == second
    assert git_source.fetch(source(repository, "refs/heads/old")) == first


def test_what_is_not_there_is_refused_in_words_that_name_what_is(repository: Path, tmp_path: Path) -> None:
    assert (
        "no such tag or branch" in (words := refusal(repository, "mian")) and f"ls-remote file://{repository}" in words
    )
    assert "git does not get it" in refusal(tmp_path / "nowhere", "main")
    assert "does not get it" in refusal(repository, "a" * 40)
    tag = git(repository, "rev-parse", "v1").strip()
    assert f"write ref: {git(repository, 'rev-parse', 'v1^{commit}').strip()}" in refusal(repository, tag)


def test_no_login_reaches_the_spec_or_a_message(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("https://token@example.org/x", "https://a:b@example.org/x", "ssh://a:b@example.org/x"):
        with pytest.raises(ValidationError, match="has a login"):
            source(address, "main")
    assert source("ssh://git@example.org/x", "main").git and source("git@example.org:x/y.git", "main").git
    # A person's git may put a login into addresses by itself, and then writes it into its messages.
    for name, value in {
        "COUNT": "1", "KEY_0": "url.http://me:hunter22@127.0.0.1:9/.insteadOf", "VALUE_0": "http://127.0.0.1:9/",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    words = refusal("http://127.0.0.1:9/code", "main")
    assert "does not get it" in words and "hunter22" not in words


def test_the_commit_is_recorded_once_and_a_relaunch_looks_again(repository: Path) -> None:
    record: dict[str, Any] = {}
    store = SimpleNamespace(get_json=record.get, put_json=record.__setitem__)
    spec = SimpleNamespace(target="aws")
    progress = SimpleNamespace(step=lambda text: None, note=lambda text: None)
    context = cast(Context, SimpleNamespace(store=store, spec=spec, progress=progress))
    workload = job(source(repository, "main"))
    first = git(repository, "rev-parse", "main").strip()
    package, told = provision.packed_source(context, workload)
    assert told.source_commit == package.commit == first == record[provision.SOURCE_COMMIT]["commit"]
    second = commit(repository, train="print(3)\n")
    assert provision.packed_source(context, workload)[0].digest == package.digest, "a driver that goes on"
    newer, told = provision.packed_source(context, workload, relaunches=True)
    assert told.source_commit == second and newer.digest != package.digest
    assert provision.packed_source(context, workload)[0].digest == newer.digest


def check(tmp_path: Path, code: Any, **more: Any) -> tuple[int, str]:
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(SPEC | {"workload": SPEC["workload"] | {"source": code} | more}))
    result = CliRunner().invoke(app, ["check", str(path)], env={"COLUMNS": "300"})
    return result.exit_code, result.output


def test_check_looks_into_a_fetched_commit_and_asks_no_network_before(repository: Path, tmp_path: Path) -> None:
    code = {"git": f"file://{repository}", "ref": "main"}
    judged = {"script": "absent.py", "evaluate": {"command": ["python3", "other.py"]}}
    assert check(tmp_path, code, **judged)[0] == 0, "what is not fetched is not judged"
    git_source.fetch(GitSource.model_validate(code))
    status, words = check(tmp_path, code, **judged)
    assert status == 64 and "absent.py" in words and "other.py" in words
    assert check(tmp_path, code, script="train.py")[0] == 0


def test_a_branch_that_was_mended_is_judged_as_it_is_now(repository: Path, tmp_path: Path) -> None:
    """A run fetches before it judges: what this machine has fetched before may be broken."""
    path = tmp_path / "spec.yaml"
    workload = SPEC["workload"] | {"source": {"git": f"file://{repository}", "ref": "main"}, "script": "mended.py"}
    path.write_text(yaml.safe_dump(SPEC | {"workload": workload}))
    git_source.fetch(source(repository, "main"))
    assert [finding.rule for finding in checked(path).findings if "mended.py" in finding.seen]
    commit(repository, mended="print(3)\n")
    said = list[str]()
    findings = checked(path, fetches=said.append).findings
    assert not [finding for finding in findings if "mended.py" in finding.seen] and "source: " in said[0]
    repository.rename(repository.with_name("away"))
    assert checked(path, fetches=said.append).findings == findings and "fetched last" in said[-1]
    path.write_text(yaml.safe_dump(SPEC | {"workload": workload | {"source": {"git": "file:///nowhere", "ref": "x"}}}))
    assert not [finding for finding in checked(path, fetches=said.append).findings if "mended.py" in finding.seen]


def test_a_faster_driver_keeps_its_folder(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = source(repository, "main")
    digest = git_source.find_commit(reference)
    check_out = git_source._check_out

    def late(*arguments: Any) -> None:
        check_out(*arguments)
        monkeypatch.setattr(git_source, "_check_out", check_out)
        (git_source.checkout(reference, digest) / "mine").touch()

    monkeypatch.setattr(git_source, "_check_out", late)
    assert (git_source.checkout(reference, digest) / "mine").exists()


@pytest.mark.parametrize("address", ["https://me:ghp_s3cret@example.org/x", "HTTPS://me:ghp_s3cret@example.org/x"])
def test_a_refused_login_is_not_printed(address: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    workload = SPEC["workload"] | {"source": {"git": address, "ref": "main"}}
    path.write_text(yaml.safe_dump(SPEC | {"workload": workload}))
    findings = checked(path).findings
    assert [finding for finding in findings if "login" in finding.message] and "s3cret" not in str(findings)


def test_a_reference_that_is_none_is_refused_at_its_field(tmp_path: Path) -> None:
    for code, words in (
        ({"git": "https://example.org/x"}, "workload.source.ref"),
        ({"git": "https://me:pw@example.org/x", "ref": "v1"}, "workload.source.git"),
        ({"git": "-u/x", "ref": "v1"}, "workload.source.git"),
        ({"git": "https://example.org/x", "ref": "--upload-pack=x"}, "workload.source.ref"),
        ({"git": "https://example.org/x", "rev": "v1", "ref": "v1"}, "workload.source.rev"),
        ({"git": "https://example.org/x", "ref": "main~2"}, "workload.source.ref"),
        ([1], "workload.source"),
    ):
        status, output = check(tmp_path, code)
        assert status == 64 and words in output, output


@pytest.mark.parametrize("begun", [False, True])
def test_on_aws_the_source_is_judged_before_anything_is_made_and_never_once_it_began(
    begun: bool, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, answer in (
        ("infra.aws.account.Account", lambda region: SimpleNamespace(refuse_foreign=lambda account: None)),
        ("infra.aws.namesakes.refuse_namesake", lambda account, campaign: None),
        ("infra.session.session.has_begun", lambda account, spec: begun),
        ("infra.aws.asked.ask_aws", lambda account, spec, facts, say: facts),
    ):
        monkeypatch.setattr(name, answer)
    path, code = tmp_path / "spec.yaml", {"git": f"file://{repository}", "ref": "main"}
    work = SPEC["workload"] | {"source": code, "script": "absent.py"}
    path.write_text(yaml.safe_dump(SPEC | {"target": "aws", "rehearsal": None, "workload": work}))
    before = checked(path)
    after = with_answers(before, Console(quiet=True))
    assert [finding.seen for finding in before.findings if "absent" in finding.seen] == []
    fields = {finding.field for finding in after.findings if "absent" in finding.seen}
    assert fields == (set() if begun else {"workload.script"})
    assert (git_source.known_commit(GitSource.model_validate(code)) is None) == begun
