"""Rules about the GPU nodes."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from infra.plan.catalogue import quota
from infra.plan.checks.finding import Case, Draft, error, info, warning
from infra.plan.purchase import quota_holds
from infra.spec.campaign import Capacity


def known_instance_type(case: Case) -> Iterator[Draft]:
    """The catalogue has the GPU nodes' type; all other rules need it."""
    name, names = case.spec.nodes.instance_type, case.facts.instance_names
    if case.facts.instance is None:
        nearest = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        cure = f"did you mean {', '.join(nearest)}?" if nearest else f"the catalogue has: {', '.join(names)}"
        yield error("nodes.instance_type", "the catalogue has no instance type of this name", seen=name, cure=cure)


def supported_accelerator(case: Case) -> Iterator[Draft]:
    """The trainer supports only CUDA devices."""
    instance = case.facts.instance
    if instance is not None and instance.maker != "nvidia":
        message, cure = "the trainer does not run on this accelerator", "choose a type with NVIDIA GPUs"
        yield error("nodes.instance_type", message, seen=f"{instance.name} has {instance.accelerator}", cure=cure)


def ranks_per_accelerator(case: Case) -> Iterator[Draft]:
    """Each rank of a node has an accelerator, and no accelerator is idle."""
    instance, ranks = case.facts.instance, case.ranks_per_node
    if instance is None or ranks is None:
        return
    detail = f"{ranks} ranks on {instance.accelerators} x {instance.accelerator}"
    if ranks > instance.accelerators:
        cure = f"write {instance.accelerators} or less, or leave it out"
        yield error("nodes.ranks_per_node", "more ranks than accelerators on a node", seen=detail, cure=cure)
    elif ranks < instance.accelerators:
        cure = "leave it out: one rank per accelerator"
        yield warning("nodes.ranks_per_node", "some accelerators stay idle but are paid for", seen=detail, cure=cure)


def on_demand_price(case: Case) -> Iterator[Draft]:
    """Types that are sold only as capacity blocks are not bought otherwise."""
    nodes, instance = case.spec.nodes, case.facts.instance
    if instance is None or instance.price_usd_per_hour is not None or not instance.capacity_block:
        return
    if nodes.capacity in (Capacity.ON_DEMAND, Capacity.SPOT):
        message = "this type has no on-demand price: it is sold by capacity block"
        cure = "write capacity: capacity-block"
        yield warning("nodes.capacity", message, seen=f"{instance.name} with capacity: {nodes.capacity}", cure=cure)


def gpu_node_quota(case: Case) -> Iterator[Draft]:
    """The account's vCPU quota of the family has room for all nodes, if it was looked up."""
    nodes, instance, offer = case.spec.nodes, case.facts.instance, case.facts.offer
    if instance is None or offer is None or offer.quota_vcpus is None:
        return
    if not quota_holds(nodes.count, instance, offer.quota_vcpus):
        yield error(
            "nodes.count",
            f"the account's quota of {instance.quota_family} instances is too small",
            seen=f"{nodes.count * instance.vcpus} vCPUs wanted, {offer.quota_vcpus} left",
            cure=f"ask for a higher quota in Service Quotas{_code(case)}, or take fewer nodes",
        )


def _code(case: Case) -> str:
    """Return the quota's code in parentheses; empty if the quota is unknown."""
    if case.facts.instance is None:
        return ""
    node_quota = quota(case.facts.instance, spot=case.spec.nodes.capacity is Capacity.SPOT)
    return f" ({node_quota.service} {node_quota.code})" if node_quota else ""


def preflight_profile(case: Case) -> Iterator[Draft]:
    """The preflight profile exists."""
    name = case.spec.preflight.profile
    if name is not None and name not in case.facts.profiles:
        nearest = difflib.get_close_matches(name, case.facts.profiles, n=3)
        cure = f"did you mean {', '.join(nearest)}?" if nearest else "leave it out: the instance type's own profile"
        yield error("preflight.profile", "there is no profile of this name", seen=name, cure=cure)


def one_bandwidth_floor(case: Case) -> Iterator[Draft]:
    """The required all-reduce bandwidth is one figure: a share of the profile's, or the spec's own."""
    preflight = case.spec.preflight
    if preflight.bus_bandwidth_share is None or case.facts.instance is None:
        return
    if preflight.bus_bandwidth_gb_s is not None:
        yield error(
            "preflight.bus_bandwidth_gb_s",
            "two limits for one bandwidth",
            seen=f"bus_bandwidth_share: {preflight.bus_bandwidth_share}, "
            f"bus_bandwidth_gb_s: {preflight.bus_bandwidth_gb_s}",
            cure="leave one of them out",
        )
    elif not case.facts.floor_gb_s:
        name = case.spec.profile
        yield error(
            "preflight.bus_bandwidth_share",
            "the share has no base: the catalogue has no measured bus bandwidth of this type",
            seen=f"{name}, bus_bandwidth_share: {preflight.bus_bandwidth_share}",
            cure="write preflight.bus_bandwidth_gb_s with a figure of your own (nccl-tests, or an earlier campaign's "
            "report), or leave the share out: then the speed is reported only",
        )


def dcgm_in_image(case: Case) -> Iterator[Draft]:
    """DCGM runs in the trainer's container. If its base image lacks DCGM, this shows only when all nodes are up."""
    level = case.spec.preflight.dcgm_level
    if level is not None and case.facts.environment.hardware:
        yield info(
            "preflight.dcgm_level",
            "the diagnostic runs in the trainer's container; without DCGM in it preflight fails after all nodes are up",
            seen=f"dcgm_level: {level}, image.base: {case.spec.image.base}",
            cure="take a base built by images/trainer.Dockerfile, or one of your own with nv-hostengine and dcgmi",
        )
