"""The spec's section `notify`: recipients of notices, the changes they hear of, and the ways to them."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from infra.spec.duration import Duration
from infra.spec.secrets import SecretSource
from infra.spec.section import Section

SHORTEST_ESCALATION = timedelta(minutes=1)


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


class NoticeRoute(SecretSource):
    """Where the address of a route lies, as apprise writes it: `slack://...`, `mailtos://...`, `pagerduty://...`,
    `workflows://...` for Teams, `jsons://...` for a webhook of your own, and those of
    https://github.com/caronc/apprise/wiki. It is a secret, under a name as for `webhook`."""

    escalation: bool = False
    """It gets nothing but pages that nobody has acknowledged for `escalate_after`."""


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
    routes: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")], NoticeRoute] = Field(
        {}, max_length=8, exclude_if=lambda routes: not routes
    )
    """More routes, by a name of your own: Slack, mail, PagerDuty, Teams and others. `bivouac alerts NAME --test` sends
    by each."""
    escalate_after: Duration | None = Field(default=None, exclude_if=lambda value: value is None)
    """Time after which an alert of severity `page` is sent again that fires and that nobody has acknowledged, by
    `bivouac alerts NAME --ack` or a silence; and again each time it passes. It goes by the routes of `escalation`, or
    by all where none is. None: never."""
    on: tuple[Change, ...] = tuple(Change)
    """Changes to tell: `training` began, also after a relaunch; a `node` was replaced, EC2 announces that it takes one,
    or the gang has another number of them; `checkpoints` are not recognised or not sealed, or a job did not go on from
    the one it was offered, once in an attempt for each reason; the `watch` has found a slow rise, once in an attempt;
    `held` for a person; training `finished`; `archived`; `torn-down`; a stage, the archive or the certificate has
    `failed`; still `billing`, an hour after somebody should have acted, and every six hours from then on; an `alert` of
    the monitoring."""

    @model_validator(mode="after")
    def _subscribes_to_one_topic(self) -> Self:
        if self.email and self.topic is not None:
            raise ValueError("give either `email` or `topic`: subscribe the addresses to a topic of your own yourself")
        return self

    @model_validator(mode="after")
    def _escalates_in_time(self) -> Self:
        if self.escalation_routes and self.escalate_after is None:
            raise ValueError("a route of `escalation` gets nothing without `escalate_after`")
        if self.escalate_after is not None and self.escalate_after < SHORTEST_ESCALATION:
            raise ValueError("`escalate_after` is at least 1m: somebody has to read the first message")
        if names := {"topic", "webhook"} & self.routes.keys():
            raise ValueError(f"`routes` cannot have the name {min(names)}: another route has it")
        return self

    @property
    def escalation_routes(self) -> frozenset[str]:
        return frozenset(name for name, route in self.routes.items() if route.escalation)

    @property
    def addresses(self) -> dict[str, SecretSource]:
        """Return the field of each address that is a secret, and where it lies."""
        webhook: dict[str, SecretSource] = {} if self.webhook is None else {"notify.webhook": self.webhook}
        return webhook | {f"notify.routes.{name}": route for name, route in self.routes.items()}
