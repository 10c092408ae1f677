"""What is packed of a source: what git knows of it and of all repositories in it; what git does not read is refused."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from infra.cli.main import app
from infra.plan import source_files as module
from infra.plan.source_files import SourceFiles, source_files
from tests.root import ROOT

SPEC = yaml.safe_load((ROOT / "trainer/examples/ddp/rehearsal.yaml").read_text())


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", "-C", folder, *who, *words], check=True, capture_output=True)


def written(folder: Path, **content: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in content.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def repository(folder: Path, **content: str) -> Path:
    """A repository with one commit, which ignores `secret.env` and `data/`."""
    written(folder, **{"__gitignore": "secret.env\ndata/\n", **content})
    git(folder, "init", "-q"), git(folder, "add", "-A"), git(folder, "commit", "-qm", "one")
    return folder


def refused(found: SourceFiles) -> str:
    return " | ".join(f"{one.what}; {one.seen}; {one.cure}" for one in found.facts.refused)


def test_submodules_and_clones_in_clones_are_packed_without_what_each_ignores(tmp_path: Path) -> None:
    deep = repository(tmp_path / "deep", deep__py="")
    outer = repository(tmp_path / "outer", lib__py="")
    git(outer, "submodule", "add", "-q", str(deep), "inner"), git(outer, "commit", "-qam", "two")
    job = repository(tmp_path / "job", train__py="")
    git(job, "submodule", "add", "-q", str(outer), "lib"), git(job, "submodule", "update", "--init", "--recursive")
    clone = repository(job / "clone", model__py="")
    written(clone, secret__env="TOKEN=1", new__py="")
    written(repository(clone / "third", more__py=""), secret__env="TOKEN=2")
    written(job / "lib/inner", secret__env="TOKEN=3", new__py="")
    found = source_files(job, None)
    assert not found.facts.refused and set(found.names) == {
        ".gitignore", ".gitmodules", "train.py", "lib/.gitignore", "lib/.gitmodules", "lib/lib.py",
        "lib/inner/.gitignore", "lib/inner/deep.py", "lib/inner/new.py", "clone/.gitignore", "clone/model.py",
        "clone/new.py", "clone/third/.gitignore", "clone/third/more.py",
    }  # fmt: skip
    git(job, "add", "clone")  # a link to a commit, of which .gitmodules knows nothing
    assert source_files(job, None).names == found.names


def test_a_submodule_that_is_not_there_is_refused_with_the_command_that_brings_it(tmp_path: Path) -> None:
    lib, job = repository(tmp_path / "lib", lib__py=""), repository(tmp_path / "job", train__py="")
    git(job, "submodule", "add", "-q", str(lib), "lib"), git(job, "commit", "-qam", "two")
    subprocess.run(["git", "clone", "-q", job, tmp_path / "copy"], check=True)
    why = refused(source_files(tmp_path / "copy", None))
    assert "is not initialised; lib; git submodule update --init --recursive" in why
    (tmp_path / "copy/lib").rmdir()
    assert "is not initialised; lib;" in refused(source_files(tmp_path / "copy", None)), "a removed folder as well"


def test_repositories_in_a_plain_folder_are_read_by_git(tmp_path: Path) -> None:
    job = written(tmp_path / "job", train__py="")
    written(repository(job / "deep/clone", model__py=""), secret__env="TOKEN=1")
    assert source_files(job, None).names == ("deep/clone/.gitignore", "deep/clone/model.py", "train.py")


def _another_owner(job: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")


def _no_git(job: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("PATH", str(job))


def _broken_index(job: Path, patch: pytest.MonkeyPatch) -> None:
    (job / ".git/index").write_bytes(b"DIRC nonsense")


def _broken_head(job: Path, patch: pytest.MonkeyPatch) -> None:
    (job / ".git/HEAD").write_text("nonsense")


def _gone_worktree(job: Path, patch: pytest.MonkeyPatch) -> None:
    (job / ".git").rename(job.parent / "elsewhere")
    (job / ".git").write_text(f"gitdir: {job.parent}/nowhere\n")


DECLINED = [
    (_another_owner, "dubious ownership", "git config --global --add safe.directory"),
    (_no_git, "git cannot be started", "install git"),
    (_broken_index, "index file", "mend the repository"),
    (_broken_head, "not a git repository", "mend the repository"),
    (_gone_worktree, "not a git repository", "mend the repository"),
]


@pytest.mark.parametrize("below", [".", "deep"])
@pytest.mark.parametrize(("break_it", "words", "cure"), DECLINED, ids=lambda one: getattr(one, "__name__", ""))
def test_a_checkout_that_git_does_not_read_is_refused_in_its_words_and_not_packed(
    break_it: Any, words: str, cure: str, below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = repository(tmp_path / "job", train__py="")
    written(job, secret__env="TOKEN=1"), written(job / "deep", more__py="", secret__env="TOKEN=2")
    break_it(job, monkeypatch)
    found = source_files(job / below, None)
    assert words in refused(found) and cure in refused(found) and not any("secret" in name for name in found.names)


@pytest.mark.parametrize("tracked", [True, False])
def test_a_clone_that_git_does_not_read_is_not_taken_for_a_folder(tracked: bool, tmp_path: Path) -> None:
    job = repository(tmp_path / "job", train__py="")
    (repository(job / "clone", model__py="") / ".git/HEAD").write_text("nonsense")
    written(job / "clone", __git_info="", noise__txt="")
    if tracked:
        git(job, "add", "clone/model.py")
    assert "not a git repository" in refused(source_files(job, None))


def test_the_variables_of_a_hook_do_not_show_another_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, other = repository(tmp_path / "job", train__py=""), repository(tmp_path / "other", other__py="")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git/index"))
    found = source_files(job, None)
    assert found.names == (".gitignore", "train.py") and not found.facts.refused and len(found.commit) == 40


def test_what_is_no_file_any_more_is_neither_read_nor_followed(tmp_path: Path) -> None:
    job = repository(tmp_path / "job", train__py="", pipe="", turned="")
    written(job / "folder", inside__py=""), git(job, "add", "-A")
    (job / "pipe").unlink(), os.mkfifo(job / "pipe")
    (job / "turned").unlink(), written(job / "turned", now__py="")
    (job / "folder").rename(tmp_path / "away"), (job / "folder").symlink_to(tmp_path / "away")
    found = source_files(job, None)
    assert found.names == (".gitignore", "folder", "train.py", "turned/now.py")
    assert "is neither a file nor a link, and no archive holds it; pipe" in refused(found)
    assert "leads out of the source, so it shows nothing in the pod; folder -> " in refused(found)
    plain = written(tmp_path / "plain", train__py="")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(plain / "s"))
    assert "neither a file nor a link, and no archive holds it; s" in refused(source_files(plain, None))


def test_links_that_lead_out_are_refused_and_those_to_the_pods_own_folders_are_not(tmp_path: Path) -> None:
    job = written(tmp_path / "job", train__py="")
    (tmp_path / "outside").mkdir()
    links = {
        "out": "../outside", "deep/out": "../../outside/x", "whole": str(job / "train.py"), "home": str(tmp_path),
        "corpus": "/mounts/corpus", "tokens": "/data", "image": "/opt/of-the-image", "deep/in": "../train.py",
        "later": "not-yet", "deep/self": ".", "skipped": ".venv/x",
    }  # fmt: skip
    written(job / ".venv", x="")
    for name, target in links.items():
        (job / name).parent.mkdir(exist_ok=True)
        (job / name).symlink_to(target)
    found = source_files(job, None)
    (leading,) = found.facts.refused
    assert leading.seen.endswith(" and 1 more") and all(word in leading.seen for word in ("deep/out", "home", "out ->"))
    assert [one.seen for one in found.facts.doubtful] == ["image -> /opt/of-the-image", "skipped -> .venv/x"]


def test_names_are_bytes(tmp_path: Path) -> None:
    job = repository(tmp_path / "job", train__py="")
    names = (b"caf\xe9.txt", b"new\nline", b"back\\slash", "\u65e5".encode() * 80)
    for name in names:
        Path(os.fsdecode(os.path.join(os.fsencode(job), name))).write_text("x")
    git(job, "add", "-A")
    assert set(map(os.fsencode, source_files(job, None).names)) == {*names, b".gitignore", b"train.py"}
    written(tmp_path / "outer", __gitignore="job\n")


def test_a_source_that_an_outer_repository_ignores_is_not_packed_as_empty(tmp_path: Path) -> None:
    outer = repository(tmp_path / "outer", readme="")
    job = written(outer / "data", train__py="")
    assert "has no file" in refused(source_files(job, None)) and str(outer) in refused(source_files(job, None))


def test_what_git_ignores_is_weighed_the_largest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = repository(tmp_path / "job", train__py="")
    written(job / "data/deep", tokens__bin="x" * 5000), written(job, secret__env="x" * 20)
    written(repository(job / "clone", model__py="") / "data", more="x" * 900)
    written(job / "__pycache__", train__pyc="x" * 9000)
    (job / ".gitignore").write_text("secret.env\ndata/\n__pycache__/\n")
    left = [(one.path, one.size_bytes, one.whole) for one in source_files(job, None).facts.left_out]
    assert left == [("data", 5000, True), ("clone/data", 900, True), ("secret.env", 20, True)]
    monkeypatch.setattr(module, "_WEIGH_S", -1.0)
    assert not any(one.whole for one in source_files(job, None).facts.left_out)


def findings(job: Path, tmp_path: Path, **changes: Any) -> dict[str, str]:
    spec = {**SPEC, "workload": {**SPEC["workload"], "source": str(job), "args": [], **changes}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    done = CliRunner().invoke(app, ["check", str(tmp_path / "spec.yaml"), "--json"])
    rows = [finding for finding in yaml.safe_load(done.output)["findings"] if finding["field"].startswith("workload")]
    words = ("message", "seen", "cure")
    return {row["rule"]: f"{row['level']} {row['field']}: {'; '.join(row[word] for word in words)}" for row in rows}


def test_check_finds_it_all_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = repository(tmp_path / "job", train__py="", other__py="")
    assert not findings(job, tmp_path)
    written(job / "data", tokens__bin="x" * 5000)
    assert findings(job, tmp_path)["ignored-files"].startswith("info workload.source: git ignores these")
    said = findings(job, tmp_path, args=["--text", "data/tokens.bin"])["ignored-files"]
    assert said.startswith("warning") and "data 5.0 kB" in said and "workload.mounts" in said
    said = findings(job, tmp_path, requirements="requirements.txt")["packed-programs"]
    assert said.startswith("error workload.requirements: is not in the packed source; requirements.txt")
    (job / "requirements.txt").write_text("einops\n")
    assert "packed-programs" not in findings(job, tmp_path, requirements="requirements.txt")
    (job / "out").symlink_to("../elsewhere")
    assert findings(job, tmp_path)["source-packing"].startswith("error workload.source: a link leads out")
    (job / "out").unlink(), (job / "image").symlink_to("/opt/of-the-image")
    assert findings(job, tmp_path)["source-packing"].startswith("warning workload.source")
    (job / ".gitignore").write_text("train.py\n"), git(job, "rm", "-q", "--cached", "train.py")
    assert "is not in the packed source; train.py" in findings(job, tmp_path)["packed-programs"]
    (job / "image").unlink(), monkeypatch.setattr(module, "MOST_BYTES", 10)
    assert "too large" in findings(job, tmp_path)["source-packing"]
