"""What an agent reads of its node, and that what cannot be read is not known."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.unit.trainer.health.test_health_parsers import sample
from trainer.contract.job import NodeReadings
from trainer.supervisor.readings import FileSystem, Readings, of_efa, of_gpus, room_of
from trainer.supervisor.serving import metrics

QUERY = sample("nvidia_smi/a100-sxm4-80gb.xml")
HOT = "<clocks_event_reason_hw_thermal_slowdown>"


def test_corrected_errors_are_summed_over_all_gpus_and_no_other_errors_are() -> None:
    assert of_gpus(QUERY) == {"corrected": 0, "is_throttled": False}
    assert of_gpus(QUERY.replace("<dram_correctable>0", "<dram_correctable>7", 1))["corrected"] == 7
    assert of_gpus(QUERY.replace("<dram_uncorrectable>0", "<dram_uncorrectable>7"))["corrected"] == 0


def test_one_hot_gpu_is_heat_and_a_power_cap_is_none() -> None:
    assert of_gpus(QUERY.replace(f"{HOT}Not Active", f"{HOT}Active", 1))["is_throttled"] is True
    capped = QUERY.replace("sw_power_cap>Not Active", "sw_power_cap>Active")
    assert capped != QUERY and of_gpus(capped)["is_throttled"] is False


@pytest.mark.parametrize("text", ["", "NVIDIA-SMI has failed", "<nvidia_smi_log></nvidia_smi_log>"])
def test_a_driver_that_says_nothing_of_them_leaves_them_unknown(text: str) -> None:
    assert {value for value in of_gpus(text).values()} <= {None}


def test_the_free_share_of_a_folder_is_read_and_a_missing_folder_is_unknown(tmp_path: Path) -> None:
    readings = Readings(str(tmp_path), str(tmp_path / "absent"), lambda: QUERY)
    readings.look()
    told = NodeReadings.model_validate(readings.newest)
    assert told.local_free is not None and 0 <= told.local_free <= 1
    assert told.shm_free is None and "shm_free" not in readings.newest and told.corrected == 0


def test_gpus_are_asked_at_every_second_look_and_their_last_answer_stands_between() -> None:
    asked: list[int] = []

    def query() -> str:
        asked.append(1)
        return QUERY

    readings = Readings("/", "/", query)
    for _ in range(4):
        readings.look()
        assert readings.newest["corrected"] == 0
    assert len(asked) == 2


def test_a_tier_tells_its_room_and_one_that_is_not_mounted_has_none(tmp_path: Path) -> None:
    readings = Readings(tiers={"local": str(tmp_path), "shared": str(tmp_path / "absent")}, efa=str(tmp_path))
    readings.look()
    await_answer(readings, "local")
    full = readings.full()
    assert full["free_bytes"].keys() == full["size_bytes"].keys() == full["answer_s"].keys() == {"local"}
    assert 0 <= full["free_bytes"]["local"] <= full["size_bytes"]["local"]
    assert "free_bytes" not in readings.newest, "what is for metrics alone stays out of the judged readings"


def await_answer(readings: Readings, tier: str) -> None:
    while not readings._file_systems[tier].facts():
        threading.Event().wait(0.01)


def test_a_file_system_that_hangs_keeps_its_room_and_its_answer_is_late_by_now(monkeypatch: pytest.MonkeyPatch) -> None:
    now, answers, asked = [100.0], threading.Semaphore(1), list[str]()

    def ask(folder: str) -> os.statvfs_result:
        asked.append(folder)
        answers.acquire()
        return os.statvfs("/")

    monkeypatch.setattr("trainer.supervisor.readings.time.monotonic", lambda: now[0])
    lustre = FileSystem("/shared", ask)
    lustre.look()
    while not lustre.facts():
        threading.Event().wait(0.01)
    assert lustre.facts()["answer_s"] == 0
    lustre.look()  # nobody answers this one
    now[0] += 40
    lustre.look()
    assert lustre.facts()["answer_s"] == 40 and lustre.facts()["size_bytes"] > 0 and len(asked) == 2
    answers.release()
    while lustre._asked_at is not None:
        threading.Event().wait(0.01)
    now[0] += 40
    assert lustre.facts()["answer_s"] == 40, "it took that long"


def test_only_a_folder_that_can_be_opened_has_room(tmp_path: Path) -> None:
    assert room_of(str(tmp_path)).f_blocks == os.statvfs(tmp_path).f_blocks
    (file := tmp_path / "file").touch()
    assert os.statvfs(file).f_blocks
    with pytest.raises(NotADirectoryError):
        room_of(str(file))
    open_files = len(os.listdir("/proc/self/fd"))
    room_of(str(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_counters_of_efa_are_summed_over_devices_and_not_without_one_of_them(tmp_path: Path) -> None:
    for device, received in (("rdmap0s6", "7"), ("rdmap1s6", "5")):
        folder = tmp_path / device / "ports/1/hw_counters"
        folder.mkdir(parents=True)
        for name, text in (("rx_bytes", received), ("tx_bytes", "3"), ("rx_drops", "0")):
            (folder / name).write_text(f"{text}\n")
    assert of_efa(tmp_path) == {"rx_bytes": 12, "tx_bytes": 6, "rx_drops": 0} and of_efa(tmp_path / "absent") == {}
    (tmp_path / "rdmap0s6/ports/1/hw_counters/rx_bytes").write_text("Input/output error")
    assert of_efa(tmp_path) == {}
    status = {"campaign": "c", "attempt": 1, "node": "n", "phase": "training", "ranks": []}
    text = metrics({**status, "readings": {"efa": {"rx_bytes": 12}, "free_bytes": {"local": 5.0}}})
    assert 'bivouac_efa_received_bytes_total{attempt="1",campaign="c",node="n"} 12.0' in text
    assert 'bivouac_tier_free_bytes{attempt="1",campaign="c",node="n",tier="local"} 5.0' in text
