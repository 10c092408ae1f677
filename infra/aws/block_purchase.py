"""The purchase of a capacity block, made once although it has no idempotency token and cannot be undone.

The intent is written before the call, and the client makes the call once, without retries. The call sets a tag by which
the block is found later. After a lost answer the block is searched before any other purchase.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.account import Account, every
from infra.aws.blocks import LOST, Block, block_of
from infra.errors import PermanentError, TemporaryError, UserError
from infra.record.store import CampaignStore
from infra.spec.names import FOUNDATION_TAG
from trainer.contract.frozen import Frozen

BLOCK_CAMPAIGN_TAG = "bivouac:block-for"
"""The campaign that a capacity block was bought for. It differs from the campaign tag, so that no teardown counts the
block as the campaign's own."""
BLOCK_OFFERING_TAG = "bivouac:block-offering"

SETTLED = timedelta(minutes=15)
"""A purchase absent from all listings after this time was not made: EC2's listings lag by minutes at most."""
PATIENCE_S = 60.0
"""Time for which a block is searched after a lost answer."""
PLATFORM = "Linux/UNIX"
_LOOK_S = 2.0


class Offering(Frozen):
    """A block for sale, as shown to the person who confirms."""

    id: str
    instance_type: str
    zone: str
    count: int
    starts: datetime
    ends: datetime
    fee_usd: Decimal

    @property
    def usd_per_hour(self) -> Decimal:
        """Price of one node."""
        hours = Decimal(repr((self.ends - self.starts).total_seconds())) / 3600
        return (self.fee_usd / hours / self.count).quantize(Decimal("0.0001"))

    def as_block(self) -> Block:
        """Return the block that the purchase would give."""
        return Block(
            reservation_id=self.id,
            kind="capacity-block",
            state="scheduled",
            instance_type=self.instance_type,
            zone=self.zone,
            count=self.count,
            starts=self.starts,
            ends=self.ends,
        )


class Purchase(Frozen):
    """One purchase in the foundation's record, at `blocks/<campaign>/<offering>.json`."""

    campaign: str
    offering: Offering
    who: str
    asked_at: datetime
    reservation_id: str | None = None
    """None until EC2 lists it."""
    refused: str | None = None
    """EC2's refusal: nothing was bought."""


def offering_of(item: dict[str, Any]) -> Offering:
    """Parse EC2's offering; raise `UserError` for a fee in another currency."""
    if item.get("CurrencyCode", "USD") != "USD":
        raise UserError("the fee is not in USD", seen=item["CurrencyCode"], cure="buy it in the console")
    return Offering(
        id=item["CapacityBlockOfferingId"],
        instance_type=item["InstanceType"],
        zone=item["AvailabilityZone"],
        count=item["InstanceCount"],
        starts=item["StartDate"],
        ends=item["EndDate"],
        fee_usd=Decimal(item["UpfrontFee"]),
    )


