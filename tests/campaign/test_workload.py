"""A job of one's own on a whole rehearsed cluster: a plain torchrun script, a node that dies, the loss of a twin."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.campaign.rehearsal import rehearsing, until
from tests.root import ROOT
from tests.waiting import HUNG_S
from trainer.supervisor import seal

pytestmark = pytest.mark.nightly
EXAMPLE = "trainer/examples/ddp"
STEPS = 60
SLIP = "sys.exit(64) if step == 25 else None"
"""An error of the user's own: the cluster is held for him."""
STEP_BEGINS = "        inputs, targets = batch(step, rank)\n"
SECRETS = {"TOKEN": "swordfish-4711", "KEY": "open-sesame-0815"}
BEGINS = '    dist.init_process_group("gloo")\n'
TELLS = """    import hashlib
    for name, digest in {digests}.items():
        if hashlib.sha256(os.environ[name].encode()).hexdigest() != digest:
            sys.exit(64)
    assert (Path(os.environ["BIVOUAC_INIT_FROM"]) / "deep/begin").read_text() == "from here"
    print("my token is", os.environ["TOKEN"], json.dumps(dict(key=os.environ["KEY"])), flush=True)
"""
"""A job that sees that it has the right secrets, and then tells them."""


EVALUATE = """
import json, os, pathlib, sys, torch
from torch import nn
print("my token is", os.environ["TOKEN"])
if export := os.environ["BIVOUAC_EXPORT"]:
    weights = torch.load(pathlib.Path(export) / "weights.pt", weights_only=True)
else:
    saved = pathlib.Path(os.environ["BIVOUAC_RESUME_FROM"]) / "state.pt"
    try:
        saved.open("r+b")
    except OSError as error:
        print("locked", error.strerror)
    else:
        sys.exit("a checkpoint can be changed")
    weights = torch.load(saved, weights_only=True)["model"]
model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
model.load_state_dict(weights)
inputs = torch.randn(256, 32, generator=torch.Generator().manual_seed(7))
with torch.no_grad():
    print(json.dumps({"loss": nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True).sin()).item()}))
"""
EXPORT = """
import os, pathlib, torch
saved = torch.load(pathlib.Path(os.environ["BIVOUAC_RESUME_FROM"]) / "state.pt", weights_only=True)
half = {name: one.half() for name, one in saved["model"].items()}
torch.save(half, pathlib.Path(os.environ["BIVOUAC_EXPORT"]) / "weights.pt")
"""
"""The job's own programs after the training: its weights in half precision, and their loss."""


def twin() -> dict[int, float]:
    """The losses of the same two ranks, undisturbed and on one node."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"{EXAMPLE}/train.py"]
    done = subprocess.run([*command, str(STEPS), "0"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {one["step"]: one["loss"] for one in map(json.loads, done.stdout.splitlines())}


def telling(folder: Path) -> Path:
    """The example's code, with the local file of its secrets beside it, which prints what it must not."""
    shutil.copytree(ROOT / EXAMPLE, folder)
    digests = {name: hashlib.sha256(value.encode()).hexdigest() for name, value in SECRETS.items()}
    sound = (folder / "train.py").read_text()
    assert BEGINS in sound
    (folder / "train.py").write_text(sound.replace(BEGINS, TELLS.format(digests=digests) + BEGINS))
    (folder / "evaluate.py").write_text(EVALUATE)
    (folder / "export.py").write_text(EXPORT)
    (folder / "secrets.env").write_text("\n".join(f"{name}={value}" for name, value in SECRETS.items()))
    return folder


def holders(folder: Path) -> set[str]:
    """The files below the folder in which a secret stands."""
    patterns = [word for value in SECRETS.values() for word in ("-e", value)]
    done = subprocess.run(["grep", "-rlaF", *patterns, str(folder)], capture_output=True, text=True)
    return {str(Path(line).relative_to(folder)) for line in done.stdout.splitlines()}


