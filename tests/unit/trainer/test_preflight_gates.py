"""Gates of preflight on what real nodes say: sound ones pass, what is missing shows; sources stand beside samples."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from images import build_args
from infra.campaign.preflight import baked_versions, expectation_of
from infra.campaign.verdicts import judge, of_all
from infra.plan.catalogue import instance_type, limits
from infra.plan.catalogue.expectations import gpu_expectation, least_versions
from infra.plan.catalogue.reading import image_versions, read
from tests.example import example_spec
from tests.root import ROOT
from tests.unit.campaign.test_gang_verdicts import FACTS, probe, report
from tests.unit.trainer.health.test_health_parsers import sample
from trainer.contract import Expectation, HealthReport, Probe, Verdict
from trainer.health import fabrics, probes
from trainer.health.diagnostic import diagnose
from trainer.health.looking import CannotLook, Output, look
from trainer.health.parsers.fabric import parse_nccl
from trainer.health.probes import node_probes

PLAIN = Expectation(
    profile="p", cpus=1, memory_gib=0.1, accelerators=0, local_disk_gib=0, shared_disk_gib=0, mounts=(),
    clock_skew_s=1, all_reduce_mib=1, bus_bandwidth_gb_s=0, limits=limits(),
)  # fmt: skip
DIRECT = sample("nccl/p5-efa-direct.txt") + "x:1:2 [0] NCCL INFO Using network Libfabric\n"
CHANNEL = "x:1:2 [0] NCCL INFO Channel 00/0 : 1[1] -> 8[0] [send] via NET/Libfabric/0{how}\n"


@pytest.mark.parametrize(
    ("said", "baked", "fits"),
    [
        # modinfo of Amazon's driver in Bottlerocket: bottlerocket-os/bottlerocket-kernel-kit pull 313, 2025-11-11
        ("2.17.3g\n", "2.17.3", True),
        # A p6-b200's kernel driver: awslabs/awsome-distributed-ai pull 1239, review of 2026-08-25
        ("3.3.0g\n", "3.3.0", True),
        ("3.3.0g\n", "3.3", True),
        # The mainline kernel's module, which has no suffix
        ("2.6.0\n", "3.1.0", False),
        ("2.17.30g\n", "2.17.3", False),
    ],
)
def test_amazons_efa_module_is_the_version_that_its_package_is(
    said: str, baked: str, fits: bool, tmp_path: Path
) -> None:
    def tools(*command: str, timeout_s: float = 0) -> Output:
        if command == ("cat", "/sys/module/efa/version"):
            return Output(0, said, "")
        raise CannotLook("no such tool")

    asked = PLAIN.model_copy(update={"efa_devices": 32, "versions": {"efa": baked}})
    (seen,) = [one for one in node_probes(asked, tmp_path, tmp_path, tools) if one.name == "version efa"]
    assert seen.verdict is (Verdict.PASS if fits else Verdict.FAIL), seen


OWN = "ami-0123456789abcdef0"


@pytest.mark.parametrize(
    ("nodes", "driver", "module", "wrong"),
    [
        ("bake", None, None, []),
        ("bake", "580.200.01", "3.3.0g", ["driver", "efa"]),
        ("eks", "580.200.01", "3.3.0g", []),
        (OWN, "595.45.04", "2.12.1g", []),
        ("eks", "570.195.03", "3.3.0g", ["driver"]),
        (OWN, "580.65.06", "2.1.1g", ["efa"]),
    ],
)
def test_baked_versions_are_demanded_of_our_bake_and_a_fit_of_nccl_and_cuda_elsewhere(
    nodes: str, driver: str | None, module: str | None, wrong: list[str], tmp_path: Path
) -> None:
    asked = expectation_of(example_spec(image={"base": "bivouac/base:host", "nodes": nodes}), None, image_versions())
    asked = asked.model_copy(update={"throughput_mib": 0})  # no minute of writing to this machine's disk
    baked = baked_versions(image_versions())
    query = sample("nvidia_smi/a100-sxm4-80gb.xml").replace("535.54.03", driver or baked["driver"])

    def tools(*command: str, timeout_s: float = 0) -> Output:
        if command == ("cat", "/sys/module/efa/version"):
            return Output(0, module or baked["efa"], "")
        if command == ("nvidia-smi", "-q", "-x"):
            return Output(0, query, "")
        raise CannotLook("no such tool")

    probes = [one for one in node_probes(asked, tmp_path, tmp_path, tools) if one.name.startswith("version ")]
    assert [one.name for one in probes] == ["version driver", "version efa"]
    failed = [one for one in probes if one.verdict is Verdict.FAIL]
    assert [one.name.removeprefix("version ") for one in failed] == wrong, probes
    assert all(of_all(one) for one in failed), "the pilot alone tells it"
    assert all(("bake again" in one.cure) is (nodes == "bake") for one in failed)
    assert all(nodes == "bake" or "image.nodes" in one.cure for one in failed)


def test_the_floor_of_the_driver_is_that_of_the_trainer_images_cuda() -> None:
    cuda = re.search(r"^nvidia-cuda-runtime==(\d+)\.", (ROOT / "requirements/image.txt").read_text(), re.MULTILINE)
    source = read("expectations")["least_versions"]["source"]
    assert cuda and f"CUDA {cuda[1]}.x needs {least_versions()['driver']} or newer" in source


def test_the_loaded_nccl_is_compared_with_the_containers_and_that_with_the_pinned() -> None:
    pinned = re.search(r"^nvidia-nccl-cu13==(\S+)", (ROOT / "requirements/image.txt").read_text(), re.MULTILINE)
    assert pinned and fabrics.wheel_nccl() == fabrics.loaded_nccl() == pinned[1]
    log = parse_nccl(f"x:1:1 [0] NCCL INFO NCCL version {pinned[1]}+cuda13.0\n")
    assert [one.verdict for one in fabrics.carried_probes(log, {})] == [Verdict.PASS]
    (silent,) = fabrics.carried_probes(parse_nccl(""), {})
    assert silent.ok and silent.seen == pinned[1], "only the first rank of all prints its version"
    (other,) = fabrics.carried_probes(parse_nccl("x:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n"), {})
    assert not other.ok and "LD_LIBRARY_PATH" in other.cure and "images/versions.yaml" not in other.cure


def test_the_plugin_is_held_against_the_images_word_and_without_one_only_told() -> None:
    log = parse_nccl(DIRECT)
    told = {one.name: one for one in fabrics.carried_probes(log, {})}["version aws-ofi-nccl"]
    assert told.ok and told.seen == "1.17.2" and "does not say" in told.wanted
    for word, ok in (("1.17.2", True), ("1.20.0", False)):
        seen = {one.name: one for one in fabrics.carried_probes(log, {fabrics.PLUGIN_VARIABLE: word})}
        assert seen["version aws-ofi-nccl"].ok is ok
    assert f"{fabrics.PLUGIN_VARIABLE}=" in (ROOT / "images/trainer.Dockerfile").read_text()


def test_a_log_that_does_not_say_how_many_devices_it_found_passes_nothing_unseen() -> None:
    seen = fabrics.nccl_probe(parse_nccl(DIRECT.replace(" (found 32 nics)", "")), 32)
    assert seen.verdict is Verdict.FAIL and "does not say how many" in seen.seen
    assert fabrics.nccl_probe(parse_nccl(DIRECT), 32).ok


def test_a_gang_with_all_channels_through_host_memory_fails_where_the_type_has_better() -> None:
    staged, direct = (parse_nccl(DIRECT + CHANNEL.format(how=how) * 3) for how in ("", "/GDRDMA"))
    bad = fabrics.nccl_probe(staged, 32, gpudirect=True)
    assert not bad.ok and "no channel between nodes by GPUDirect" in bad.seen and "efa_nv_peermem" in bad.cure
    assert fabrics.nccl_probe(staged, 32).ok and fabrics.nccl_probe(direct, 32, gpudirect=True).ok
    assert not re.search(r"\d", bad.seen), "the same words on every node, so that none is replaced for it"


ENGINE = """#!{python}
import signal, socket, sys, time
signal.signal(signal.SIGTERM, lambda *_: (open({marks!r} + "/ended", "a").write("x"), sys.exit(0)))
listening = socket.socket(socket.AF_UNIX)
time.sleep(0.2)
listening.bind(sys.argv[sys.argv.index("--domain-socket") + 1])
open({marks!r} + "/started", "a").write("x")
time.sleep(0.2)
listening.listen()
while True:
    signal.pause()
