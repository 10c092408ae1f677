"""Supervisors' tiers in a temporary folder: what a job writes, and what its supervisor seals of it."""

from __future__ import annotations

import io
import os
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from trainer.contract import UNRECOGNISED_NAME, UnrecognisedFile
from trainer.supervisor import seal
from trainer.supervisor.formats import Finished, files_of
from trainer.supervisor.job import Job
from trainer.supervisor.place import Place
from trainer.supervisor.seal import Identity
from trainer.supervisor.sealing.local import LocalSealing, make_sealing
from trainer.supervisor.sealing.shared import Sealing

IDENTITY = Identity("tiny", "one", 1, 1, "config", "data", "code", "image")
TREE = "tree-0000.json"
Event = dict[str, Any]


def put(path: Path, content: str | bytes = "x", age_s: float | None = None) -> Path:
    """Write a file with its folders; `age_s`: as if so long ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    if age_s is not None:
        os.utime(path, (time.time() - age_s,) * 2)
    return path


def torch_file() -> bytes:
    """Return what `torch.save` writes, for those who look at its end."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("data.pkl", b"0" * 64)
    return buffer.getvalue()


class RunningJob:
    """A job as its sealing knows it: it runs, keeps the events, and waits for no file that does not come."""

    def __init__(self) -> None:
        self.stopping, self.step, self.tokens = "", 0, 7
        self.loss: float | None = 0.5
        self.events: list[Event] = []

    def emit(self, event: str, **fields: object) -> None:
        self.events.append({"event": event, **fields})

    def wait_for(self, path: Path, seconds: float) -> None:
        assert path.exists()

    def of(self, event: str) -> list[Event]:
        return [entry for entry in self.events if entry["event"] == event]

    def steps(self, event: str) -> list[int]:
        return [entry["step"] for entry in self.of(event)]


class JobDisk:
    """The folder of a job on one node, and the shared tier beside it."""

    def __init__(self, root: Path) -> None:
        self.own, self.tier = root / "tier/own", root / "tier"
        self.own.mkdir(parents=True)

    def seal(self, name: str, step: int = 10, attempt: int = 1, **more: Any) -> Path:
        root = self.own / name
        identity = IDENTITY._replace(attempt=attempt)
        return seal.seal(root, files_of(root), self.own, self.tier, step, identity, 0, None, **more)

    def fault(self, step: int = 10) -> str:
        return seal.fault(self.tier, step, "tiny", "one")

    def laid_back(self, step: int = 10) -> Path:
        path = self.own / seal.origin(self.tier, step)
        path.parent.mkdir(parents=True, exist_ok=True)
        seal.lay_back(self.tier, step, path)
        return path

    def shards(self, step: int = 10) -> list[Path]:
        return sorted(self.tier.glob(f"step-{step:08d}/attempt-*/*"))

    def begin(self, attempt: int, form: str = "client", keep: int = 3) -> tuple[Sealing, RunningJob, str]:
        """A supervisor's sealing at the start of an attempt, its job, and where that resumes."""
        place = Place("tiny", attempt, "n0", "127.0.0.1", 0, 1, 1, "127.0.0.1:1", "", "")
        checkpoints = {"format": form, "folder": str(self.own), "keep": keep}
        job = RunningJob()
        config = {"identity": "one", "config_digest": "config", "checkpoints": checkpoints}
        sealing = Sealing(config, place, self.tier, job, 1)
        return sealing, job, sealing.resume()

    def save(self, sealing: Sealing, step: int, text: str | None = None) -> None:
        """The job writes its one file again, and tells its supervisor."""
        path = put(self.own / "ckpt.pt", text or str(step))
        os.utime(path, ns=(time.time_ns(), time.time_ns()))
        sealing.tell(Finished(step, path))


@pytest.fixture
def disk(tmp_path: Path) -> JobDisk:
    return JobDisk(tmp_path)


class JobNode:
    """One node of a job under the product's whole supervisor, which emits into a list."""

    def __init__(self, tmp_path: Path, form: str = "auto", tier: str = "shared", rank: int = 0, nodes: int = 1) -> None:
        self.own, self.events = tmp_path / f"node-{rank}/own", list[Event]()
        place = Place("tiny", 1, f"n{rank}", "127.0.0.1", rank, nodes, 1, "127.0.0.1:29500", "", "")
        checkpoints = {"folder": str(self.own), "format": form, "keep": 9, "tier": tier, "keep_local": 2}
        config = {
            "checkpoints": checkpoints, "launcher": "torchrun", "save_every": 10, "identity": "one",
            "config_digest": "c",
        }  # fmt: skip
        self.job = Job(config, place, tmp_path / "shared", tmp_path, tmp_path / f"node-{rank}/local")
        self.job.emit = lambda event, **fields: self.events.append({"event": event, **fields})  # type: ignore[method-assign]
        self.tier = tmp_path / "shared/tiny"

    def end(self, code: int = 0) -> UnrecognisedFile:
        self.job.sealing.finish(code)
        return self.published()

    def published(self) -> UnrecognisedFile:
        return UnrecognisedFile.model_validate_json((self.tier / UNRECOGNISED_NAME).read_bytes())

    def unrecognised(self) -> list[Event]:
        return [event for event in self.events if event["event"] == "unrecognised"]


class TwoNodes:
    """Two nodes of a job, each with a disk of its own, and the shared tier of both."""

    def __init__(self, root: Path, form: str = "dcp", attempt: int = 1, keep: int = 9) -> None:
        self.tier, self.nodes, self.jobs = root / "shared/tiny", list[LocalSealing](), [RunningJob(), RunningJob()]
        for rank, job in enumerate(self.jobs):
            folder = root / f"node-{rank}/tiny/own"
            checkpoints = {"format": form, "folder": str(folder), "tier": "local", "keep": keep, "keep_local": keep}
            place = Place("tiny", attempt, f"n{rank}", f"127.9.9.{rank}", rank, 2, 1, "127.9.9.0:1", "", "")
            config = {"checkpoints": checkpoints, "launcher": "torchrun", "identity": "one", "config_digest": "config"}
            job.wait_for = self._refuse_to_wait  # type: ignore[method-assign]
            sealing = make_sealing(config, place, self.tier, root / f"node-{rank}", job, 1)
            assert isinstance(sealing, LocalSealing)
            self.nodes.append(sealing)

    @staticmethod
    def _refuse_to_wait(path: Path, seconds: float) -> None:
        raise AssertionError("nodes with own disks ask the tier")

    def put(self, rank: int, name: str, content: bytes = b"x") -> Path:
        path = self.nodes[rank].folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def look(self, *ranks: int) -> list[int]:
        for rank in ranks:
            self.nodes[rank].look()
        return seal.committed(self.tier)

    def refusals(self, rank: int) -> list[str]:
        """Why this node sealed nothing, each time."""
        return [str(event["why"]) for event in self.jobs[rank].of("not_sealed")]

    def resume(self) -> list[str]:
        """Where both nodes resume; they wait for each other."""
        paths = {0: "", 1: ""}

        def resume_one(rank: int) -> None:
            paths[rank] = self.nodes[rank].resume()

        threads = [threading.Thread(target=resume_one, args=(rank,)) for rank in paths]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [str(Path(path).relative_to(self.nodes[rank].folder)) if path else "" for rank, path in paths.items()]
