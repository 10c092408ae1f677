"""Each bad case of a node has its verdict, in words to act on; what cannot be seen is neither good nor bad."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.plan import catalogue
from infra.plan.catalogue import limits, thresholds
from infra.plan.catalogue.expectations import gpu_expectation
from tests.tables import Table
from tests.unit.campaign.test_gang_verdicts import probe, report
from tests.unit.trainer.health.test_health_parsers import sample
from trainer.contract import GpuExpectation, HealthReport, Probe, Verdict
from trainer.contract.exits import TERMINATION_LIMIT_BYTES
from trainer.health import clocks, diagnostic, fabrics, gpus, nvlinks
from trainer.health.__main__ import serialize
from trainer.health.bisection import Group, locate
from trainer.health.fabric import Reading, blame_probe
from trainer.health.looking import CannotLook, Output, look
from trainer.health.parsers import dcgm
from trainer.health.parsers.fabric import parse_nccl
from trainer.health.parsers.nvidia_smi import parse_query
from trainer.health.probes import measure, throughput_probes

TABLE = Table(__file__)

A100 = GpuExpectation(product="A100", count=1, memory_gib=72, nvlinks=12, nvswitch=True)
QUERY = sample("nvidia_smi/a100-sxm4-80gb.xml").replace("<attached_gpus>4", "<attached_gpus>1").replace(
    "<current_mig>Enabled", "<current_mig>Disabled")  # fmt: skip
LINKS = "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-0)\n" + "".join(f"\t Link {n}: 25 GB/s\n" for n in range(12))
ERRORS = "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-0)\n" + "".join(
    f"\t Link {n}: {kind} Errors: 0\n" for n in range(12) for kind in ("Replay", "Recovery", "CRC")
)


FIRST_LINE = "[    0.000000] ip-10-0-0-1 kernel: Linux version 6.12.40-63.114.amzn2023.x86_64\n"


def tools(query: str = QUERY, log: str = FIRST_LINE, links: str = LINKS, errors: str = ERRORS) -> Callable[..., Output]:
    """A node's tools as they answer when they are called so."""

    def answer(*command: str, timeout_s: float = 0) -> Output:
        said = {
            ("nvidia-smi", "-q", "-x"): query,
            ("cat", "/node/kernel.log"): log,
            ("nvidia-smi", "nvlink", "-s"): links,
            ("nvidia-smi", "nvlink", "-e"): errors,
        }
        return Output(0, said[command], "")

    return answer


def verdicts(look: Callable[..., Output], driver: str | None = None) -> dict[str, Probe]:
    return {probe.name: probe for probe in gpus.gpu_probes(A100, limits(), look, driver)}


def test_a_sound_node_passes_every_probe() -> None:
    seen = verdicts(tools(), "535.54")
    assert [one.name for one in seen.values() if one.verdict is not Verdict.PASS] == []
    assert {"gpus", "ecc", "row_remapping", "xid", "nvlinks", "version driver"} <= set(seen)


@TABLE.cases
def test_each_fault_of_a_gpu_fails_its_own_probe_and_no_other(old: str, new: str, probe: str, word: str) -> None:
    assert old in QUERY
    bad = [
        verdict for verdict in verdicts(tools(QUERY.replace(old, new))).values() if verdict.verdict is not Verdict.PASS
    ]
    assert [one.name for one in bad] == [probe] and word in bad[0].seen, bad
    assert bad[0].verdict is Verdict.FAIL and bad[0].cure


def test_a_software_power_cap_under_load_is_no_fault() -> None:
    query = QUERY.replace("sw_power_cap>Not Active", "sw_power_cap>Active")
    assert verdicts(tools(query))["throttling"].ok


@pytest.mark.parametrize(
    ("instance_type", "lanes", "fault"),
    [
        ("g6.8xlarge", 8, ""),  # AWS wires the L4 to x8: aws/aws-k8s-tester pull 806
        ("g6.8xlarge", 16, ""),
        ("g6.8xlarge", 4, "PCIe x4 of x8"),
        ("p4d.24xlarge", 16, ""),
        ("p4d.24xlarge", 8, "PCIe x8 of x16"),
    ],
)
def test_a_link_is_narrow_by_what_the_type_wires_and_not_by_what_the_card_could(
    instance_type: str, lanes: int, fault: str
) -> None:
    wired = gpu_expectation(catalogue.instance_type(instance_type))
    assert wired is not None
    query = QUERY.replace("<current_link_width>16x", f"<current_link_width>{lanes}x")
    clock_limits = {one.name: one for one in gpus.query_probes(parse_query(query), wired, limits())}["clock_limits"]
    assert clock_limits.ok == (not fault) and fault in clock_limits.seen


