"""Settings of the programs in the stack's configuration; the driver writes them with the same models."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from infra.spec.campaign import Spec
from infra.spec.names import PROJECT
from trainer.contract.frozen import Frozen


def _in_utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("give the time zone, as in 2026-07-20T12:00:00Z")
    return moment.astimezone(UTC)


def _as_tuple(value: object) -> object:
    return tuple(value.split(",")) if isinstance(value, str) else value


class _Settings(Frozen):
    def to_config(self) -> dict[str, str]:
        """Return the stack configuration, keys with the project's namespace, without values that are None."""
        values: dict[str, str] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if value is not None:
                values[f"{PROJECT}:{_key(name)}"] = _text(value)
        return values


class StorageClass(Frozen):
    """Storage class to which one campaign's archive objects move, and when."""

    campaign: str
    name: str
    after_days: int = Field(ge=0)


class Keeping(Frozen):
    """Storage of what campaigns leave: all that any campaign of the account has asked for. All campaigns share it: one
    that asks for less takes nothing away from another."""

    own_key: bool = False
    """The foundation makes a key and encrypts its buckets with it."""
    key_arn: str | None = None
    """An existing key; takes precedence over `own_key`."""
    lock_days: int = Field(default=0, ge=0)
    """Governance lock of new objects in the archive bucket; 0: none."""
    classes: tuple[StorageClass, ...] = ()
    """At most one per campaign, sorted by name."""

    def merge(self, newer: Keeping) -> Keeping:
        """Combine both; where they exclude each other (a key, a campaign's class) `newer` wins."""
        classes = {storage_class.campaign: storage_class for storage_class in (*self.classes, *newer.classes)}
        return Keeping(
            own_key=self.own_key or newer.own_key,
            key_arn=newer.key_arn or self.key_arn,
            lock_days=max(self.lock_days, newer.lock_days),
            classes=tuple(classes[name] for name in sorted(classes)),
        )


class FoundationSettings(_Settings):
    kind: Literal["foundation"] = "foundation"
    account: Annotated[str, Field(pattern=r"^\d{12}$")]
    region: str
    keeping: Keeping = Keeping()
    build_network: bool = True
    """False: no campaign has asked for a build network; each named an existing place for its builders."""
    build_network_zone: str | None = None
    """The builders' zone, chosen by the driver. None: an older foundation, in the zone that AWS chose."""


class CampaignSettings(_Settings):
    kind: Literal["campaign"] = "campaign"
    spec: Spec
    """JSON in the configuration."""
    deadline: Annotated[datetime, AfterValidator(_in_utc)]
    """Absolute, so that a second `up` does not move it."""
    identity: str | None = None
    """The campaign's identity beyond its name. None: made before identities, or not recorded yet."""
    data_digest: Annotated[str, Field(min_length=8)] | None = None
    """Manifest digest of the data set at `datasets/<digest>/` of the data bucket. None: the cluster has yet to prepare
    it: the stack has the nodes for that, and no link to the data."""
    operator_arn: str | None = None
    """Principal with the cluster's administration. None: the caller. The ARN of an assumed role lacks the role's path,
    so a role with a path must be given here."""
    key_arn: str | None = None
    """The customer's key, if the spec asks for one."""
    control_plane_zones: Annotated[tuple[str, str] | None, BeforeValidator(_as_tuple)] = None
    """Chosen by the driver before the first `up`. None: an older campaign, with the spec's zone and the letter after
    it."""
    closer_code: Annotated[str | None, Field(pattern=r"^[0-9a-f]{64}$")] = None
    """SHA-256 of the code with which the closer ends this campaign. None: an older campaign, which none ends."""
    node_image: str | None = None
    """AMI of the GPU nodes. None: the newest EKS-optimized one."""
    mount_names: Annotated[tuple[str, ...] | None, BeforeValidator(_as_tuple)] = None
    """Lustre's own name of each existing file system among the mounts, as `fs-...=name`."""
    mount_groups: Annotated[tuple[str, ...] | None, BeforeValidator(_as_tuple)] = None
    """Security groups of the servers of those file systems, which the nodes' group lets in."""
    protected: bool = False
    """`pulumi destroy` refuses to delete what may hold checkpoints."""

    @property
    def preparing(self) -> bool:
        """The cluster prepares the data now."""
        return self.spec.prepares_data and self.data_digest is None


def read_settings(get: Callable[[str], str | None]) -> FoundationSettings | CampaignSettings:
    """Return the settings, which a driver has written, by looking up keys without namespace."""
    model = FoundationSettings if get("kind") == "foundation" else CampaignSettings
    values = {name: value for name in model.model_fields if (value := get(_key(name))) is not None}
    documents: dict[str, type[BaseModel]] = {"spec": Spec, "keeping": Keeping}
    read = {name: documents[name].model_validate_json(text) for name, text in values.items() if name in documents}
    return model.model_validate(values | read)


def _key(field: str) -> str:
    head, *tail = field.split("_")
    return head + "".join(part.capitalize() for part in tail)


def _text(value: object) -> str:
    if isinstance(value, BaseModel):
        return value.model_dump_json()
    if isinstance(value, tuple):
        return ",".join(value)
    return value.isoformat() if isinstance(value, datetime) else str(value)
