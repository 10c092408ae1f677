"""Rules about the cluster's endpoint, encryption keys, the archive's retention, and add-ons."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from ipaddress import IPv4Network

from infra.plan.checks.finding import Case, Draft, error, warning
from infra.spec.campaign import ApiEndpoint, Egress

_DAY = timedelta(days=1)
DRA_SINCE = (1, 35)
"""Kubernetes version that the driver's chart requires (aws/eks-charts, stable/aws-dranet)."""
_LEAST_DAYS = {"STANDARD_IA": 30}
"""Age in days below which S3 refuses to move an object."""
_NEVER_FROM_OUTSIDE = tuple(
    IPv4Network(cidr) for cidr in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8")
)
"""Ranges of private networks. EKS user guide, cluster endpoint: "cannot include reserved addresses"."""
_NOT_READ_AT_ONCE = ("GLACIER", "DEEP_ARCHIVE")


def private_endpoint_access(case: Case) -> Iterator[Draft]:
    """The driver reaches a private endpoint through a peered network of its own, or from ranges that an existing VPC
    knows."""
    network = case.spec.network
    private = network.api_endpoint is ApiEndpoint.PRIVATE
    if private and not network.made:
        if not network.api_allowed_cidrs and case.facts.environment.driver_outside:
            yield error(
                "network.api_allowed_cidrs",
                "a private endpoint admits only the ranges that are named",
                seen="none",
                cure="write the driver's range, in the VPC or connected with it; or write api_endpoint: public",
            )
        return
    if private and network.driver_vpc is None and case.facts.environment.driver_outside:
        message = "the driver reaches a private endpoint only from a peered network"
        cure = "run bivouac in a VPC of this account and write driver_vpc, or write api_endpoint: public"
        yield error("network.api_endpoint", message, seen="network.driver_vpc is not set", cure=cure)
    if private and network.api_allowed_cidrs:
        yield error(
            "network.api_allowed_cidrs",
            "a private endpoint has no public side to guard",
            seen=", ".join(network.api_allowed_cidrs),
            cure="remove it, or write api_endpoint: public",
        )


def public_endpoint_ranges(case: Case) -> Iterator[Draft]:
    """A public endpoint names the ranges that reach it: none is open to all by an omission."""
    network = case.spec.network
    public = network.api_endpoint is ApiEndpoint.PUBLIC
    if public and not network.api_allowed_cidrs and case.facts.environment.driver_outside:
        yield error(
            "network.api_allowed_cidrs",
            "nobody is named who may reach the cluster's API, not even this machine",
            seen="nothing",
            cure='write those you come from, as ["203.0.113.7/32"]: `curl https://checkip.amazonaws.com` prints your '
            'address; ["0.0.0.0/0"] admits the whole internet, which still needs a token',
        )


def endpoint_ranges(case: Case) -> Iterator[Draft]:
    """Ranges are written without host bits; peered networks do not overlap."""
    network = case.spec.network
    for cidr in network.api_allowed_cidrs:
        api_range = _network(cidr)
        if api_range is None:
            cure = "write a range such as 203.0.113.0/24"
            yield error("network.api_allowed_cidrs", "this is no network", seen=cidr, cure=cure)
        elif any(api_range.subnet_of(private) for private in _NEVER_FROM_OUTSIDE):
            message = "nobody comes to a public endpoint from this range, and EKS refuses it"
            cure = "write the address that the internet sees: `curl https://checkip.amazonaws.com` prints it"
            yield error("network.api_allowed_cidrs", message, seen=cidr, cure=cure)
    if network.driver_vpc is None:
        return
    driver, campaign_network = _network(network.driver_vpc.cidr), _network(network.cidr)
    if driver is None:
        cure = "write the range of the driver's subnets, such as 10.0.0.0/16"
        yield error("network.driver_vpc.cidr", "this is no network", seen=network.driver_vpc.cidr, cure=cure)
    elif campaign_network is not None and driver.overlaps(campaign_network):
        detail = f"{driver} and {campaign_network}"
        yield error("network.cidr", "overlaps the driver's network", seen=detail, cure="choose another network.cidr")


def image_registry(case: Case) -> Iterator[Draft]:
    """Nodes without a NAT gateway pull images only from this region's ECR."""
    spec = case.spec
    if spec.network.egress is not Egress.ENDPOINTS or not case.facts.environment.public_registries:
        return
    registry_domain = f".dkr.ecr.{spec.region}."
    if spec.addons.image_mirror is None:
        message = "without internet access the charts' images cannot be pulled from public registries"
        cure = "copy them to this region's ECR and write image_mirror, bake them into the node image, or take nat"
        yield warning("addons.image_mirror", message, seen="egress: endpoints, no mirror", cure=cure)
    elif registry_domain not in spec.addons.image_mirror:
        cure = f"write a registry of {spec.region}, as 123456789012{registry_domain}amazonaws.com/mirror"
        mirror = spec.addons.image_mirror
        yield error("addons.image_mirror", "the endpoints reach this region's ECR only", seen=mirror, cure=cure)
    host, slash, _ = spec.image.base.partition("/")
    if slash and ("." in host or ":" in host) and registry_domain not in host:
        cure = f"copy it to ECR in {spec.region}, or write egress: nat"
        yield error("image.base", "the builder cannot reach this registry", seen=host, cure=cure)


