"""What the steward is given by launch, as one JSON file in its pod."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

from pydantic import BaseModel, ConfigDict

from infra.spec import Spec
from trainer.contract import TrainConfig

CONFIG_NAME = "steward.json"
CONFIG_PATH = f"/config/{CONFIG_NAME}"
STEWARD_LEASE = "steward"
LEASE_TTL = timedelta(seconds=15)


class StewardConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    spec: Spec
    train: TrainConfig
    image: str
    """The trainer image by digest."""
    code_digest: str
    image_manifest: str
    """Key of the image manifest in the state bucket."""
    ranks_per_node: int
    accelerators: int
    efa_interfaces: int
    grace_seconds: int
    deadline: datetime
    base_usd_per_hour: Decimal
    """What bills without any GPU node."""
    node_usd_per_hour: Decimal
    interval_and_archive: timedelta
    state_bucket: str
    archive_bucket: str
    poll: timedelta = timedelta(seconds=0.5)
