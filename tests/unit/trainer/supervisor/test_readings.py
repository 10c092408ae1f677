"""What an agent reads of its node, and that what cannot be read is not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.trainer.test_health_parsers import sample
from trainer.contract.job import NodeReadings
from trainer.supervisor.readings import Readings, of_gpus

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
