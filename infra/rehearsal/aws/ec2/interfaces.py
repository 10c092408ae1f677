"""Network interfaces of a launch: several cards, EFA, and EC2's rules for them. moto has one card and no EFA."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from moto.ec2.models.elastic_network_interfaces import Attachment
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import Instance

from infra.rehearsal.aws.operations import wrap
from infra.rehearsal.aws.world import LaunchRefused, World

Specification = dict[str, Any]
"""A NetworkInterfaces entry of RunInstances or of a launch template."""
EFA = ("efa", "efa-only")
PRIMARY = (0, 0)


def place(nic: Specification) -> tuple[int, int]:
    """Return the network card, and the device index on that card."""
    return int(nic.get("NetworkCardIndex") or 0), int(nic.get("DeviceIndex") or 0)


def kind_of(nic: Specification) -> str:
    return str(nic.get("InterfaceType") or "interface")


def check(instance_type: str, nics: list[Specification]) -> None:
    """Raise LaunchRefused as EC2 would; types unknown to moto pass."""
    if not nics or instance_type not in INSTANCE_TYPES:
        return
    network = INSTANCE_TYPES[instance_type]["NetworkInfo"]
    places = Counter(place(nic) for nic in nics)
    if duplicates := [slot for slot, count in places.items() if count > 1]:
        raise LaunchRefused("InvalidParameterValue", f"duplicate (network card, device index): {duplicates}")
    if PRIMARY not in places or any(place(nic) == PRIMARY and kind_of(nic) == "efa-only" for nic in nics):
        raise LaunchRefused("InvalidParameterCombination", "the primary interface must be 'interface' or 'efa'")
    cards = {card["NetworkCardIndex"]: card for card in network["NetworkCards"]}
    for index in {card for card, _ in places}:
        card_nics = [nic for nic in nics if place(nic)[0] == index]
        if index not in cards:
            raise LaunchRefused("InvalidParameterValue", f"{instance_type} has no network card {index}")
        _check_card(index, cards[index], card_nics)
    efas = sum(kind_of(nic) in EFA for nic in nics)
    limit = network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
    if efas > limit:
        counts = f"(requested: {efas}, limit: {limit})"
        raise LaunchRefused("AttachmentLimitExceeded", f"EFA interfaces exceed the limit {counts}")


def _check_card(index: int, card: dict[str, Any], nics: list[Specification]) -> None:
    limit = card["MaximumNetworkInterfaces"]
    if len(nics) > limit:
        counts = f"(requested: {len(nics)}, limit: {limit})"
        raise LaunchRefused("AttachmentLimitExceeded", f"Interfaces exceed the limit. Network Card {index} {counts}")
    efas = [nic for nic in nics if kind_of(nic) in EFA]
    limit_per_card = 1 if set(EFA) & set(card.get("InterfaceTypes", EFA)) else 0
    if len(efas) > limit_per_card:
        counts = f"(requested: {len(efas)}, limit: {limit_per_card})"
        raise LaunchRefused(
            "AttachmentLimitExceeded", f"EFA interfaces exceed the limit. Network Card {index} {counts}"
        )


def requested_efas(instance: Any) -> int:
    return sum(nic.interface_type in EFA for nic in instance.nics.values())


def _prepare(original: Callable[..., None], instance: Any, nics: list[Specification], **kwargs: Any) -> None:
    """Make the primary interface by moto, deleted with the instance unless told otherwise; then add the others."""
    nics = nics or [{"DeviceIndex": 0}]
    primary_nic = next((nic for nic in nics if place(nic) == PRIMARY), nics[0])
    keep = primary_nic.get("DeleteOnTermination") is False
    original(instance, [{**primary_nic, "DeviceIndex": 0, "DeleteOnTermination": not keep}], **kwargs)
    primary = instance.nics[0]
    primary.interface_type, primary.network_card_index = kind_of(primary_nic), 0
    for nic in nics:
        if nic is not primary_nic:
            _add(instance, nic, primary)


def _add(instance: Any, nic: Specification, primary: Any) -> None:
    ec2, kind, (card, device) = instance.ec2_backend, kind_of(nic), place(nic)
    subnet = ec2.get_subnet(nic["SubnetId"]) if nic.get("SubnetId") else primary.subnet
    address = None if kind == "efa-only" else subnet.get_available_subnet_ip(instance)
    eni = ec2.create_network_interface(
        subnet,
        address or primary.private_ip_address,
        group_ids=list(nic.get("Groups") or []) or [group.id for group in primary.group_set],
        description=nic.get("Description"),
        delete_on_termination=nic.get("DeleteOnTermination") is not False,
    )
    if address is None:
        eni.private_ip_address, eni.private_ip_addresses = None, []
    eni.interface_type, eni.network_card_index = kind, card
    # moto keys interfaces by device index alone, which repeats on every card.
    instance.attach_eni(eni, card * 100 + device)
    eni.device_index = device


def _attachment(original: Callable[..., None], attachment: Any, eni: Any) -> None:
    original(attachment, eni)
    attachment.network_card_index = getattr(eni, "network_card_index", 0)


def install(world: World) -> None:
    wrap(Instance, "prep_nics", _prepare)
    wrap(Attachment, "__init__", _attachment)