def test_an_l40s_is_no_l4() -> None:
    query = QUERY.replace("NVIDIA A100-SXM4-80GB", "NVIDIA L40S")
    wanted = A100.model_copy(update={"product": "L4"})
    assert not next(gpus.gpu_probes(wanted, limits(), tools(query))).ok


def test_fatal_xids_end_a_node_and_an_applications_error_is_only_told() -> None:
    fatal = verdicts(tools(log=FIRST_LINE + sample("kernel_log/xid-119-gsp.txt")))["xid"]
    assert fatal.verdict is Verdict.FAIL and fatal.seen.count("Xid 119") == 1, "each once"
    xid = verdicts(tools(log=FIRST_LINE + sample("kernel_log/xid-31-43-94.txt")))["xid"]
    assert xid.ok and "not fatal: Xid 31" in xid.seen


def test_a_missing_link_names_its_gpu() -> None:
    seen = verdicts(tools(links=LINKS.replace("Link 7: 25 GB/s", "Link 7: <inactive>")))
    assert seen["nvlinks"].seen == "GPU 0: 11" and not seen["nvlinks"].ok


def errors_while(seconds: float, before: str, after: str) -> Probe:
    """The verdict on links whose counters are `after` so many seconds after they were `before`."""
    old, new = (nvlinks.read_errors(tools(errors=text)) for text in (before, after))
    return nvlinks.errors_probe(old, replace(new, at_s=old.at_s + seconds), 100.0)


def test_link_errors_are_judged_by_their_rate_on_working_links_and_old_ones_only_told() -> None:
    old = ERRORS.replace("Link 3: Replay Errors: 0", "Link 3: Replay Errors: 5")
    told = errors_while(4.0, old, old)
    assert told.ok and told.seen == "in all since the driver was loaded GPU 0 link 3: 5 Replay"
    few = errors_while(4.0, old, old.replace("Link 3: Replay Errors: 5", "Link 3: Replay Errors: 12"))
    assert few.ok and "12 Replay" in few.seen, "a handful is corrected"
    assert errors_while(4.0, ERRORS, ERRORS.replace("Link 3: CRC Errors: 0", "Link 3: CRC Errors: 399")).ok
    bad = errors_while(4.0, ERRORS, ERRORS.replace("Link 3: CRC Errors: 0", "Link 3: CRC Errors: 400"))
    assert bad.verdict is Verdict.FAIL and bad.seen.startswith("GPU 0 link 3: 100 CRC errors/s; ") and bad.cure
    assert errors_while(4.0, "", ERRORS).verdict is errors_while(4.0, ERRORS, "").verdict is Verdict.BLIND


def test_every_verdict_has_a_threshold_or_a_state_with_a_source() -> None:
    table = thresholds()
    judged = {name for number in table.numbers.values() for name in number.probe.split(", ")} | set(table.states)
    names = {name for name in verdicts(tools(), "535.54") if not name.startswith("version ")}
    assert names <= judged, names - judged
    assert all(number.source for number in table.numbers.values()) and all(table.states.values())


def test_another_driver_than_the_baked_one_is_told_with_the_file_that_decides() -> None:
    seen = verdicts(tools(), "580.159.03")["version driver"]
    assert not seen.ok and seen.seen == "535.54.03" and "images/versions.yaml" in seen.cure
    assert gpus.version_probe("nccl", "2.30.40", "2.30.4").ok is False
    assert gpus.version_probe("driver", "580.159.03", "580").ok
    assert gpus.version_probe("nccl", None, "2.28.9").verdict is Verdict.BLIND


@pytest.mark.parametrize("target", [">= 580", "580.159.03"])
@pytest.mark.parametrize("words", ["", "N/A", "[Unknown Error]"])
def test_a_driver_that_does_not_tell_its_version_is_none_that_is_too_old(words: str, target: str) -> None:
    assert gpus.version_probe("driver", words, target).verdict is Verdict.BLIND


@pytest.mark.parametrize(
    ("version", "fits"), [("2.4", True), ("2.4.0g", True), ("3.0", True), ("2.3.9", False), ("2", False)]
)
def test_a_floor_is_met_by_the_same_version_with_fewer_parts(version: str, fits: bool) -> None:
    assert gpus.version_probe("efa", version, ">= 2.4.0").ok is fits


def test_a_kernel_log_that_nobody_wrote_is_none_without_errors() -> None:
    assert verdicts(tools(log=""))["xid"].verdict is Verdict.BLIND


