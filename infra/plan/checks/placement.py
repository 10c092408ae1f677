"""Rules about names, account, region, zone, network and Kubernetes version."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from datetime import timedelta
from ipaddress import IPv4Network

from infra.errors import UserError
from infra.plan.checks.finding import Case, Draft, error, info, warning
from infra.plan.zones import control_plane_zones
from infra.spec.campaign import MAX_NAME
from infra.spec.image_reference import in_registry
from infra.spec.names import Names, buckets

SERVICE_NETWORK = IPv4Network("172.20.0.0/16")
"""Network of the cluster's Kubernetes services."""
SUPPORT_NOTICE = timedelta(days=60)
_OLD_BASE_DAYS = 180
"""Our own: AWS publishes a release every one to three weeks, with the mended faults of kernel and driver."""
PARTITION = "aws"
"""Partition of every ARN in this code: others (China, GovCloud) have other service names and condition keys."""
_LARGEST_ATTEMPT = 999


def aws_name_length(case: Case) -> Iterator[Draft]:
    """Every name made from the campaign's name fits the limit of its service."""
    names, campaign = Names(case.spec), case.spec.campaign
    limits = [("EKS cluster", names.cluster, 100)]
    limits += [("node group", group, 63) for group in (names.gpu_group, names.system_group)]
    limits += [("IAM role", role, 64) for role in names.roles]
    limits += [("schedule", names.schedule, 64), ("placement group", names.placement_group, 255)]
    limits += [("pod's host name", f"{campaign}-a{_LARGEST_ATTEMPT}-workers-0-{case.spec.nodes.count}", 63)]
    limits += [("bucket", bucket, 63) for bucket in vars(buckets(case.spec.account, case.spec.region)).values()]
    for kind, name, limit in limits:
        if len(name) > limit:
            cure = f"shorten the campaign's name by {len(name) - limit}"
            yield error("campaign", f"makes a {kind}'s name longer than {limit}", seen=name, cure=cure)
    if len(campaign) > MAX_NAME:
        cure = f"write at most {MAX_NAME} characters"
        yield error("campaign", "is too long", seen=f"{len(campaign)} characters", cure=cure)


def credentials_account(case: Case) -> Iterator[Draft]:
    """The credentials' account is the spec's, if it was looked up."""
    account = case.facts.account
    if account is not None and account != case.spec.account:
        message = "the credentials are for another account"
        cure = "choose other credentials (AWS_PROFILE), or correct the spec"
        yield error("account", message, seen=f"spec {case.spec.account}, credentials {account}", cure=cure)


def zone_in_region(case: Case) -> Iterator[Draft]:
    """All GPU nodes are in one zone of the region; the control plane has a second zone in it."""
    spec = case.spec
    partition, regions = case.facts.regions.get(spec.region), case.facts.regions
    if partition is None:
        nearest = difflib.get_close_matches(
            spec.region, [name for name, owner in regions.items() if owner == PARTITION]
        )
        nearest.sort(key=lambda name: sorted(name) != sorted(spec.region))  # swapped letters are the likeliest typo
        cure = f"did you mean {nearest[0]}?" if nearest else "write one such as us-east-1"
        yield error("region", "AWS has no region of this name", seen=spec.region, cure=cure)
        return
    if partition != PARTITION:
        cure = f"write a region of partition {PARTITION}, such as us-east-1"
        yield error("region", "is of a partition that is not supported", seen=f"{spec.region}, {partition}", cure=cure)
        return
    for field, zone in (("zone", spec.zone), ("second_zone", spec.second_zone)):
        if zone is not None and not re.fullmatch(re.escape(spec.region) + "[a-f]", zone):
            cure = f"write one zone such as {spec.region}a; no region goes beyond f"
            yield error(field, "is no zone of the region", seen=f"{zone} in {spec.region}", cure=cure)
    if spec.second_zone == spec.zone:
        cure = "write another zone of the region, or leave it out"
        yield error("second_zone", "the control plane needs two different zones", seen=spec.second_zone, cure=cure)


