"""Archive cases: the real archiver in a child process against the emulated AWS in another, killed, refused, doubled.

After the case one more run must end well: one manifest, whose every object is what was once trained, read here by a
client of our own; nothing half sent; nothing sent twice that was proven there.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
import urllib.request
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from infra.archive import archive
from infra.archive.bucket import ArchiveBucket
from infra.archive.files import workspace
from infra.aws.parts import PartTransfers
from infra.aws.transfer import Transfer
from infra.errors import PermanentError
from tests.drills.parts.storage_aws import account, start_aws
from tests.drills.parts.storage_damage import flip
from tests.drills.parts.storage_gang import CAMPAIGN, Camp, Orders, run_attempt
from trainer.builtin.checkpoint.convert.export import export
from trainer.builtin.evaluate import evaluate
from trainer.contract import DataConfig, ModelConfig, TrainConfig
from trainer.errors import TrainerError

STATE = "state"
PART = 5 * 2**20
"""S3's smallest part: the padding of a case makes one file of three parts."""
FAULTS: tuple[dict[str, Any], ...] = (
    {"action": "PutObject", "effect": "refuse", "code": "InternalError", "status": 500},
    {"action": "PutObject", "effect": "refuse", "code": "SlowDown", "status": 503},
    {"action": "PutObject", "effect": "refuse-after", "code": "InternalError", "status": 500},
    {"action": "PutObject", "effect": "drop"},
    {"action": "PutObject", "effect": "drop-after"},
    {"action": "PutObject", "effect": "refuse", "code": "ConditionalRequestConflict", "status": 409},
    {"action": "UploadPart", "effect": "refuse", "code": "InternalError", "status": 500},
    {"action": "UploadPart", "effect": "drop-after"},
    {"action": "UploadPart", "effect": "refuse", "code": "NoSuchUpload", "status": 404},
    {"action": "CreateMultipartUpload", "effect": "drop-after"},
    {"action": "CompleteMultipartUpload", "effect": "refuse-after", "code": "InternalError", "status": 500},
    {"action": "CompleteMultipartUpload", "effect": "refuse-after", "code": "NoSuchUpload", "status": 404},
    {"action": "CompleteMultipartUpload", "effect": "drop-after"},
    {"action": "CompleteMultipartUpload", "effect": "refuse", "code": "InvalidPart", "status": 400},
    {"action": "GetObject", "effect": "truncate"},
    {"action": "GetObject", "effect": "drop"},
    {"action": "GetObject", "effect": "refuse", "code": "SlowDown", "status": 503},
    {"action": "GetObject", "effect": "delay", "delay_s": 0.2},
    {"action": "HeadObject", "effect": "refuse", "code": "InternalError", "status": 500},
    {"action": "ListObjectsV2", "effect": "refuse", "code": "InternalError", "status": 500},
    {"action": "ListObjectsV2", "effect": "truncate", "keep_bytes": 40},
    {"action": "ListMultipartUploads", "effect": "refuse", "code": "AccessDenied", "status": 403},
)


@dataclass(frozen=True)
class Ending:
    code: int
    events: list[dict[str, Any]]

    def keys(self, event: str) -> list[str]:
        return [seen["key"] for seen in self.events if seen["event"] == event]