"""
CLIENT = """#!{python}
import socket, sys
given = sys.argv[sys.argv.index("--host") + 1] if "--host" in sys.argv else "unix:///tmp/nv-hostengine"
try:
    socket.socket(socket.AF_UNIX).connect(given.removeprefix("unix://"))
except OSError:
    print("Error: unable to establish a connection to the specified host: localhost", file=sys.stderr)
    sys.exit(1)
if "--configfile" in sys.argv:
    overlay = open(sys.argv[sys.argv.index("--configfile") + 1]).read()
    open({marks!r} + "/overlay", "w").write(overlay)
print(open({answer!r}).read())
"""


@pytest.fixture
def dcgm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """DCGM's two programs as far as the diagnostic needs them: a client that gets nothing without an engine."""
    answer = ROOT / "tests/samples/dcgm/dcgm4-level1.json"
    for name, text in (("nv-hostengine", ENGINE), ("dcgmi", CLIENT)):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text.format(python=sys.executable, marks=str(tmp_path), answer=str(answer)))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


def test_the_diagnostic_starts_the_engine_that_it_needs_and_ends_it(dcgm: Path) -> None:
    seen = diagnose(1, look)
    assert seen.verdict is Verdict.PASS, seen
    assert (dcgm / "started").read_text() == (dcgm / "ended").read_text() == "x"