def test_a_tool_that_is_not_there_or_refuses_makes_no_node_unfit() -> None:
    def refuses(*command: str, timeout_s: float = 0) -> Output:
        if command[0] == "cat":
            return Output(1, "", "cat: /node/kernel.log: No such file or directory")
        raise CannotLook(f"there is no {command[0]} in the image")

    seen = verdicts(refuses)
    assert {one.verdict for one in seen.values()} == {Verdict.BLIND}
    assert "No such file" in seen["xid"].seen and "bivouac-kernel-log" in seen["xid"].cure
    assert HealthReport(node="n", probes=tuple(seen.values())).fit


def test_looking_tells_a_missing_tool_from_one_that_hangs_or_fails() -> None:
    with pytest.raises(CannotLook, match="there is no no-such-tool"):
        look("no-such-tool")
    with pytest.raises(CannotLook, match=r"has not answered in 0 s"):
        look("sleep", "5", timeout_s=0.05)
    assert look("sh", "-c", "echo seen; exit 3") == Output(3, "seen\n", "")


def test_dcgm_fails_on_hardware_not_on_settings_and_sees_nothing_when_all_is_skipped() -> None:
    assert diagnostic.diagnostic_probe(dcgm.parse(sample("dcgm/dcgm3-pass.txt")), 1).ok
    setting = diagnostic.diagnostic_probe(dcgm.parse(sample("dcgm/dcgm4-level1.json")), 1)
    assert setting.ok, "persistence mode is a setting"
    broken = diagnostic.diagnostic_probe(dcgm.parse(sample("dcgm/dcgm4-memory-fail.json")), 2)
    assert not broken.ok and broken.seen.startswith("memory on GPU 3: GPU 3 has uncorrectable")
    skipped = sample("dcgm/dcgm4-memory-fail.json").replace('"Pass"', '"Skip"').replace('"Fail"', '"Skip"')
    assert diagnostic.diagnostic_probe(dcgm.parse(skipped), 2).verdict is Verdict.BLIND


@pytest.mark.parametrize(
    ("name", "devices", "word"),
    [
        ("p5-efa-direct", 16, "found 32 devices"),
        ("provider-tcp", 32, "provider tcp;ofi_rxm"),
        ("p4d-fallen-back-to-socket", 4, "network Socket"),
        ("p4d-channels", 4, "provider none"),
    ],
)
def test_a_log_without_efa_or_with_too_few_devices_fails(name: str, devices: int, word: str) -> None:
    seen = fabrics.nccl_probe(parse_nccl(sample(f"nccl/{name}.txt")), devices)
    assert not seen.ok and word in seen.seen


def test_a_log_that_shows_efa_with_all_devices_passes() -> None:
    assert fabrics.nccl_probe(parse_nccl(sample("nccl/p5en-efa.txt")), 16).ok
    direct = sample("nccl/p5-efa-direct.txt") + "x:1:2 [0] NCCL INFO Using network Libfabric\n"
    assert "efa-direct" in fabrics.nccl_probe(parse_nccl(direct), 32).seen
    assert fabrics.nccl_probe(parse_nccl(direct), 32).ok
    mixed = direct + "x:1:2 [0] NCCL INFO Channel 00/0 : 1[1] -> 8[0] [send] via NET/Socket/0\n"
    assert not fabrics.nccl_probe(parse_nccl(mixed), 32).ok


def test_efa_devices_are_counted_in_sysfs_by_amazons_number(tmp_path: Path) -> None:
    for name, vendor in (("rdmap16s27", "0x1d0f"), ("rdmap32s27", "0x1d0f"), ("mlx5_0", "0x15b3")):
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "device/vendor").write_text(f"{vendor}\n")

    def fi_info(*command: str, timeout_s: float = 0) -> Output:
        return Output(0, sample("efa/fi_info-p4de.txt"), "")

    seen = {one.name: one for one in fabrics.efa_probes(4, fi_info, tmp_path)}
    assert not seen["efa_devices"].ok and seen["efa_devices"].seen == "2 in /sys/class/infiniband"
    assert seen["efa_libfabric"].ok and not list(fabrics.efa_probes(0, fi_info, tmp_path))


def test_a_clock_is_judged_by_chronys_bound_and_by_awss_date() -> None:
    tracking = clocks.parse_tracking(sample("chronyc/tracking.txt"))
    assert clocks.tracking_probe(tracking, 0.1).ok and not clocks.tracking_probe(tracking, 0.001).ok
    assert not clocks.tracking_probe(clocks.parse_tracking(sample("chronyc/not-synchronised.txt")), 5).ok
    assert clocks.date_probe(100.2, 100.4, 100.0, 0.1).ok, "Date 100 is any moment of that second"
    assert clocks.date_probe(101.05, 101.1, 100.0, 0.1).ok
    late, early = clocks.date_probe(103.0, 103.1, 100.0, 0.1), clocks.date_probe(90.0, 90.2, 100.0, 0.1)
    assert not late.ok and "2.000" in late.seen and not early.ok and "9.800" in early.seen