class Archives:
    """One emulated AWS, and one campaign whose checkpoint really evaluates."""

    def __init__(self, work: Path) -> None:
        work.mkdir()
        self.work = work
        self._pid, self.endpoint, key, secret = start_aws(work)
        # For this process and its children only; the emulator takes no others.
        os.environ |= {"AWS_ENDPOINT_URL": self.endpoint, "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
        self._prepared: tuple[Camp, Camp, TrainConfig] | None = None

    def close(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def case(self, number: int, folder: Path, chance: random.Random) -> tuple[str, str]:
        evaluated, stopped, config = self._prepared = self._prepared or self._prepare()
        template = chance.choice((evaluated, evaluated, stopped))
        s3, bucket = account().client("s3"), f"archive-{number}"
        s3.create_bucket(Bucket=bucket)
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        camp = Camp(folder / "camp", 1, 1)
        shutil.copytree(template.root, camp.root)
        kind = chance.choice(("kill", "kill", "fault", "fault", "two", "source"))
        wanted, detail = 30, ""
        if kind == "kill":
            detail = (
                f"call {(at := chance.randint(1, 70))}, {((after := chance.random() < 0.5) and 'after') or 'before'}"
            )
            first = [self._run(camp, bucket, config, folder, kill=(at, after))]
            killed = [event["call"] for event in first[0].events if event["event"] == "killing"]
            phase = f"killed at {killed[0]}" if killed else "ended before"
        elif kind == "fault":
            rules = chance.sample(FAULTS, chance.choice((1, 1, 2)))
            phase = "+".join(sorted(f"{rule['effect']} {rule['action']}" for rule in rules))
            made = [self._rule(rule, bucket, chance) for rule in rules]
            detail = json.dumps(made)
            self._ask(add=made)
            first = [self._run(camp, bucket, config, folder)]
            self._ask(clear=True)
        elif kind == "two":
            phase, first = "two at once", self._run_two(camp, bucket, config, folder, chance)
        else:
            phase, wanted = "damaged source", 20
            flip(chance, chance.choice(_shards(camp, 30)), Path())
            first = [self._run(camp, bucket, config, folder)]
        for ending in first:
            assert ending.code in (0, 74, -9), f"ended {ending.code}: {ending.events[-2:]}"
        assert kind not in ("two", "source") or {ending.code for ending in first} == {0}, [e.events[-3:] for e in first]
        last = self._run(camp, bucket, config, folder)
        assert last.code == 0, f"the next run failed: {last.events[-3:]}"
        self._judge(s3, bucket, template, wanted, [*first, last])
        return phase, detail

    def _judge(self, s3: Any, bucket: str, template: Camp, wanted: int, endings: list[Ending]) -> None:
        prefix = f"campaigns/{CAMPAIGN}/"
        left = s3.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
        assert not left, f"half sent: {[upload['Key'] for upload in left]}"
        versions = s3.list_object_versions(Bucket=bucket, Prefix=f"{prefix}archive-manifest.json")["Versions"]
        assert len(versions) == 1, f"{len(versions)} manifests were written"
        manifest = json.loads(s3.get_object(Bucket=bucket, Key=versions[0]["Key"])["Body"].read())
        assert manifest["step"] == wanted and bool(manifest["refused"]) == (wanted != 30), manifest
        recorded = manifest["recorded_evaluation_loss"]
        assert manifest["reference_evaluation_loss"] == manifest["restored_evaluation_loss"] == self._loss
        stopped = template.root.name == "stopped"
        assert (recorded, manifest["proof"]) == (
            (None, "evaluated before upload") if stopped else (self._loss, "recorded in training")
        )
        names = {item["key"].removeprefix(prefix) for item in manifest["objects"]}
        assert {"huggingface/model.safetensors", "huggingface/README.md", "data/tokenizer.json"} <= names
        items = {item["key"].removeprefix(prefix): item for item in manifest["objects"]}
        for item in items.values():
            body = s3.get_object(Bucket=bucket, Key=item["key"], VersionId=item["version"])["Body"].read()
            assert hashlib.sha256(body).hexdigest() == item["sha256"], f"{item['key']} is not what the manifest says"
        for path in _shards(template, wanted):
            name = f"golden/{path.relative_to(template.root / 'shared' / CAMPAIGN)}"
            assert items[name]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest(), name
        assert {"record/spec.json", "train.json", "data/manifest.json"} <= set(items)
        keys = [key for ending in endings for key in ending.keys("uploaded")]
        doubtful = any(ending.keys("unsound") for ending in endings) or len(endings) > 2
        assert doubtful or len(set(keys)) == len(keys), "something was sent again that was there"

    def _run_two(
        self, camp: Camp, bucket: str, config: TrainConfig, folder: Path, chance: random.Random
    ) -> list[Ending]:
        started = []
        for index in range(2):
            started.append(self._start(camp, bucket, config, folder, index, None))
            time.sleep(chance.random() * 0.15)
        return [_finish(*each) for each in started]

    def _run(
        self, camp: Camp, bucket: str, config: TrainConfig, folder: Path, kill: tuple[int, bool] | None = None
    ) -> Ending:
        return _finish(*self._start(camp, bucket, config, folder, 0, kill))

    def _start(
        self, camp: Camp, bucket: str, config: TrainConfig, folder: Path, index: int, kill: tuple[int, bool] | None
    ) -> tuple[int, Path]:
        log = folder / f"archive-{index}-{time.monotonic_ns()}.log"
        child = os.fork()
        if child == 0:
            code = 70
            try:
                code = _archive(camp, bucket, config, self.work / "data", log, kill)
            except BaseException as error:
                archive.say("crashed", why="".join(traceback.format_exception(error))[-3000:])
            finally:
                os._exit(code)
        return child, log

    def _prepare(self) -> tuple[Camp, Camp, TrainConfig]:
        """Checkpoints of a real model at steps 10, 20, 30, with the loss that it evaluates to, and without."""
        import torch

        from tests.trainer.data_sets import open_data, prepare
        from trainer.builtin.evaluation import evaluation_loss
        from trainer.builtin.model import Transformer

        source, data = self.work / "text", self.work / "data"
        source.mkdir()
        chance = random.Random(7)
        for index in range(40):
            words = ("".join(chance.choices("abcdefgh", k=4)) for _ in range(200))
            (source / f"{index}.txt").write_text(" ".join(words))
        prepare(source, "*.txt", None, 0.2, 7, 280, data, lambda stage, part: None)
        digest = hashlib.sha256((data / "manifest.json").read_bytes()).hexdigest()
        config = TrainConfig(
            campaign=CAMPAIGN,
            model=ModelConfig(layers=1, width=16, heads=2, context=16, vocabulary=_vocabulary(data)),
            data=DataConfig(manifest_digest=digest),
            steps=30,
            global_batch=2,
            evaluate_batches=1,
        )
        (self.work / "train.json").write_text(config.model_dump_json())
        torch.manual_seed(1)
        model = Transformer(config.model)
        reader = open_data(data, digest, config.model.vocabulary, config.model.context, config.data.seed)
        self._loss = evaluation_loss(model, reader, config, torch.device("cpu"))
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        camps = []
        for name, loss in (("evaluated", self._loss), ("stopped", None)):
            camp = Camp(self.work / name, 1, 1)
            camp.root.mkdir()
            orders = Orders(1, (10, 20, 30), weights=weights, evaluation_loss=loss, padding_bytes=2 * PART + 4096)
            assert run_attempt(camp, orders) == [0], camp.log(0, 1).read_text()
            camps.append(camp)
        s3 = account().client("s3")
        s3.create_bucket(Bucket=STATE)
        for name in ("spec.json", "plan.json", "events/a/000000.json", "leases/driver.json"):
            s3.put_object(Bucket=STATE, Key=f"campaigns/{CAMPAIGN}/{name}", Body=name.encode())
        s3.put_object(Bucket=STATE, Key="images/i.json", Body=b"{}")
        return camps[0], camps[1], config

    def _rule(self, rule: dict[str, Any], bucket: str, chance: random.Random) -> dict[str, Any]:
        path = "/state*" if rule["action"] == "ListObjectsV2" else f"/{bucket}*"
        times = chance.choice((1, 1, 2, 8))
        made = {**rule, "path": path, "skip": chance.randint(0, 12), "times": times, "message": "asked for"}
        if rule["effect"] == "truncate" and "keep_bytes" not in rule:
            made["keep_bytes"] = chance.randint(0, 1000)
        if rule["action"] in ("CreateMultipartUpload", "CompleteMultipartUpload", "UploadPart", "ListMultipartUploads"):
            made["skip"] = 0
        return made

    def _ask(self, **asked: Any) -> None:
        with urllib.request.urlopen(f"{self.endpoint}/_site/faults", data=json.dumps(asked).encode()) as answer:
            answer.read()


def _archive(camp: Camp, bucket: str, config: TrainConfig, data: Path, log: Path, kill: tuple[int, bool] | None) -> int:
    """The Job's own main, but for the places and for an evaluation in this warm process."""
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    s3 = account().client("s3")
    transfer = Transfer(s3, bucket, PART, 4, _Struck(s3, *kill) if kill else None)
    inventory = ArchiveBucket(s3, bucket, f"campaigns/{CAMPAIGN}", archive.say, 5, timedelta(milliseconds=20), transfer)
    settings = archive.ArchiveConfig(
        campaign=CAMPAIGN, region="us-east-1", state_bucket=STATE, archive_bucket=bucket, image_manifest="images/i.json"
    )
    places = archive.Places(camp.root / "shared", data.parent / "train.json", data)

    def prove(checkpoint: Path, out: Path | None) -> float:
        try:
            loss = float(evaluate(checkpoint, config, data)["evaluation_loss"])
        except TrainerError as error:  # as a process of its own would end
            raise PermanentError("the checkpoint could not be evaluated", seen=str(error)) from error
        if out is not None:
            export(checkpoint, config, data, out)
        return loss

    def run(work: Path) -> archive.ArchiveManifest:
        model = archive.Model(prove)
        return archive.Archiver(settings, inventory, work, places, model).run()

    try:
        with workspace(camp.root / "local-0") as work:
            run(work)
    except archive.FAILURES as error:
        archive.say("failed", error=str(error))
        return 74
    return 0


class _Struck(PartTransfers):
    """SIGKILL before, or right after, the Nth call to S3, of the client's and of those that carry parts."""

    def __init__(self, s3: Any, number: int, after: bool) -> None:
        super().__init__(s3)
        self._number, self._after, self._seen, self._guard = number, after, 0, threading.Lock()
        s3.meta.events.register("after-call.s3" if after else "before-call.s3", self._count)

    def _count(self, model: Any, **_: Any) -> None:
        with self._guard:
            self._seen += 1
            if self._seen == self._number:
                line = json.dumps({"event": "killing", "call": f"{model.name} {'after' if self._after else 'before'}"})
                os.write(1, f"{line}\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)

    def _start(self, operation: str, method: str, url: str, headers: Any, answer: Any, *rest: Any, **more: Any) -> None:
        model = SimpleNamespace(name=operation)
        if self._after:
            answer.add_done_callback(lambda _: self._count(model))
        else:
            self._count(model)
        super()._start(operation, method, url, headers, answer, *rest, **more)


def _finish(child: int, log: Path) -> Ending:
    _, status = os.waitpid(child, 0)
    lines = log.read_text().splitlines() if log.exists() else []
    events = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    return Ending(os.waitstatus_to_exitcode(status), events or [{"event": "said", "lines": lines[-5:]}])


def _shards(camp: Camp, step: int) -> list[Path]:
    return sorted((camp.root / "shared" / CAMPAIGN / f"step-{step:08d}").glob("attempt-*/*"))


def _vocabulary(data: Path) -> int:
    return int(json.loads((data / "manifest.json").read_text())["vocabulary"])
