"""The foundation of an account and region (buckets, registry, build network), and the settings of both stacks.

A campaign adds to the foundation's settings and never removes: an archive that was locked or encrypted for one stays so
when another that asked for nothing uses the foundation.
"""

from __future__ import annotations

from typing import Any

from botocore.exceptions import ClientError

from infra.aws.account import Account, every
from infra.aws.given.file_systems import given_file_systems
from infra.aws.keys import try_key
from infra.aws.zones import zones_of, zones_selling
from infra.bake import node_image
from infra.bake.sources import code_of
from infra.bake.trial_build import try_closer
from infra.engine.engine import Engine
from infra.folders import writable
from infra.inventory.stakes import at_stake
from infra.plan.zones import build_network_zone, control_plane_zones
from infra.record.identity import read_identity
from infra.record.payloads.outputs import BakeOutput
from infra.record.store import CampaignStore
from infra.session.context import Context
from infra.session.session import FOUNDATION, STACK_CONFIG, foundation_lease
from infra.spec.campaign import Spec
from infra.spec.names import BUILD_NETWORK, BUILDER_TYPE, FOUNDATION_STACK, KEY_ALIAS, PROJECT
from infra.stack.outputs import FoundationOutputs
from infra.stack.settings import CampaignSettings, FoundationSettings, Keeping, StorageClass

_NAME, _BUILD_NETWORK = "keeping.json", "build_network.json"


def wish(spec: Spec) -> Keeping:
    archive, encryption = spec.storage.archive, spec.encryption
    moves = archive.storage_class != "STANDARD"
    return Keeping(
        own_key=encryption.customer_key and encryption.key_arn is None,
        key_arn=encryption.key_arn,
        lock_days=archive.lock_for.days if archive.lock_for else 0,
        classes=(
            (StorageClass(campaign=spec.campaign, name=archive.storage_class, after_days=archive.move_after.days),)
            if moves
            else ()
        ),
    )


def foundation_settings(store: CampaignStore, spec: Spec) -> FoundationSettings:
    """Return the settings that this campaign and all earlier ones ask for."""
    document = _folder(store).get_json(_NAME)
    previous = Keeping() if document is None else Keeping.model_validate(document)
    return FoundationSettings(
        account=spec.account,
        region=spec.region,
        keeping=previous.merge(wish(spec)),
        build_network=spec.image.builders is None,
        build_network_zone=(_folder(store).get_json(_BUILD_NETWORK) or {}).get("zone"),
    )


def with_zone(account: Account, settings: FoundationSettings) -> FoundationSettings:
    """Return the settings with a zone for the build network that sells builders; an existing such zone stays. A network
    that stands stays too, though this campaign names a place of its own. Raises `UserError` if no zone of the account
    sells builders."""
    now = settings.build_network_zone or _standing(account)
    if not settings.build_network and now is None:
        return settings
    settings = settings.model_copy(update={"build_network": True})
    sold = zones_selling(account, BUILDER_TYPE)
    zone = build_network_zone(BUILDER_TYPE, sold, zones_of(account), now)
    return settings if zone == now else settings.model_copy(update={"build_network_zone": zone})


def _standing(account: Account) -> str | None:
    """Return the zone of the build network's subnet; None without one."""
    filters = [{"Name": "tag:Name", "Values": [BUILD_NETWORK]}]
    subnets = list(every(account.client("ec2"), "describe_subnets", "Subnets", Filters=filters))
    return str(subnets[0]["AvailabilityZone"]) if subnets else None


def remember(store: CampaignStore, settings: FoundationSettings) -> None:
    """Store the settings. The caller holds the foundation's lease."""
    folder = _folder(store)
    documents = {_NAME: settings.keeping.model_dump(mode="json")}
    if settings.build_network_zone is not None:
        documents[_BUILD_NETWORK] = {"zone": settings.build_network_zone}
    for name, document in documents.items():
        if document != folder.get_json(name):
            folder.put_json(name, document)