def efa_driver(case: Case) -> Iterator[Draft]:
    """A DRA driver needs a Kubernetes version with claims, and nodes that publish their devices."""
    spec, field = case.spec, "addons.efa"
    if spec.addons.efa != "dra":
        return
    cure = "write efa: device-plugin"
    if _version(spec.kubernetes) < DRA_SINCE:
        first_version = ".".join(map(str, DRA_SINCE))
        yield error(
            field,
            f"the DRA driver needs Kubernetes {first_version}",
            seen=spec.kubernetes,
            cure=f"{cure}, or {first_version}",
        )
    if not case.facts.environment.claims:
        yield error(field, "the nodes publish no devices to claim", seen=f"dra, on target {spec.target}", cure=cure)


def encryption_key(case: Case) -> Iterator[Draft]:
    """The key is of this account and region, and the file system accepts one."""
    encryption, spec = case.spec.encryption, case.spec
    if encryption.key_arn is not None:
        region, account = encryption.key_arn.split(":")[3:5]
        if (region, account) != (spec.region, spec.account):
            detail = f"{account}, {region}"
            cure = f"name a key of {spec.account}, {spec.region}; or leave it out: the foundation makes one"
            yield error("encryption.key_arn", "the key lies in another region or account", seen=detail, cure=cure)
        if not encryption.customer_key:
            cure = "write customer_key: true, or remove key_arn"
            yield error("encryption.customer_key", "names a key and does not use it", seen=False, cure=cure)
    shared = spec.storage.shared
    if encryption.customer_key and shared is not None and shared.deployment == "SCRATCH_2":
        message = "a scratch file system is always encrypted with FSx's own key"
        cure = "write deployment: PERSISTENT_2, or customer_key: false"
        yield error("storage.shared.deployment", message, seen="SCRATCH_2 with encryption.customer_key", cure=cure)


def archive_retention(case: Case) -> Iterator[Draft]:
    """Days are whole and not fewer than S3 accepts; a class without immediate access is chosen knowingly."""
    archive = case.spec.storage.archive
    least_days = _LEAST_DAYS.get(archive.storage_class, 0)
    if archive.storage_class != "STANDARD" and (archive.move_after % _DAY or archive.move_after < least_days * _DAY):
        yield error(
            "storage.archive.move_after",
            f"S3 moves objects to {archive.storage_class} after whole days, at least {least_days}",
            seen=archive.move_after,
            cure=f"write {max(least_days, -(-archive.move_after // _DAY))}d",
        )
    if archive.storage_class in _NOT_READ_AT_ONCE:
        yield warning(
            "storage.archive.storage_class",
            "objects of this class must be restored before they can be read, which takes hours and costs money",
            seen=archive.storage_class,
            cure="GLACIER_IR is read at once",
        )
    if archive.lock_for is None:
        return
    if archive.lock_for % _DAY or archive.lock_for < _DAY:
        cure = f"write {max(1, -(-archive.lock_for // _DAY))}d"
        yield error("storage.archive.lock_for", "a lock holds for whole days", seen=archive.lock_for, cure=cure)
    message = "from then on the archive bucket locks what any campaign of this account writes into it"
    cure = "a bypass needs s3:BypassGovernanceRetention; leave lock_for out if other campaigns must not be locked"
    yield warning("storage.archive.lock_for", message, seen=f"{archive.lock_for.days} days, governance", cure=cure)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def _network(cidr: str) -> IPv4Network | None:
    try:
        return IPv4Network(cidr)
    except ValueError:
        return None


def dashboard_source(case: Case) -> Iterator[Draft]:
    """Grafana comes with Prometheus' chart, and draws its series; remote write is Prometheus' own."""
    addons = case.spec.addons
    if addons.grafana and not addons.prometheus:
        cure = "write addons.prometheus: true, or leave grafana out"
        yield error("addons.grafana", "Grafana has no series without Prometheus", seen="prometheus: false", cure=cure)
    if addons.remote_write is not None and not addons.prometheus:
        cure = "write addons.prometheus: true, or leave remote_write out"
        yield error("addons.remote_write", "nothing is written without Prometheus", seen="prometheus: false", cure=cure)
