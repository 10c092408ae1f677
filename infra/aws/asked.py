"""Facts that only AWS knows before a campaign: zones and their offers, an existing network, quotas, reservations, the
base images.

The rules of `bivouac check` judge the answers. Read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from botocore.exceptions import ClientError

from infra.aws.account import Account, every
from infra.aws.base_image import find_base, find_steward_base
from infra.aws.given.file_systems import given_file_systems
from infra.aws.given.network import HTTPS, VpcLook, seen_network
from infra.aws.given.node_image import find_base_image, find_image
from infra.aws.quota_room import quota_questions, quota_use
from infra.aws.reservations import refused_reservation
from infra.aws.zones import zones_of, zones_selling
from infra.errors import PermanentError, TemporaryError, UserError
from infra.plan.facts import BaseImage, DataSource, Facts, Offer, SeenBuilders, Unsuitable
from infra.plan.survey import BYTES_PER_TOKEN, environment
from infra.spec.campaign import Capacity, Spec

_PACKED, _EXPANDS = (".gz", ".zst", ".xz", ".bz2"), 4
"""Suffixes of compressed files, and about how much more text they hold."""


def ask_aws(account: Account, spec: Spec, facts: Facts, say: Callable[[str], None]) -> Facts:
    """Return the facts with AWS's answers. A refused request is reported by `say` and leaves its fact unknown."""

    def answer(question: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return question()
        except TemporaryError as error:
            say(f"not known now: {error}")
            return otherwise
        except ClientError as error:
            refusal = error.response["Error"]
            say(f"AWS did not answer {error.operation_name}: {refusal['Code']}: {refusal.get('Message', '')}")
            return otherwise

    return facts.model_copy(
        update={
            "data": answer(lambda: _with_size(account, spec, facts.data), facts.data),
            "zones": answer(lambda: zones_of(account), None),
            "offers": answer(lambda: tuple(_with_quota(account, facts, offer) for offer in facts.offers), facts.offers),
            "sold": answer(lambda: _sold(account, spec), None),
            "reservation": answer(lambda: refused_reservation(account, spec), None),
            "network": answer(lambda: seen_network(account, spec), None),
            "file_systems": answer(lambda: given_file_systems(account, spec), None),
            "quotas": tuple(
                room for question in quota_questions(account, spec) if (room := answer(question, None)) is not None
            ),
            "base": answer(lambda: _unsuitable(lambda: find_base(account, spec)), None),
            "steward_base": answer(lambda: _unsuitable(lambda: find_steward_base(account, spec)), None),
            "links": answer(lambda: dict(_unlinkable(account, spec)), {}),
            "builders": answer(lambda: seen_builders(account, spec), None),
            **answer(lambda: _node_image(account, spec), {}),
        }
    )


def _node_image(account: Account, spec: Spec) -> dict[str, Any]:
    """Return the facts about the AMI of the GPU nodes, or about the one from which it is baked."""
    if spec.image.nodes != "bake":
        return {"node_image": _unsuitable(lambda: find_image(account, spec))}
    images = list[BaseImage]()
    refusal = _unsuitable(lambda: images.append(find_base_image(account, spec)))
    return {"node_image": refusal, "node_base": images[0] if images else None}


def _sold(account: Account, spec: Spec) -> dict[str, tuple[str, ...]]:
    types = {spec.nodes.instance_type, spec.nodes.system_instance_type}
    types |= {spec.data.prepare.instance_type} if spec.data is not None and spec.data.in_cluster else set()
    return {name: zones_selling(account, name) for name in sorted(types)}


def _with_size(account: Account, spec: Spec, source: DataSource) -> DataSource:
    """Add the sizes of sources that the cluster prepares, by a listing; of their content nothing is read."""
    if spec.data is None or not spec.data.in_cluster or source.text_bytes is not None:
        return source
    total = 0
    for part in spec.data.parts:
        bucket, _, prefix = part.source.removeprefix("s3://").partition("/")
        for entry in every(account.client("s3"), "list_objects_v2", "Contents", Bucket=bucket, Prefix=prefix):
            total += int(entry["Size"]) * (_EXPANDS if entry["Key"].endswith(_PACKED) else 1)
    return source.model_copy(update={"text_bytes": total, "tokens": source.tokens or int(total / BYTES_PER_TOKEN)})


def _with_quota(account: Account, facts: Facts, offer: Offer) -> Offer:
    """Add the free quota to an offer that is yet to be bought; a reservation's or block's places counted before."""
    if facts.instance is None or offer.capacity not in (Capacity.ON_DEMAND, Capacity.SPOT):
        return offer
    use = quota_use(account, facts.instance, spot=offer.capacity is Capacity.SPOT)
    return offer if use is None else offer.model_copy(update={"quota_vcpus": use.free})


def _unsuitable(find: Callable[[], object]) -> Unsuitable | None:
    try:
        find()
    except (UserError, PermanentError) as error:
        return Unsuitable(what=error.what, seen=str(error.seen), cure=error.cure or "")
    return None


def _unlinkable(account: Account, spec: Spec) -> Iterator[tuple[str, Unsuitable]]:
    """Yield the mounts whose bucket is not there, or not the caller's to list: FSx links neither. A rehearsal makes the
    buckets itself. FSx for Lustre's guide, "Unable to validate access to an S3 bucket when creating a DRA"."""
    for name, prefix in spec.links.items() if environment(spec).inputs else ():
        bucket = prefix.removeprefix("s3://").partition("/")[0]
        try:
            account.client("s3").head_bucket(Bucket=bucket)
        except ClientError as error:
            code = error.response["Error"]["Code"]  # HEAD has no body, so that boto3 knows the status alone
            if code not in ("403", "404"):
                raise
            missing = code == "404"
            yield (
                name,
                Unsuitable(
                    what="there is no such bucket" if missing else "FSx links a bucket only for who may read it",
                    seen=bucket if missing else f"s3:ListBucket on {bucket} is refused",
                    cure="mend its name, or make it"
                    if missing
                    else "let its owner give you s3:Get*, s3:List* and s3:PutObject on it",
                ),
            )


def seen_builders(account: Account, spec: Spec) -> SeenBuilders | None:
    """Return what is at the spec's `image.builders`; None if it names none."""
    place = spec.image.builders
    if place is None:
        return None
    ec2 = account.client("ec2")
    by_id = [{"Name": "subnet-id", "Values": [place.subnet_id]}]
    subnets = list(every(ec2, "describe_subnets", "Subnets", Filters=by_id))
    if not subnets:
        return SeenBuilders(subnet=None)
    look = VpcLook(account, subnets[0]["VpcId"])
    groups = look.listing("describe_security_groups", "SecurityGroups", group_id=[place.security_group_id])
    return SeenBuilders(
        subnet=next(look.subnets([place.subnet_id])),
        endpoints=look.endpoints(spec.region),
        group=bool(groups),
        https_to=tuple(
            target for group in groups for rule in group.get("IpPermissionsEgress", ()) for target in _to(rule)
        ),
        let_in=tuple(target for group in groups for rule in group.get("IpPermissions", ()) for target in _ends(rule)),
    )


def _to(rule: Mapping[str, Any]) -> Iterator[str]:
    every_port = str(rule["IpProtocol"]) == "-1"
    https = str(rule["IpProtocol"]) == "tcp" and rule.get("FromPort", 0) <= HTTPS <= rule.get("ToPort", 65535)
    if every_port or https:
        yield from _ends(rule)


def _ends(rule: Mapping[str, Any]) -> Iterator[str]:
    """Yield the other ends of a rule: ranges, prefix lists, security groups."""
    for member, key in (("IpRanges", "CidrIp"), ("PrefixListIds", "PrefixListId"), ("UserIdGroupPairs", "GroupId")):
        yield from (entry[key] for entry in rule.get(member, ()))