STORED = """
import boto3
s3, told = boto3.client("s3"), {values}
for bucket in s3.list_buckets()["Buckets"]:
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket["Name"]):
        for one in page.get("Contents", ()):
            body = s3.get_object(Bucket=bucket["Name"], Key=one["Key"])["Body"].read()
            print("read", one["Key"])
            if any(value.encode() in body for value in told):
                print("holds", one["Key"])
"""


def test_a_script_survives_a_lost_node_is_archived_byte_for_byte_and_leaks_no_secret(
    tmp_path: Path,
) -> None:
    secrets = {"TOKEN": {"secret": "bivouac_job/all", "key": "token"}, "KEY": {"parameter": "/bivouac_job/key"}}
    code, begin = telling(tmp_path / "code"), tmp_path / "begin"
    (begin / "deep").mkdir(parents=True)
    (begin / "deep/begin").write_text("from here")
    workload = {
        "source": str(code), "secrets": secrets, "rehearsal": {"secrets": str(code / "secrets.env")},
        "init_from": str(begin), "evaluate": {"command": ["python3", "evaluate.py"], "tolerance": 0.01, "limit": "5m"},
        "export": {"command": ["python3", "export.py"], "limit": "5m"},
    }  # fmt: skip
    changes = {"campaign": "job", "workload": workload, "preflight": {"pilot": True}}
    with rehearsing(tmp_path, changes, base=f"{EXAMPLE}/rehearsal.yaml") as rehearsal:
        done = rehearsal.run("run", str(rehearsal.path), "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout)["outcome"] == "done"
        events = rehearsal.events()
        pilot = [one["data"] for one in events[: [event["kind"] for event in events].index("pilot.proven")]]
        alone = {probe["name"]: probe["seen"] for one in pilot for probe in one.get("probes", ())}
        assert alone["job torch"].startswith("torch ") and alone["all_reduce"] == "the right sum", alone
        running = {event["data"]["attempt"] for event in events if event["kind"] == "attempt.running"}
        assert running == {1, 2}, "a node has died, and the second attempt has trained"
        rows = [row for series in rehearsal.report()["training"]["losses"] for row in series["points"]]
        whole = twin()
        assert {row["step"] for row in rows} == set(whole) == set(range(1, STEPS + 1))
        assert [row for row in rows if row["loss"] != whole[row["step"]]] == [], "bit for bit"
        assert [event["data"]["clean"] for event in events if event["kind"] == "certified"] == [True]
        stdout = rehearsal.run("logs", "job").stdout
        assert stdout.count('my token is [secret] {"key": "[secret]"}') >= 2, stdout[-2000:]
        assert stdout.count("locked Read-only file system") == 1, stdout[-2000:]
        (archived,) = (event["data"] for event in events if event["kind"] == "archive.verified")
        assert archived["proof"] == "evaluated by the job's own command, its export within the tolerance"
        loss, exported = archived["metrics"]["loss"], archived["export_metrics"]["loss"]
        assert loss != exported and abs(exported - loss) <= 0.01 * loss, (
            "half precision shows, a lost tensor would more"
        )
        assert rehearsal.report()["golden"]["metrics"] == {"loss": loss}
        lines = rehearsal.python(STORED.format(values=list(SECRETS.values()))).splitlines()
        assert "read campaigns/job/spec.json" in lines and not [line for line in lines if line.startswith("holds")]
        assert holders(tmp_path) == {"code/secrets.env"}
        struck = rehearsal.run("down", "--all", "--yes")
        assert struck.returncode == 0, struck.stdout + struck.stderr
        assert (rehearsal.archived("source") / "source.tar").exists()
        assert str(loss) in rehearsal.archived("README.md").read_text()
        given, (state,) = rehearsal.archived(archived["export"]), rehearsal.archived("golden").rglob("*state.pt")
        half, whole_precision = torch.load(given / "weights.pt"), torch.load(state)["model"]
        assert half and {name: one.half().tolist() for name, one in whole_precision.items()} == {
            name: one.tolist() for name, one in half.items()
        }
        tier = tmp_path / "job"
        rehearsal.archived("golden").rename(tier)
        assert seal.fault(tier, STEPS, "job", "") == "", "every byte is that of its manifest"
        assert holders(tmp_path) == {"code/secrets.env"}, "nor in what is exported, the packed source among it"


def test_a_held_job_goes_on_with_mended_code_and_nothing_is_baked(tmp_path: Path) -> None:
    code = tmp_path / "code"
    shutil.copytree(ROOT / EXAMPLE, code)
    sound = (code / "train.py").read_text()
    (code / "train.py").write_text(sound.replace(STEP_BEGINS, f"        {SLIP}\n{STEP_BEGINS}"))
    changes = {
        "campaign": "mended", "on_stop": "hold", "hold_for": "20m", "workload": {"source": str(code)},
        "rehearsal": {"faults": []},
    }  # fmt: skip
    with rehearsing(tmp_path, changes, base=f"{EXAMPLE}/rehearsal.yaml") as rehearsal:
        driver = rehearsal.start()
        until(lambda: driver.poll() is not None or rehearsal.status().get("hold"), "the cluster is held")
        assert driver.poll() is None, rehearsal.log()
        driver.send_signal(signal.SIGINT)
        driver.wait(timeout=HUNG_S)
        (code / "train.py").write_text(sound)
        done = rehearsal.run("relaunch", rehearsal.name, "--spec", str(rehearsal.path), "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        rows = [row for series in rehearsal.report()["training"]["losses"] for row in series["points"]]
        whole = twin()
        assert {row["step"] for row in rows} == set(whole)
        assert [row for row in rows if row["loss"] != whole[row["step"]]] == [], "bit for bit"
        events = rehearsal.events()
        (first,) = (
            event["data"]["outputs"]["image"]
            for event in events
            if event["kind"] == "stage.finished" and event["data"]["stage"] == "bake"
        )
        (again,) = (event for event in events if event["kind"] == "relaunched")
        assert again["data"]["bake"]["image"] == first, "new code needs no new image"
        trains = next(event for event in events if event["kind"] == "attempt.running" and event["at"] > again["at"])
        print("relaunched", again["at"], "training", trains["at"])


OWN = """
import json, os, pathlib, platform
folder, resume = pathlib.Path(os.environ["BIVOUAC_CHECKPOINTS"]), os.environ["BIVOUAC_RESUME_FROM"]
print("image", pathlib.Path("/opt/team/told").read_text(), flush=True)
print("weights", pathlib.Path(os.environ["BIVOUAC_INIT_FROM"], "begin").read_text(), flush=True)
for name in ("corpus", "shards", "kept"):
    print(name, pathlib.Path(f"/mounts/{name}/deep/a.txt").read_text(), flush=True)
for step in range(1 + (int(resume.rpartition("-")[2]) if resume else 0), 11):
    print(json.dumps({"step": step, "loss": 1 / step}), flush=True)
    if step % 5 == 0 and os.environ["NODE_RANK"] == "0":
        there = folder / f"step-{step}"
        there.mkdir(parents=True)
        (there / "weights").write_text(str(step))
        (there / "DONE").touch()
"""
"""A job on the standard library: its image has no torch."""
PUSH = """
import hashlib, io, json, tarfile
from infra.aws.account import Account
from infra.aws.manifests import OCI
from infra.aws.registry import Registry
account = Account("us-east-1")
account.client("ecr").create_repository(repositoryName="team/job")
registry = Registry(account)
repository = "bivouac/base"
base = registry.image(repository, "host")
config = json.loads(registry.blob(repository, base.config))
buffer = io.BytesIO()
with tarfile.open(fileobj=buffer, mode="w") as tar:
    member = tarfile.TarInfo("opt/team/told")
    member.size = 3
    tar.addfile(member, io.BytesIO(b"own"))
layer = buffer.getvalue()
config["rootfs"]["diff_ids"].append("sha256:" + hashlib.sha256(layer).hexdigest())
for one in base.manifest["layers"]:
    registry.copy_blob(repository, "team/job", one["digest"])
body = json.dumps(config).encode()
top = {"mediaType": OCI.layer, "digest": registry.push_blob("team/job", layer), "size": len(layer)}
made = {"schemaVersion": 2, "mediaType": OCI.manifest, "layers": [*base.manifest["layers"], top],
        "config": {"mediaType": OCI.config, "digest": registry.push_blob("team/job", body), "size": len(body)}}
text = json.dumps(made)
registry.ecr.put_image(
    repositoryName="team/job", imageManifest=text, imageManifestMediaType=OCI.manifest, imageTag="v1"
)
print("sha256:" + hashlib.sha256(text.encode()).hexdigest())
"""

OWN_IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/team/job"


def test_a_job_runs_in_an_image_of_its_own_and_reads_prefixes_of_s3_in_three_ways(tmp_path: Path) -> None:
    """Linked by the file system, by Mountpoint, and copied to the nodes' own disks."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "job.py").write_text(OWN)
    (tmp_path / "corpus/deep").mkdir(parents=True)
    (tmp_path / "corpus/deep/a.txt").write_text("read")
    (tmp_path / "small").mkdir()
    (tmp_path / "small/begin").write_text("from S3")
    workload = {
        "source": str(code), "launcher": "none", "script": None, "command": ["python3", "-u", "job.py"], "args": [],
        "estimates": {"steps": 10}, "mounts": {
            "corpus": "s3://their-data/tokens", "shards": {"s3": "s3://their-shards/v1", "by": "mountpoint"},
            "kept": {"s3": "s3://their-tables/v1", "stage": "nvme", "size_gib": 1},
        },
        "init_from": "s3://their-weights/llama",
        "rehearsal": {
            "image": f"{OWN_IMAGE}:v1", "mounts": dict.fromkeys(("corpus", "shards", "kept"), str(tmp_path / "corpus")),
            "init_from": str(tmp_path / "small"),
        },
    }  # fmt: skip
    changes = {
        "campaign": "imaged",
        "workload": workload,
        "checkpoint": {"every_steps": 5},
        "rehearsal": {"faults": []},
    }
    with rehearsing(tmp_path, changes, base=f"{EXAMPLE}/rehearsal.yaml") as rehearsal:
        missing = rehearsal.run("run", str(rehearsal.path))
        assert missing.returncode == 64 and "no such repository" in missing.stderr, missing.stdout + missing.stderr
        assert "provision" not in missing.stdout, "nothing was made"
        digest = rehearsal.python(PUSH).splitlines()[-1]
        done = rehearsal.run("run", str(rehearsal.path), "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        baked = next(
            event["data"]["outputs"]
            for event in rehearsal.events()
            if event["kind"] == "stage.finished" and event["data"]["stage"] == "bake"
        )
        assert baked["job_image"] == f"{OWN_IMAGE}@{digest}"
        told = rehearsal.run("logs", rehearsal.name)
        assert "weights from S3" in told.stdout, told.stdout
        lines = ("image own", "corpus read", "shards read", "kept read")
        assert all(line in told.stdout for line in lines), told.stdout + told.stderr
        assert rehearsal.events()[-1]["kind"] and json.loads(done.stdout)["certificate"]["clean"] is True


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    return subprocess.run(["git", "-C", folder, *who, *words], check=True, capture_output=True, text=True).stdout


def test_a_branch_is_fetched_packed_and_trained_and_its_commit_is_in_record_and_report(tmp_path: Path) -> None:
    code = tmp_path / "code"
    shutil.copytree(ROOT / EXAMPLE, code)
    git(code, "init", "-q", "-b", "main"), git(code, "add", "-A"), git(code, "commit", "-qm", "one")
    commit = git(code, "rev-parse", "HEAD").strip()
    (code / "train.py").write_text("raise SystemExit('not committed, so not of the branch')\n")
    workload = {"source": {"git": f"file://{code}", "ref": "main"}}
    changes = {"campaign": "by-branch", "workload": workload, "rehearsal": {"faults": []}}
    with rehearsing(tmp_path, changes, base=f"{EXAMPLE}/rehearsal.yaml") as rehearsal:
        done = rehearsal.run("run", str(rehearsal.path), "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout)["outcome"] == "done"
        assert [text for text in map(json.dumps, rehearsal.events()) if f'"source_commit": "{commit}"' in text]
        assert f"{commit}" in (rehearsal.results / "report.html").read_text()