def usable_zones(case: Case) -> Iterator[Draft]:
    """The spec's zones exist and EKS accepts two for the control plane, if zones were looked up."""
    if case.facts.zones is None:
        return
    try:
        control_plane_zones(case.spec, case.facts.zones)
    except UserError as problem:
        detail = str(problem.seen)
        field = "second_zone" if case.spec.second_zone is not None and case.spec.second_zone in detail else "zone"
        yield error(field, problem.what, seen=detail, cure=problem.cure or "")


def base_image(case: Case) -> Iterator[Draft]:
    """The base images are in the account's own registry; if that was looked up, they exist."""
    spec, image = case.spec, case.spec.image
    for field, base, refusal in (
        ("image.base", image.base, case.facts.base),
        ("image.steward_base", image.steward_base, case.facts.steward_base),
    ):
        try:
            in_registry(base, spec.account, spec.region)
        except ValueError:
            cure = (
                "write repository:tag or repository@sha256:..., without a registry before it or with the account's own"
            )
            yield error(field, "is no image of the account's own registry", seen=base, cure=cure)
            continue
        if refusal is not None:
            yield error(field, refusal.what, seen=refusal.seen, cure=refusal.cure)


def node_image(case: Case) -> Iterator[Draft]:
    """Nodes or a bake can start from the AMI of the GPU nodes, if it was looked up; a bake's base is not old."""
    refusal, base = case.facts.node_image, case.facts.node_base
    if refusal is not None:
        yield error("image.nodes", refusal.what, seen=refusal.seen, cure=refusal.cure)
    if base is not None:
        days = (case.today - base.published).days
        newer = f"{len(base.newer)} newer, the newest {base.newer[-1]}" if base.newer else "none is newer"
        yield (warning if base.newer and days > _OLD_BASE_DAYS else info)(
            "image.nodes",
            "the image is baked from this release of EKS's",
            seen=f"{base.name}, {days} days old; {newer}",
            cure="nothing; for a newer one set base.release in images/versions.yaml and the versions that it holds",
        )


def network_range(case: Case) -> Iterator[Draft]:
    """The network is a private range that can be cut into subnets, apart from the services' network."""
    cidr, example = case.spec.network.cidr, "for instance 10.42.0.0/16"
    try:
        network = IPv4Network(cidr)
    except ValueError as problem:
        yield error("network.cidr", f"this is no network: {problem}", seen=cidr, cure=example)
        return
    if not 16 <= network.prefixlen <= 20:
        yield error("network.cidr", "must be between /16 and /20", seen=cidr, cure=example)
    if network.overlaps(SERVICE_NETWORK):
        cure = f"stay out of {SERVICE_NETWORK}: {example}"
        yield error("network.cidr", "overlaps the network of Kubernetes services", seen=cidr, cure=cure)
    elif not network.is_private:
        yield error("network.cidr", "is no private range", seen=cidr, cure=example)


def kubernetes_support(case: Case) -> Iterator[Draft]:
    """Standard support lasts beyond the deadline: the cluster is created without extended support."""
    version, support = case.spec.kubernetes, case.facts.kubernetes
    if version not in support.standard_until:
        versions = ", ".join(support.standard_until)
        message = f"is no version that EKS offered as of {support.as_of}"
        yield error("kubernetes", message, seen=version, cure=f"write one of {versions}")
        return
    end = support.standard_until[version]
    newest = list(support.standard_until)[-1]
    detail, cure = f"{version}, until {end}", f'write "{newest}"'
    if end is None:
        if case.today - support.as_of > timedelta(days=14 * 30):
            message = f"support dates are as of {support.as_of}"
            yield info("kubernetes", message, seen=version, cure="refresh kubernetes_support in infra/plan/survey.py")
    elif end < case.today:
        yield error("kubernetes", "EKS's standard support of this version has ended", seen=detail, cure=cure)
    elif end < case.today + max(SUPPORT_NOTICE, case.spec.money.deadline):
        yield warning("kubernetes", "EKS's standard support of this version ends soon", seen=detail, cure=cure)