def campaign_settings(context: Context, data_digest: str | None) -> CampaignSettings:
    image = node_image.campaign_image(context.store)
    operator = context.account.principal(context.operator_arn)
    return CampaignSettings(
        spec=context.spec,
        deadline=context.deadline,
        identity=_identity(context),
        data_digest=data_digest,
        operator_arn=operator,
        key_arn=key_of(context.account, context.spec),
        control_plane_zones=_zones(context),
        closer_code=code_of(context),
        node_image=None if image is None else image.ami,
        **_given_mounts(context),
        protected=at_stake(context.store.state(), read_identity(context.store)),
    )


def _identity(context: Context) -> str | None:
    """Return the stack's identity, which never changes: an old stack without one is not replaced for a tag."""
    config = context.store.get_json(STACK_CONFIG)
    value = context.identity if config is None else config.get(f"{PROJECT}:identity")
    return str(value) if value else None


def _zones(context: Context) -> tuple[str, str] | None:
    """Return the stack's zones, which never change; without a stack, choose by what the account has now. None: an
    existing network's subnets have theirs."""
    if not context.spec.network.made:
        return None
    config = context.store.get_json(STACK_CONFIG)
    if config is None:
        return control_plane_zones(context.spec, zones_of(context.account))
    zones = config.get(f"{PROJECT}:controlPlaneZones")
    if zones is None:
        return None
    zone, second = str(zones).split(",")
    return zone, second


def _given_mounts(context: Context) -> dict[str, Any]:
    """Return `mount_names` and `mount_groups` of the existing file systems that the job mounts. What is recorded never
    changes, so a teardown needs no answer about them."""
    if not context.spec.runtime.given_file_systems:
        return {}
    config = context.store.get_json(STACK_CONFIG) or {}
    keys = {"mount_names": f"{PROJECT}:mountNames", "mount_groups": f"{PROJECT}:mountGroups"}
    if config.get(keys["mount_names"]):
        return {field: tuple(str(config[key]).split(",")) for field, key in keys.items() if config.get(key)}
    systems = given_file_systems(context.account, context.spec)
    groups = sorted({group for system in systems for group in system.groups})
    names = tuple(f"{system.id}={system.mount_name}" for system in systems if system.mount_name)
    return {"mount_names": names, **({"mount_groups": tuple(groups)} if groups else {})}


def key_of(account: Account, spec: Spec) -> str | None:
    """Return the ARN of the campaign's key; None if it asks for none or the foundation has yet to make it."""
    if not spec.encryption.customer_key or spec.encryption.key_arn is not None:
        return spec.encryption.key_arn
    kms = account.client("kms")
    try:
        return str(kms.describe_key(KeyId=KEY_ALIAS)["KeyMetadata"]["Arn"])
    except ClientError as error:
        if error.response["Error"]["Code"] == "NotFoundException":
            return None
        raise


def _folder(store: CampaignStore) -> CampaignStore:
    return CampaignStore(store.s3, store.bucket, FOUNDATION, store.writer, folder=FOUNDATION)


def foundation(context: Context, engine: Engine | None = None) -> FoundationOutputs:
    """Bring the foundation up, unless this campaign's bake has, and return its outputs. Idempotent."""
    document = BakeOutput.known(context.outputs).foundation
    outputs_known = None if document is None else FoundationOutputs.model_validate(document)
    if outputs_known is not None and (outputs_known.build_network_subnet_id or context.spec.image.builders):
        return outputs_known
    engine = engine or Engine(context, writable(context.results / "pulumi"))
    context.progress.step("foundation: buckets, registry, build network")
    with foundation_lease(context) as lease, engine.holding(lease):
        outputs = engine.up(engine.stack(FOUNDATION_STACK, settle_config(context)))
    context.guard()
    if refusal := try_closer(context):
        context.progress.note(refusal)
    return FoundationOutputs.model_validate(outputs)


def settle_config(context: Context) -> dict[str, str]:
    """Return the configuration for an `up`, and store its settings. The caller holds the foundation's lease."""
    settings = with_zone(context.account, foundation_settings(context.store, context.spec))
    if (key := settings.keeping.key_arn) is not None:
        try_key(context.account, key, context.buckets.state, f"{FOUNDATION}/key-trial")
    remember(context.store, settings)
    return settings.to_config()
