"""The expectation for a campaign's nodes: the catalogue's profile, changed by the spec and the baked versions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from infra.folders import asset
from infra.plan import catalogue
from infra.plan.catalogue.expectations import gpu_expectation, least_versions
from infra.plan.catalogue.thresholds import number
from infra.spec.campaign import Spec
from infra.spec.names import data_source, shared_tier
from trainer.contract import AT_LEAST, LOCAL_CHECKPOINTS, Expectation

VERSIONS = asset("images/versions.yaml")
_THROUGHPUT_MIB = 4096
_TIB_GIB = 1024
_BAKED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("driver", ("nvidia_driver", "version")),
    ("efa", ("efa", "kernel_module")),
)
"""Component of the node image -> its path in images/versions.yaml. NCCL and its plugin are absent: the ranks load them
from the trainer's container."""


def expectation_of(spec: Spec, time_source: str | None, versions: Mapping[str, Any]) -> Expectation:
    """Return the expectation; a written profile (`this-machine`) changes only in time source and DCGM level."""
    name = spec.profile
    base = catalogue.expectation(name)
    changes: dict[str, Any] = {"time_source": time_source, "dcgm_level": spec.preflight.dcgm_level}
    if spec.preflight.bus_bandwidth_gb_s is not None:
        changes["bus_bandwidth_gb_s"] = spec.preflight.bus_bandwidth_gb_s
    elif spec.preflight.bus_bandwidth_share is not None:
        usual_gb_s = base.bus_bandwidth_gb_s / number("floor_share")
        changes["bus_bandwidth_gb_s"] = usual_gb_s * spec.preflight.bus_bandwidth_share
    if name in {hardware.name for hardware in catalogue.instance_types()}:
        hardware = catalogue.instance_type(name)
        changes |= {
            "gpus": gpu_expectation(hardware),
            "efa_devices": hardware.efa_interfaces,
            "throughput_mib": _THROUGHPUT_MIB,
            "shared_mb_s": shared_floor_mb_s(spec),
            "versions": node_versions(spec, versions),
        }
    return base.model_copy(update=changes)


def in_s3(spec: Spec, expectation: Expectation, identity: str, data_digest: str) -> Expectation:
    """Return the expectation of nodes that find S3 where others mount the shared file system."""
    place = (spec.account, spec.region)
    return expectation.model_copy(
        update={
            "mounts": (LOCAL_CHECKPOINTS,),
            "shared_disk_gib": 0.0,
            "shared_tier": shared_tier(*place, spec.campaign, identity),
            "data_source": data_source(*place, data_digest),
        }
    )


def shared_floor_mb_s(spec: Spec) -> float:
    """Return the floor for one node while all nodes write or read, in MB/s; 0 without a shared file system."""
    shared = spec.storage.shared
    if shared is None:
        return 0.0
    # SCRATCH_2 has one speed, even where the field still holds the default of PERSISTENT_2.
    tier = shared.throughput_mbs_per_tib if shared.deployment == "PERSISTENT_2" else None
    per_tib = tier or number("scratch_mb_s_per_tib")
    total = shared.capacity_gib / _TIB_GIB * per_tib
    client = number("client_efa_mb_s" if shared.efa else "client_mb_s")
    return min(total / spec.nodes.count, client) * number("shared_share")


def node_versions(spec: Spec, document: Mapping[str, Any]) -> dict[str, str]:
    """Return what the nodes' image must hold: the baked versions of a bake, a floor of an AMI that is not ours."""
    if spec.image.nodes == "bake":
        return baked_versions(document)
    return {component: f"{AT_LEAST}{version}" for component, version in least_versions().items()}


def baked_versions(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions by component; a component that the document does not name is left out."""
    rows = document.get("versions", document)
    versions = {}
    for component, path in _BAKED:
        value: Any = rows
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None and (version := re.search(r"\d+(\.\d+)+", str(value))):
            versions[component] = version.group()
    return versions


def read_versions() -> dict[str, Any]:
    return dict(yaml.safe_load(VERSIONS.read_text()) or {})
