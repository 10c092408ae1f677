"""The parsers of preflight on what the tools really print; where each sample comes from: tests/samples/SOURCES.yaml."""

from __future__ import annotations

import re

import pytest
import yaml

from infra.plan.catalogue import limits
from tests.root import ROOT
from trainer.health import clocks
from trainer.health.parsers import dcgm, fabric, kernel_log, nvidia_smi
from trainer.health.parsers.kernel_log import Resolution

SAMPLES = ROOT / "tests/samples"


XIDS = limits().xids


def sample(name: str) -> str:
    return (SAMPLES / name).read_text()


def test_every_sample_names_its_source() -> None:
    document = yaml.safe_load(sample("SOURCES.yaml"))
    there = {str(path.relative_to(SAMPLES)) for path in SAMPLES.rglob("*.*") if path.name != "SOURCES.yaml"}
    assert set(document) == there
    assert all(one["kind"] in ("real", "documented", "format") and len(one["source"]) > 15 for one in document.values())


def test_nvidia_smi_tells_an_a100_apart_field_by_field() -> None:
    smi = nvidia_smi.parse_query(sample("nvidia_smi/a100-sxm4-80gb.xml"))
    assert (smi.driver, smi.cuda, smi.attached) == ("535.54.03", "12.2", 4)
    (gpu,) = smi.gpus
    assert (gpu.product, gpu.bus_id, gpu.memory_mib) == ("NVIDIA A100-SXM4-80GB", "00000000:01:00.0", 81920)
    assert gpu.mig is True and gpu.ecc is True
    assert gpu.uncorrectable_since_boot == 0 == gpu.uncorrectable_in_life
    assert gpu.remap_pending is None and gpu.remap_failed is None, "N/A is not `no`"
    assert gpu.recovery_action == "None" and gpu.throttles == () and gpu.pcie_width == (16, 16)
    assert gpu.power_limit_w == (500.0, 500.0)
    assert gpu.fabric_state is None and not gpu.repair_pending and not gpu.unrepairable


def test_nvidia_smi_of_a_newer_driver_splits_sram_errors_and_drops_fields() -> None:
    text = sample("nvidia_smi/rtx-pro-6000-blackwell.xml")
    (gpu,) = nvidia_smi.parse_query(text).gpus
    assert gpu.ecc is False and gpu.mig is None and gpu.uncorrectable_since_boot is None
    assert gpu.remap_pending is False and gpu.recovery_action == "None"
    text = text.replace("<sram_uncorrectable_parity>N/A", "<sram_uncorrectable_parity>2")
    (gpu,) = nvidia_smi.parse_query(text.replace("<dram_uncorrectable>N/A", "<dram_uncorrectable>3")).gpus
    assert gpu.uncorrectable_since_boot == 5


@pytest.mark.parametrize("text", ["", "No devices were found", "<nvidia_smi_log><gpu>", "<html/>"])
def test_what_is_no_query_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"XML|instead"):
        nvidia_smi.parse_query(text)


def test_nvlinks_are_counted_where_they_are_active() -> None:
    whole, part = nvidia_smi.parse_links(sample("nvlink/status-gb200.txt"))
    assert whole.active == 18 and part.active == 2 and whole.speeds[17] == 53.125
    (broken,) = nvidia_smi.parse_links(sample("nvlink/status-v100-inactive.txt"))
    assert broken.gpu == 3 and broken.active == 4 and broken.speeds[5] == 0.0


def test_nvlink_error_counters_have_gpu_link_and_kind() -> None:
    errors = nvidia_smi.parse_link_errors(sample("nvlink/errors-h100.txt"))
    assert errors[0, 17, "CRC"] == 0 and len(errors) == 9
    more = nvidia_smi.parse_link_errors(
        sample("nvlink/errors-h100.txt").replace("1: CRC Errors: 0", "1: CRC Errors: 891")
    )
    assert more[0, 1, "CRC"] == 891


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("xid-119-gsp", [(119, Resolution.RESET_GPU, True)] * 2),
        ("xid-31-43-94", [(43, Resolution.IGNORE, False)] * 2
         + [(31, Resolution.RESTART_APP, False), (94, Resolution.RESTART_APP, False)]),
        ("xid-63-remap", [(63, Resolution.IGNORE, False)]),
        ("xid-79", [(79, Resolution.RESTART_MACHINE, True)]),
        ("lost-without-xid", [(79, Resolution.RESTART_MACHINE, True)]),
        ("nvlink5", [(149, Resolution.NVLINK, True)] * 2 + [(145, Resolution.IGNORE, False)]),
        ("sxid", [(28006, Resolution.IGNORE, False), (20034, Resolution.NVLINK, True)]),
        ("xid-154", [(154, Resolution.RESET_GPU, True), (154, Resolution.IGNORE, False)]),
    ],
)  # fmt: skip
def test_the_kernel_log_tells_which_errors_end_a_node(name: str, wanted: list[tuple[int, Resolution, bool]]) -> None:
    events = kernel_log.parse(sample(f"kernel_log/{name}.txt"), XIDS)
    assert [(event.code, event.resolution, event.fatal) for event in events] == wanted
    assert all(re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}(\.0)?", event.device) for event in events)


