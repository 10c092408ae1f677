"""What a node is held against follows from instance type, spec and what was baked."""

from __future__ import annotations

import pytest

from infra.campaign.preflight import baked_versions, expectation_of, shared_floor_mb_s
from infra.plan.catalogue import instance_type, instance_types
from infra.plan.catalogue.expectations import gpu_expectation
from infra.plan.catalogue.reading import image_versions, read
from tests.example import example_spec

BAKED = {
    "versions": {
        "nvidia_driver": {"version": "580.159.03"},
        "efa": {"version": "1.49.0", "kernel_module": "3.1.0", "ofi_nccl": "1.20.0"},
        "nccl": {"package": "libnccl-2.28.9-1+cuda13.0"},
        "trainer_image": {"packages": []},
    }
}


def test_an_instance_type_is_expected_with_all_its_hardware_and_what_was_baked() -> None:
    expectation = expectation_of(example_spec(preflight={"dcgm_level": 2}), "https://s3.example", BAKED)
    gpus = expectation.gpus
    assert gpus is not None and (gpus.product, gpus.count, gpus.nvlinks, gpus.nvswitch) == ("H100", 8, 18, True)
    assert (expectation.efa_devices, expectation.dcgm_level, expectation.time_source) == (32, 2, "https://s3.example")
    assert expectation.versions == {"driver": "580.159.03", "efa": "3.1.0"}, (
        "the container's NCCL is no matter of the node image"
    )
    assert expectation.bus_bandwidth_gb_s == pytest.approx(0.7 * 437)


def test_the_share_of_the_profiles_bandwidth_is_the_specs_to_choose() -> None:
    expectation = expectation_of(example_spec(preflight={"bus_bandwidth_share": 0.9}), None, {})
    assert expectation.bus_bandwidth_gb_s == pytest.approx(0.9 * 437)


def test_a_type_without_a_measured_figure_is_held_against_the_specs_own() -> None:
    asked = {"nodes": {"instance_type": "p5en.48xlarge"}, "preflight": {"bus_bandwidth_gb_s": 300}}
    assert expectation_of(example_spec(**asked), None, {}).bus_bandwidth_gb_s == 300
    assert expectation_of(example_spec(preflight={"bus_bandwidth_gb_s": 400}), None, {}).bus_bandwidth_gb_s == 400


def test_gpudirect_is_asked_for_where_a_source_says_that_the_type_has_it() -> None:
    def asked(name: str) -> bool:
        return expectation_of(example_spec(nodes={"instance_type": name}), None, {}).gpudirect

    assert all(asked(name) for name in ("p4d.24xlarge", "p5.48xlarge", "p5en.48xlarge", "p6-b300.48xlarge"))
    assert not any(asked(name) for name in ("p5.4xlarge", "g6e.48xlarge", "g7e.48xlarge"))
    names = {item.name for item in instance_types()}
    assert set(read("expectations")["gpudirect"]["types"]) <= names, "a name that no type has judges nothing"


def test_a_rehearsal_holds_this_machine_against_what_it_is() -> None:
    expectation = expectation_of(example_spec(preflight={"profile": "this-machine"}), "http://aws", BAKED)
    assert expectation.gpus is None and expectation.efa_devices == 0 and not expectation.versions
    assert expectation.throughput_mib > 0 and expectation.shared_mb_s > 0 and expectation.time_source == "http://aws"


def test_a_nodes_share_of_the_file_system_follows_from_capacity_tier_and_nodes() -> None:
    storage = {"shared": {"capacity_gib": 9600, "throughput_mbs_per_tib": 500, "efa": True}}
    four = shared_floor_mb_s(example_spec(storage=storage))
    assert four == pytest.approx(0.5 * 9600 / 1024 * 500 / 4)
    assert shared_floor_mb_s(example_spec(storage=storage, nodes={"count": 8})) == pytest.approx(four / 2)


def test_no_node_is_asked_for_more_than_fsx_promises_a_client_or_a_write() -> None:
    """5 Gbit/s of a server to a client without EFA; scratch writes at half of what it reads."""
    fast = {"shared": {"capacity_gib": 9600, "throughput_mbs_per_tib": 1000}}
    assert shared_floor_mb_s(example_spec(storage=fast, nodes={"count": 2})) <= 5000 / 8
    scratch = {"shared": {"capacity_gib": 2400, "deployment": "SCRATCH_2"}}
    promised = 2400 / 1024 * 100 / 4
    assert shared_floor_mb_s(example_spec(storage=scratch)) == pytest.approx(promised / 2)


def test_only_what_the_file_of_versions_names_is_held_against_anything() -> None:
    assert baked_versions({}) == {} and baked_versions({"trainer_image": {"packages": []}}) == {}
    assert set(baked_versions(image_versions())) == {"driver", "efa"}


@pytest.mark.parametrize("item", instance_types(), ids=lambda item: item.name)
def test_every_type_of_the_catalogue_says_what_its_gpus_must_show(item: object) -> None:
    wanted = gpu_expectation(item)  # type: ignore[arg-type]
    assert (wanted is None) == (item.maker == "neuron")  # type: ignore[attr-defined]
    if wanted is not None:
        # None is insisted on where no source states how many there are: a sound node must not be replaced for a guess.
        assert wanted.nvlinks == (item.nvlinks or 0)  # type: ignore[attr-defined]
        assert (wanted.pcie is not None) == (wanted.product == "L4"), "the only GPU that AWS wires to fewer lanes"


def test_links_that_no_source_states_are_not_insisted_on() -> None:
    guessed = gpu_expectation(instance_type("p6-b300.48xlarge"))
    assert guessed is not None and (guessed.nvlinks, guessed.nvswitch) == (0, True), (
        "its fabric is judged where it is told"
    )
