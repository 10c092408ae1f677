"""Homes that cannot be written, result folders without room or inodes, data behind a closed door, names in use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra import target
from infra.errors import UserError
from infra.record.holder import start_ticks
from infra.rehearsal.site import campaigns, handle
from infra.spec.campaign import Spec
from tests.root import ROOT
from tests.waiting import HUNG_S
from trainer.contract import DATA_MANIFEST_NAME, ExitCode, Parameters
from trainer.contract.recipe import Recipe, Source

SPEC = "infra/campaigns/rehearsal.yaml"
FOLDERS = """
import json, sys
from pathlib import Path
from infra.errors import BivouacError
from infra.folders import keep, refuse_unwritable, writable

results, said = Path("/mnt/results"), []
results.mkdir()
whole = keep(results / "small.json", "{}", said.append)
filling = sys.argv[1] == "inodes"
try:
    for number in range(100):
        (results / f"filling-{number}").write_bytes(b"" if filling else b"." * 4096)
except OSError:
    pass
kept = keep(results / "report.html", "." * 9000, said.append)
try:
    refuse_unwritable(results, "BIVOUAC_RESULTS")
    refused = ""
except BivouacError as error:
    refused = str(error)
elsewhere = writable(results / "pulumi")
print(json.dumps({"whole": whole, "kept": kept, "said": said, "refused": refused, "elsewhere": str(elsewhere),
                  "small": (results / "small.json").read_text(),
                  "odd": [one.name for one in results.iterdir() if "report" in one.name]}))
"""


def private(script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """As root of a user namespace with mounts of its own."""
    command = ["unshare", "-Urm", "sh", "-c", script, "sh", *arguments]
    environment = {key: value for key, value in (os.environ | variables).items() if value}
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=HUNG_S)


@pytest.fixture(autouse=True)
def namespaces() -> None:
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode:
        pytest.skip("user namespaces are forbidden here")


@pytest.mark.parametrize(("what", "options"), [("bytes", "size=32k"), ("inodes", "size=1m,nr_inodes=8")])
def test_a_full_results_folder_keeps_what_it_has_and_says_what_it_could_not_take(what: str, options: str) -> None:
    script = f'mount -t tmpfs -o {options} tmpfs /mnt && exec {sys.executable} -c "$1" {what}'
    done = private(script, FOLDERS)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["whole"] and not document["kept"] and document["small"] == "{}"
    assert (
        len(document["said"]) == 1
        and "report.html" in document["said"][0]
        and "state bucket keeps it" in document["said"][0]
    )
    assert document["odd"] == [], "no half of a page, and no temporary file"
    assert "BIVOUAC_RESULTS" in document["refused"]
    assert not document["elsewhere"].startswith("/mnt"), "a teardown goes on elsewhere"


def test_a_read_only_home_is_refused_with_the_variable_that_names_another_place() -> None:
    """Nothing is started, and commands that need no folder work."""
    bivouac = f"{sys.executable} -m infra.cli.main"
    script = (
        "mount -t tmpfs -o ro tmpfs /mnt && export HOME=/mnt && "
        f"{bivouac} check {SPEC} > /dev/null && {bivouac} plan {SPEC} > /dev/null && exec {bivouac} run {SPEC}"
    )
    done = private(script, BIVOUAC_CACHE="", XDG_CACHE_HOME="", BIVOUAC_RESULTS="/tmp")
    assert done.returncode == 64, done.stdout + done.stderr
    assert "/mnt/.cache/bivouac" in done.stderr and "set BIVOUAC_CACHE" in done.stderr
    assert "Traceback" not in done.stderr


def recipe(source: Path) -> str:
    rules = Parameters(held_out=0.2, seed=5)
    return Recipe(sources=(Source(location=str(source)),), parameters=rules, vocabulary=270).model_dump_json()


def words(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for index, name in enumerate(names):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text("".join(f"word{n % (index + 3)} of {name}, line {n}\n" for n in range(300)))
    return folder


def prepared(source: Path, out: Path, *before: str) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-m", "trainer.builtin.data", recipe(source), str(out)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HUNG_S)


def test_a_file_that_may_not_be_read_is_refused_by_name(tmp_path: Path) -> None:
    source = words(tmp_path / "text", "0.txt", "1.txt", "closed.txt", "3.txt")
    (source / "closed.txt").chmod(0)
    nobody = ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--"]
    done = prepared(source, tmp_path / "out", *nobody)
    assert done.returncode == ExitCode.DATA, done.stderr
    assert "closed.txt" in done.stderr and "cure" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out" / DATA_MANIFEST_NAME).exists()


def test_spaces_and_other_scripts_in_paths_are_only_names(tmp_path: Path) -> None:
    source = words(tmp_path / "Texte für Übungen", "ein Text.txt", "日本 語.txt", "a'b\"c.txt", "tief/$HOME *.txt")
    out = tmp_path / "out mit Lücke"
    done = prepared(source, out)
    assert done.returncode == 0, done.stderr
    counted = json.loads((out / DATA_MANIFEST_NAME).read_text())["sources"]
    assert [row["files"] for row in counted] == [4], counted


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A site of this very process, in which a campaign called `taken` runs."""
    monkeypatch.setenv("BIVOUAC_CACHE", str(tmp_path))
    monkeypatch.delenv("BIVOUAC_SITE", raising=False)
    folder, ours = handle.site_dir("elsewhere"), os.getpid()
    folder.mkdir(parents=True)
    written = {
        "name": "elsewhere", "folder": str(folder), "outer_pid": ours, "outer_start": start_ticks(ours),
        "inner_pid": ours, "user_namespace": False, "environment": {}, "boot": handle.boot(),
    }  # fmt: skip
    (folder / "site.json").write_text(json.dumps(written))
    document: dict[str, Any] = yaml.safe_load((ROOT / SPEC).read_text()) | {"campaign": "taken"}
    campaigns.remember(Spec.model_validate(document), folder)
    return document


def test_a_name_that_a_rehearsal_of_this_machine_has_is_refused(held: dict[str, Any]) -> None:
    on_aws = yaml.safe_load((ROOT / "infra/campaigns/p5-32-nodes.yaml").read_text()) | {"campaign": "taken"}
    for document in (held, on_aws):
        with pytest.raises(UserError, match="name is in use") as refused:
            target.enter_for(Spec.model_validate(document), lambda _: None)
        assert "taken in site elsewhere" in str(refused.value) and "another name" in (refused.value.cure or "")
    assert target.rehearsals() == {"taken": True}, "a site that runs is not lost"