@given(st.integers(3, 40), st.data())
def test_clocks_that_are_off_are_the_ones_that_fail_whichever_they_are(nodes: int, data: st.DataObject) -> None:
    bad = data.draw(
        st.dictionaries(st.integers(0, nodes - 1), st.sampled_from([-9.0, -0.6, 0.6]), max_size=(nodes - 1) // 2)
    )
    jitter = st.floats(-0.01, 0.01)
    true = [bad.get(node, 0.0) + data.draw(jitter) for node in range(nodes)]
    seen = [
        clocks.skew_probe(me, lambda: [*map(str, range(nodes))], [one - true[0] for one in true], 0.1)
        for me in range(nodes)
    ]
    assert {me for me, one in enumerate(seen) if one.verdict is Verdict.FAIL} == set(bad), (
        "whose clock is the reference"
    )
    assert not any(one.verdict is Verdict.BLIND for one in seen)


def test_throughput_is_measured_and_held_against_its_floor(tmp_path: Path) -> None:
    seen = measure(tmp_path, 9)
    assert seen.write_mb_s > 0 and seen.read_mb_s > 0 and not list(tmp_path.iterdir())
    (slow,) = throughput_probes("local_throughput", tmp_path, 8, 1e9)
    assert slow.verdict is Verdict.FAIL and slow.wanted == ">= 1000000000 MB/s"
    (free,) = throughput_probes("local_throughput", tmp_path, 8, 0.0)
    assert free.ok and free.figure and "gang" in free.wanted and slow.figure is None
    (gone,) = throughput_probes("local_throughput", tmp_path / "nowhere", 8, 1.0)
    assert gone.verdict is Verdict.BLIND and not list(throughput_probes("x", tmp_path, 0, 1.0))


@given(st.integers(3, 40), st.sets(st.integers(0, 39), max_size=6))
def test_bisection_names_exactly_the_slow_nodes_as_long_as_two_sound_ones_are_left(nodes: int, slow: set[int]) -> None:
    slow = {node for node in slow if node < nodes}
    if not slow or nodes - len(slow) < 2 or (nodes > 3 and len(slow) > nodes // 3):
        return
    asked = list[list[Group]]()

    def sound(groups: Sequence[Group]) -> list[bool]:
        assert all(len(group) >= 2 for group in groups)
        together = [node for group in groups for node in group]
        assert len(together) == len(set(together)), "measured at the same time, so no node twice"
        asked.append(list(groups))
        return [not slow & set(group) for group in groups]

    located = locate(range(nodes), sound)
    assert set(located.slow) == slow
    assert located.rounds == len(asked) <= 2 * nodes.bit_length() + 6


def test_a_fabric_that_is_slow_between_all_blames_nobody() -> None:
    nowhere = locate(range(8), lambda groups: [False for _ in groups])
    assert nowhere.slow == () and nowhere.rounds <= 6
    racks = locate(range(8), lambda groups: [len({node // 4 for node in group}) == 1 for group in groups])
    assert racks.slow == (), "each half is sound: the fault lies between them"


def test_the_slow_node_alone_is_unfit_and_its_report_says_with_whom() -> None:
    located = locate(range(4), lambda groups: [2 not in group for group in groups])
    readings: dict[Group, Reading] = {
        (2, 3): Reading(True, 0.4),
        (0, 1): Reading(True, 9.0),
        (2, 0): Reading(False, 0.5),
    }
    names = ["a", "b", "c", "d"]
    assert located.slow == (2,)
    bad = blame_probe(2, names, located, readings, 5.0)
    assert not bad.ok and bad.seen == "0.400 GB/s with d; 0.500 GB/s and a wrong sum with a"
    assert blame_probe(0, names, located, readings, 5.0).seen == "the slow node is c"


def test_a_report_always_fits_into_a_termination_message_and_keeps_what_failed() -> None:
    many = [probe(f"probe-{number}", number % 3 > 0, "word " * 60, looked=number % 2 == 0) for number in range(30)]
    text = serialize(report("node", *many))
    assert len(text.encode()) <= TERMINATION_LIMIT_BYTES
    kept = HealthReport.model_validate_json(text)
    assert [one.verdict for one in kept.probes] == [one.verdict for one in many]
    small = report("node", probe("ecc", True), probe("xid", False, "Xid 79"))
    assert HealthReport.model_validate_json(serialize(small)) == small
    huge = report("node", *[probe(f"{'n' * 60}-{number}", number > 50, "s" * 500) for number in range(80)])
    assert len(serialize(huge).encode()) <= TERMINATION_LIMIT_BYTES
    assert not HealthReport.model_validate_json(serialize(huge)).fit