class Counter:
    """Buys for one campaign. The caller holds the foundation's lease, which `guard` checks."""

    def __init__(self, account: Account, store: CampaignStore, campaign: str, guard: Callable[[], None]) -> None:
        """`store` is the foundation's."""
        self.account, self.store, self.campaign, self.guard = account, store, campaign, guard

    def standing(self, say: Callable[[str], None]) -> Purchase | None:
        """Return an earlier purchase for the campaign.

        Raises `TemporaryError` while the outcome of an earlier request is unknown.
        """
        for purchase in self._purchases():
            block = self._find(purchase)
            if block is not None:
                if block.state in LOST:
                    say(f"{block.reservation_id}, bought before, is {block.state}: {LOST[block.state]}")
                    continue
                return self._keep(purchase, block)
            if (
                not purchase.refused
                and purchase.reservation_id is None
                and datetime.now(UTC) - purchase.asked_at < SETTLED
            ):
                raise self._unknown(purchase)
        return None

    def buy(self, offering: Offering, buyer: str, say: Callable[[str], None]) -> Purchase:
        """Buy; raise `UserError` if EC2 refuses, `TemporaryError` while the outcome is unknown."""
        purchase = Purchase(campaign=self.campaign, offering=offering, who=buyer, asked_at=datetime.now(UTC))
        self._write(purchase)
        self.guard()
        # botocore would repeat a purchase with a lost answer, and buy twice.
        single_try = Config(retries={"total_max_attempts": 1}, read_timeout=120)
        client = self.account.session.client("ec2", config=single_try)
        try:
            answer = client.purchase_capacity_block(
                CapacityBlockOfferingId=offering.id,
                InstancePlatform=PLATFORM,
                TagSpecifications=[{"ResourceType": "capacity-reservation", "Tags": self._tags(offering)}],
            )
            return self._keep(purchase, block_of(answer["CapacityReservation"]))
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
                raise self._refusal(purchase, error) from error
            return self._search(purchase, error, say)
        except BotoCoreError as error:
            return self._search(purchase, error, say)

    def _refusal(self, purchase: Purchase, error: ClientError) -> UserError:
        answer = error.response["Error"]
        detail, cure = f"{answer['Code']}: {answer['Message']}", "`bivouac offers SPEC` lists what there is now"
        try:
            self._write(purchase.model_copy(update={"refused": detail}))
        except (ClientError, BotoCoreError) as unwritten:
            # The record still has the request as open; the refusal matters more.
            settled_at = purchase.asked_at + SETTLED
            detail += f"; and it could not be recorded ({unwritten})"
            cure += f"; for this campaign nothing is bought before {settled_at.isoformat(timespec='minutes')}"
        return UserError("EC2 refuses the purchase", seen=detail, cure=cure)

    def _search(self, purchase: Purchase, error: Exception, say: Callable[[str], None]) -> Purchase:
        patience_end = time.monotonic() + PATIENCE_S
        while time.monotonic() < patience_end:
            say(f"the answer was lost ({type(error).__name__}); checking whether the block was bought")
            if (block := self._find(purchase)) is not None:
                return self._keep(purchase, block)
            time.sleep(min(_LOOK_S, PATIENCE_S / 4))
        raise self._unknown(purchase) from error

    def _unknown(self, purchase: Purchase) -> TemporaryError:
        settled_at = purchase.asked_at + SETTLED
        return TemporaryError(
            "it is not known yet whether the block was bought",
            seen=f"offering {purchase.offering.id}, {purchase.offering.fee_usd} USD, requested at "
            f"{purchase.asked_at.isoformat(timespec='seconds')}; no reservation carries its tag yet",
            cure=f"run the same command again; nothing is bought before {settled_at.isoformat(timespec='minutes')} "
            "unless it shows; EC2's console lists capacity blocks too",
            delay=SETTLED,
        )

    def _find(self, purchase: Purchase) -> Block | None:
        ec2 = self.account.client("ec2")
        filters = [{"Name": f"tag:{BLOCK_OFFERING_TAG}", "Values": [purchase.offering.id]},
                   {"Name": f"tag:{BLOCK_CAMPAIGN_TAG}", "Values": [self.campaign]}]  # fmt: skip
        rows = every(ec2, "describe_capacity_reservations", "CapacityReservations", Filters=filters)
        blocks = list(map(block_of, rows))
        if len(blocks) > 1:
            ids = ", ".join(block.reservation_id for block in blocks)
            raise PermanentError("this offering was bought twice", seen=ids, cure="ask AWS support")
        return blocks[0] if blocks else None

    def _tags(self, offering: Offering) -> list[dict[str, str]]:
        tags = {FOUNDATION_TAG: "true", BLOCK_CAMPAIGN_TAG: self.campaign, BLOCK_OFFERING_TAG: offering.id}
        return [{"Key": key, "Value": value} for key, value in tags.items()]

    def _keep(self, purchase: Purchase, block: Block) -> Purchase:
        result = purchase.model_copy(update={"reservation_id": block.reservation_id, "refused": None})
        if result != purchase:
            self._write(result)
        return result

    def _key(self, offering: str) -> str:
        return f"{self.store.prefix}/blocks/{self.campaign}/{offering}.json"

    def _write(self, purchase: Purchase) -> None:
        self.store.put(self._key(purchase.offering.id), purchase.model_dump_json(indent=1).encode())

    def _purchases(self) -> list[Purchase]:
        bodies = [self.store.get(key) for key in self.store.keys(f"blocks/{self.campaign}/")]
        return [Purchase.model_validate_json(body) for body in bodies if body is not None]
