"""Send the driver's notices, and those that a dead steward left unsent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.account import explained
from infra.errors import LeaseLost
from infra.notices.outbox import Outbox
from infra.notices.ways import subscribe, ways
from infra.session.context import Context


def outbox(context: Context) -> Outbox:
    """Return the campaign's outbox. `Outbox.say` sends what no event of the record tells."""
    carriers = ways(context.spec, context.account.guard, context.account.webhook)
    return Outbox(context.store, context.spec.notify, carriers, lambda: datetime.now(UTC))


def tell(context: Context, cost: Callable[[], str]) -> None:
    """Send the notices that are due. A failure ends nothing: it is printed. `cost`: says what bills now."""
    try:
        context.guard()
        outbox(context).tell(cost)
    except LeaseLost:
        return  # whoever took over tells; the next guarded act here says so
    except Exception as error:  # also a fault of ours: a stage does not fail for its notice
        context.progress.note(f"notices wait: {error}")


def subscribe_people(context: Context) -> None:
    """Subscribe the spec's addresses. A refusal ends nothing: the campaign runs without."""
    try:
        for address in subscribe(context.account, context.spec):
            context.progress.note(f"{address} gets a mail from AWS, and hears of campaigns once it has confirmed")
    except (ClientError, BotoCoreError) as error:
        context.progress.note(f"nobody was subscribed to the notices: {explained(error)}")
