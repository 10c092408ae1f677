"""The hands of a site: which machine and which checkpoint they reach, and what they answer where there is none."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from infra.cluster.cloud_notice import scheduled
from infra.rehearsal.aws import power, troubles
from infra.rehearsal.aws.fsx import damage
from infra.rehearsal.aws.world import World


class SignalledMachine:
    """Notes what it is asked; has as many matching processes as told."""

    pid = 0

    def __init__(self, hits: int) -> None:
        self.hits, self.asked = hits, list[tuple[Any, ...]]()

    def alive(self) -> bool:
        return True

    def signal(self, process: str, which: Any, number: signal.Signals) -> int:
        self.asked.append((process, which, number))
        return self.hits

    def harm(self, kind: str, fields: Mapping[str, str]) -> int:
        if kind != "fill":
            raise LookupError(kind)
        self.asked.append((kind, fields["folder"]))
        return self.hits


class SignalledPlane:
    def __init__(self) -> None:
        self.asked = list[tuple[str, signal.Signals | None]]()

    def freeze(self) -> None:
        self.asked.append(("whole", None))

    def restart_etcd(self) -> None:
        self.asked.append(("etcd", None))

    def signal(self, component: str, number: signal.Signals) -> None:
        if component != "prometheus":
            raise LookupError(f"{component} does not run")
        self.asked.append((component, number))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(work=tmp_path, tools=tmp_path, endpoint_url="http://127.0.0.1:1")


def test_a_signal_goes_to_one_machine_or_to_all_and_none_hit_is_an_error(world: World) -> None:
    machines: dict[str, Any] = {"i-1": SignalledMachine(2), "i-2": SignalledMachine(0)}
    world.machines = machines
    power.install(world)
    ask = world.routes["/_site/signal"]
    assert ask("instance=i-1&process=a.b&which=top&signal=STOP", b"") == (HTTPStatus.OK, {"processes": 2})
    assert machines["i-1"].asked == [("a.b", "top", signal.SIGSTOP)] and machines["i-2"].asked == []
    assert ask("process=a.b&signal=KILL", b"")[0] == HTTPStatus.OK
    assert machines["i-2"].asked == [("a.b", "all", signal.SIGKILL)]
    assert ask("instance=i-2&signal=KILL", b"")[0] == HTTPStatus.NOT_FOUND, "no process is hit"
    assert ask("instance=i-3&signal=KILL", b"")[0] == HTTPStatus.NOT_FOUND
    assert ask("signal=NONE", b"")[0] == ask("signal=KILL&which=some", b"")[0] == HTTPStatus.BAD_REQUEST


def test_a_scheduled_event_is_announced_in_metadata_and_status_as_the_steward_reads_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines: dict[str, Any] = {"i-1": SignalledMachine(0)}
    world.machines = machines
    power.install(world)
    announced = list[Any]()
    monkeypatch.setattr(world, "schedule_once", lambda delay_s, function: announced.append(function))
    ask = world.routes["/_site/event"]
    assert ask("instance=i-2&seconds=60", b"")[0] == HTTPStatus.NOT_FOUND
    status, answer = ask("instance=i-1&code=system-reboot&seconds=3600", b"")
    assert status == HTTPStatus.OK and not world.scheduled_events, "whoever asks hears of it first"
    announced.pop()()
    notice = scheduled({"Events": world.scheduled_events["i-1"]})
    assert notice is not None and (notice.code, notice.due.isoformat()) == ("system-reboot", answer["time"])
    leaf = world.work / "machines/i-1/metadata/meta-data/events/maintenance/scheduled"
    (row,) = json.loads(leaf.read_text())
    assert (row["Code"], row["State"]) == ("system-reboot", "active")
    assert datetime.strptime(row["NotBefore"], "%d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC) == notice.due


def test_harm_comes_to_one_machine_or_to_all_and_none_that_has_it_is_an_error(world: World) -> None:
    machines: dict[str, Any] = {"i-1": SignalledMachine(2), "i-2": SignalledMachine(0)}
    world.machines = machines
    power.install(world)
    ask = world.routes["/_site/harm"]
    assert ask("instance=i-1&kind=fill&folder=/disk", b"") == (HTTPStatus.OK, {"harmed": 2})
    assert machines["i-1"].asked == [("fill", "/disk")] and machines["i-2"].asked == []
    assert ask("kind=fill&folder=/disk", b"")[0] == HTTPStatus.OK and machines["i-2"].asked == [("fill", "/disk")]
    for instance in ("i-2", "i-3"):
        assert ask(f"instance={instance}&kind=fill&folder=/disk", b"")[0] == HTTPStatus.NOT_FOUND
    assert ask("kind=burn", b"")[0] == ask("kind=fill", b"")[0] == HTTPStatus.BAD_REQUEST


def test_one_program_beside_the_control_plane_is_frozen_alone(world: World) -> None:
    plane: Any = SignalledPlane()
    world.control_planes["bivouac-c"] = plane

    def ask(query: str) -> int:
        return troubles._lay_hands(world, query)[0]

    assert ask("hand=freeze&component=prometheus") == ask("cluster=bivouac-c&hand=thaw&component=prometheus") == 200
    assert plane.asked == [("prometheus", signal.SIGSTOP), ("prometheus", signal.SIGCONT)]
    assert ask("hand=freeze&component=grafana") == ask("cluster=other&hand=freeze") == ask("hand=burn") == 404
    assert ask("hand=freeze") == 200 and plane.asked[-1] == ("whole", None), "the only one needs no name"
    assert ask("hand=restart-etcd") == 200 and plane.asked[-1] == ("etcd", None)


def committed(root: Path, campaign: str, step: int, *, manifest: bool = True) -> Path:
    folder = root / "fs-1" / "checkpoints" / campaign / f"step-{step:08d}"
    (folder / "attempt-0001").mkdir(parents=True)
    (folder / "attempt-0001" / "small.pt").write_bytes(b"ab")
    (folder / "attempt-0001" / "large.pt").write_bytes(bytes(range(100)))
    if manifest:
        (folder / "manifest.json").write_text("{}" * 200)
    return folder


def test_damage_hits_the_newest_committed_checkpoint_of_the_campaign(world: World) -> None:
    damage.install(world)
    ask = world.routes["/_site/tier"]
    assert ask("hand=flip&campaign=c", b"")[0] == HTTPStatus.NOT_FOUND
    old, new = committed(world.fsx_root, "c", 20), committed(world.fsx_root, "c", 40)
    committed(world.fsx_root, "c", 60, manifest=False)
    committed(world.fsx_root, "other", 80)
    status, answer = ask("hand=flip&campaign=c", b"")
    assert status == HTTPStatus.OK and answer["file"].endswith("c/step-00000040/attempt-0001/large.pt")
    before, after = bytes(range(100)), (new / "attempt-0001" / "large.pt").read_bytes()
    assert [index for index in range(100) if before[index] != after[index]] == [50] and len(after) == 100
    assert ask("hand=unmake&campaign=c", b"")[0] == HTTPStatus.OK
    assert not (new / "manifest.json").exists() and (old / "manifest.json").exists()
    assert damage.newest_checkpoint(world.fsx_root, "c") == old
    assert ask("hand=burn&campaign=c", b"")[0] == HTTPStatus.NOT_FOUND