def test_dcgm_is_told_of_the_lanes_that_a_type_wires_and_of_nothing_elsewhere(dcgm: Path) -> None:
    """Held against AWS's own file for the L4: aws/aws-k8s-tester, gpu_unit_tests/tests/dcgm-diag.yaml."""
    for name in ("p5.48xlarge", "g6e.8xlarge", "g6.8xlarge"):
        expected = gpu_expectation(instance_type(name))
        assert expected is not None and not (dcgm / "overlay").exists(), "DCGM's own values hold for x16"
        assert diagnose(2, look, expected.pcie).verdict is Verdict.PASS
    overlay = yaml.safe_load((dcgm / "overlay").read_text())
    least = {"min_pci_generation": 1.0, "min_pci_width": 8.0}
    pcie = {"is_allowed": True, "h2d_d2h_single_pinned": least, "h2d_d2h_single_unpinned": least}
    (sku,) = overlay["skus"]
    assert overlay["spec"] == "dcgm-diag-v1" and (sku["id"], sku["pcie"]) == ("27b8", pcie)


def test_an_engine_that_ends_at_once_is_told_with_its_words(dcgm: Path) -> None:
    (dcgm / "bin/nv-hostengine").write_text("#!/bin/sh\necho no driver is here; exit 3\n")
    seen = diagnose(1, look)
    assert seen.verdict is Verdict.BLIND and "ended with 3: no driver is here" in seen.seen


def test_an_image_without_dcgm_is_told_with_the_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    seen = diagnose(2, look)
    assert (
        seen.verdict is Verdict.BLIND and "DCGM is not in the image" in seen.seen and "trainer.Dockerfile" in seen.cure
    )


def test_the_container_holds_what_the_diagnostic_starts_in_one_version_with_the_nodes() -> None:
    arguments = build_args.build_args(ROOT, f"sha256:{'a' * 64}")
    parts = dict(part.split("=") for part in arguments["DCGM_PACKAGES"].split(","))
    assert {"datacenter-gpu-manager-4-core", "datacenter-gpu-manager-4-cuda13"} <= set(parts)
    (version,) = set(parts.values())
    node = yaml.safe_load((ROOT / "images/versions.yaml").read_text())["versions"]["dcgm"]["package"]
    assert node.endswith(version.partition(":")[2]), "the node's and the container's are one release"


def test_throughput_is_measured_with_many_calls_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier that answers no call before eight are under way: one stream would never get an answer."""
    together = threading.Barrier(8)

    def slow(real: Callable[..., int]) -> Callable[..., int]:
        def call(*arguments: object) -> int:
            together.wait(20)
            return real(*arguments)

        return call

    monkeypatch.setattr(probes.os, "write", slow(os.write))
    monkeypatch.setattr(probes.os, "readv", slow(os.readv))
    seen = probes.measure(tmp_path, 64)
    assert seen.mib == 64 and seen.write_mb_s > 0 and seen.read_mb_s > 0 and not list(tmp_path.iterdir())


def test_a_tier_that_hardly_moves_is_measured_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "_LONGEST_S", 0.0)
    seen = probes.measure(tmp_path, 512)
    assert seen.mib == 16 * 8, "one call of each stream"
    assert not list(tmp_path.iterdir())


def test_a_slow_file_system_is_no_nodes_fault_though_each_sees_another_figure() -> None:
    slow = {
        name: report(name, probe("shared_throughput", False, f"write {100 + n} MB/s")) for n, name in enumerate("abc")
    }
    seen = judge(slow, FACTS)
    assert not seen.unfit and not seen.common and not seen.fabric and seen.failed_shared_names == {"shared_throughput"}
    one = judge({**slow, "a": report("a", probe("shared_throughput", True))}, FACTS)
    assert not one.unfit and not one.fabric


def disk(node: str, figure: float | None) -> HealthReport:
    return report(node, Probe(name="local_throughput", ok=True, seen="x", wanted="w", figure=figure))


def test_a_node_whose_disks_are_far_slower_than_the_gangs_is_replaced_and_told_why() -> None:
    seen = judge({"a": disk("a", 9000), "b": disk("b", 900), "c": disk("c", 8500)}, FACTS)
    (bad,) = seen.unfit
    assert bad["node"] == "b" and "third of the gang's median, 2833 MB/s" in bad["probes"][0]["wanted"]
    assert judge({"a": disk("a", 9000), "b": disk("b", 3200), "c": disk("c", 8500)}, FACTS).unfit == []
    assert judge({"a": disk("a", 9000), "b": disk("b", 900)}, FACTS).unfit == [], "of two, which is the odd one?"
    assert judge({name: disk(name, None) for name in "abc"}, FACTS).unfit == []
