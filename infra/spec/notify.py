"""The spec's section `notify`: recipients of notices, the changes they hear of, and the ways to them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from infra.spec.secrets import SecretSource
from infra.spec.section import Section


class Change(StrEnum):
    """Changes of a campaign that people are told of."""

    TRAINING = "training"
    NODE = "node"
    CHECKPOINTS = "checkpoints"
    WATCH = "watch"
    HELD = "held"
    FINISHED = "finished"
    ARCHIVED = "archived"
    TORN_DOWN = "torn-down"
    FAILED = "failed"
    BILLING = "billing"
    ALERT = "alert"


class Notify(Section):
    email: tuple[Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$")], ...] = ()
    """Addresses to subscribe to the account's topic `bivouac_notices`, on which all campaigns of the region tell. AWS
    writes to each once and asks for a confirmation; each of its mails has a link to unsubscribe."""
    topic: Annotated[str, Field(pattern=r"^arn:aws:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]+$")] | None = None
    """An SNS topic of the campaign's account and region to tell instead of `bivouac_notices`. Whoever drives needs
    `sns:Publish` on it. A key that encrypts it must leave the account's roles to IAM. Its name begins with `bivouac`:
    steward and closer may tell on no other."""
    webhook: SecretSource | None = None
    """Where the address of a webhook lies, which takes what Slack's incoming webhooks take: `https` only, and a secret,
    since whoever knows it can post. Operator, steward and closer may read secrets and parameters `bivouac_webhook*`."""
    on: tuple[Change, ...] = tuple(Change)
    """Changes to tell: `training` began, also after a relaunch; a `node` was replaced, or EC2 announces that it takes
    one; `checkpoints` are not recognised or not sealed, or a job did not go on from the one it was offered; the
    `watch` has found a slow rise, once in an attempt; `held` for a person; training `finished`; `archived`;
    `torn-down`; a stage, the archive or the certificate has `failed`; still `billing`, an hour after somebody should
    have acted, and every six hours from then on; an `alert` of the monitoring."""

    @model_validator(mode="after")
    def _subscribes_to_one_topic(self) -> Self:
        if self.email and self.topic is not None:
            raise ValueError("give either `email` or `topic`: subscribe the addresses to a topic of your own yourself")
        return self