def test_no_xid_is_in_two_groups_and_an_unknown_one_is_told_but_ends_nothing() -> None:
    codes = [code for several in XIDS.values() for code in several]
    assert len(codes) == len(set(codes)) and not set(codes) & {*kernel_log.NVLINK5, kernel_log.RECOVERY_CHANGED}
    (event,) = kernel_log.parse("NVRM: Xid (PCI:0000:04:00): 999, unknown", XIDS)
    assert event.resolution is Resolution.UNKNOWN and not event.fatal
    assert not kernel_log.parse(
        "[1.0] EXT4-fs (nvme0n1p1): mounted\nNVRM: loading NVIDIA UNIX x86_64 Kernel Module", XIDS
    )


def test_dcgm_of_both_generations_is_read() -> None:
    old = dcgm.parse(sample("dcgm/dcgm3-pass.txt"))
    assert old.version == "3.1.0" and old.executed_count == 5 and not any(result.is_failure for result in old.results)
    setting = dcgm.parse(sample("dcgm/dcgm4-level1.json"))
    assert (setting.version, setting.driver) == ("4.2.3", "580.82.09")
    assert [(result.status, result.severity, result.is_failure) for result in setting.results] == [
        ("fail", 5, False)
    ], "a setting"
    broken = dcgm.parse(sample("dcgm/dcgm4-memory-fail.json"))
    assert [(result.gpus, result.is_failure) for result in broken.results] == [("0", False), ("3", True), ("0", False)]
    assert broken.executed_count == 2 and "row remappings are pending" in broken.results[1].warnings[0]


@pytest.mark.parametrize("text", ["", "Error: unable to establish a connection", "{", "{}", '{"tests": []}'])
def test_what_is_no_diagnostic_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|diagnostic"):
        dcgm.parse(text)


def test_nccls_log_shows_provider_devices_and_network() -> None:
    p5en = fabric.parse_nccl(sample("nccl/p5en-efa.txt"))
    assert (p5en.nccl, p5en.providers, p5en.nics, p5en.networks) == ("2.23.4", ("efa",), (16,), ("Libfabric",))
    assert p5en.channels == {"AWS Libfabric": 1} and p5en.gdr_channels == 1
    p5 = fabric.parse_nccl(sample("nccl/p5-efa-direct.txt"))
    assert (p5.plugin, p5.providers, p5.fabrics, p5.nics) == ("1.17.2", ("efa",), ("efa-direct",), (32,))
    p4d = fabric.parse_nccl(sample("nccl/p4d-channels.txt"))
    assert p4d.channels == {"AWS Libfabric": 2} and p4d.gdr_channels == 0


def test_nccls_log_shows_that_efa_is_not_used() -> None:
    tcp = fabric.parse_nccl(sample("nccl/provider-tcp.txt"))
    assert tcp.providers == ("tcp;ofi_rxm",) and tcp.nics == () and tcp.nccl == "2.4.6"
    socket = fabric.parse_nccl(sample("nccl/p4d-fallen-back-to-socket.txt"))
    assert socket.providers == () and socket.networks == ("Socket",)
    assert (socket.plugin, socket.nccl) == ("1.17.1", "2.27.7")


def test_efa_devices_are_counted_once_however_many_fabrics_list_them() -> None:
    assert fabric.parse_fi_info(sample("efa/fi_info-p4de.txt")) == (
        "rdmap16s27",
        "rdmap32s27",
        "rdmap144s27",
        "rdmap160s27",
    )
    assert fabric.parse_fi_info(sample("efa/fi_info-efa-direct.txt")) == ("rdmap47s0",)
    assert fabric.parse_fi_info("fi_getinfo: -61 (No data available)") == ()
    assert fabric.parse_fi_info("provider: tcp\n    fabric: 10.0.0.0/24\n    domain: eth0\n") == ()


def test_chrony_bounds_the_error_of_the_clock() -> None:
    seen = clocks.parse_tracking(sample("chronyc/tracking.txt"))
    assert seen.synchronised and seen.offset_s == pytest.approx(-6.523e-06)
    assert seen.bound_s == pytest.approx(6.523e-06 + 0.001100737 + 0.013639022 / 2)
    assert not clocks.parse_tracking(sample("chronyc/not-synchronised.txt")).synchronised
    with pytest.raises(ValueError, match="no `chronyc tracking`"):
        clocks.parse_tracking("506 Cannot talk to daemon")
