"""Certify: after teardown, an independent look for what was left. "Could not look" is never "not there"."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from pydantic import BaseModel, ConfigDict

from infra.account import Account
from infra.errors import NotProven
from infra.events import Kind, Stage
from infra.folders import keep
from infra.lifecycle.context import Context
from infra.lifecycle.looks import LOOKS, Look
from infra.names import Names

CERTIFICATE = "certificate.json"
SETTLE_S = 60.0
"""Listings lag behind deletions: what is seen is looked for again until it is gone or this has passed."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Looked(_Frozen):
    """One look: how much was listed in all, what of it is the campaign's, or why nothing could be seen."""

    service: str
    kind: str
    listed: int
    found: tuple[str, ...] = ()
    could_not_look: str | None = None


class Certificate(_Frozen):
    campaign: str
    account: str
    region: str
    principal: str
    at: datetime
    looks: tuple[Looked, ...]
    kept: tuple[str, ...]
    """Kept on purpose, and where."""

    @property
    def found(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(f"{look.kind} {item}" for look in self.looks for item in look.found))

    @property
    def blind(self) -> tuple[str, ...]:
        return tuple(f"{look.kind}: {look.could_not_look}" for look in self.looks if look.could_not_look)

    @property
    def clean(self) -> bool:
        """Nothing found and nothing unseen."""
        return not self.found and not self.blind


def run(context: Context) -> dict[str, Any]:
    """Look until nothing is found or the listings have had time to settle; raises `NotProven` unless clean."""
    names, certificate = context.names, None
    until = time.monotonic() + SETTLE_S
    while certificate is None or (certificate.found and time.monotonic() < until):
        if certificate is not None:
            context.progress.step(f"still seen: {', '.join(certificate.found[:3])}; listings may lag")
            time.sleep(1.0)
        certificate = look_through(context.account, names, context.operator_arn, context.spec.account, kept(context))
    body = certificate.model_dump_json(indent=1)
    context.store.put(f"{context.store.prefix}/{CERTIFICATE}", body.encode())
    keep(context.results / CERTIFICATE, body, context.progress.note)
    summary = {"clean": certificate.clean, "found": list(certificate.found), "could_not_look": list(certificate.blind)}
    context.store.append(Kind.CERTIFIED, **summary, looks=len(certificate.looks), kept=list(certificate.kept))
    refuse_unclean(certificate)
    listed = sum(look.listed for look in certificate.looks)
    context.progress.note(
        f"certificate: {len(certificate.looks)} kinds looked through, {listed} resources seen, none is ours"
    )
    return summary


def refuse_unclean(certificate: Certificate) -> None:
    """Raises `NotProven`, naming everything that was found or could not be looked at."""
    if certificate.clean:
        return
    seen = [
        *(f"left: {item}" for item in certificate.found),
        *(f"could not look: {item}" for item in certificate.blind),
    ]
    raise NotProven(
        f"nothing certifies that {certificate.campaign} is gone",
        seen="; ".join(seen),
        cure=f"remove what is left, allow the denied listings, then `bivouac down {certificate.campaign}` looks again",
    )


def look_through(account: Account, names: Names, principal: str, owner: str, kept: tuple[str, ...]) -> Certificate:
    """All looks at once; each on its own, so that one denial blinds only one."""
    with ThreadPoolExecutor(8, thread_name_prefix="look") as pool:
        looks = tuple(pool.map(lambda look: _look(account, names, look), LOOKS))
    return Certificate(
        campaign=names.campaign,
        account=owner,
        region=account.region,
        principal=principal,
        at=datetime.now(UTC),
        looks=looks,
        kept=kept,
    )


def kept(context: Context) -> tuple[str, ...]:
    """What stays on purpose: the archive, the record, the data, the image."""
    state = context.state()
    campaign = context.spec.campaign
    rows = [f"s3://{context.buckets.state}/campaigns/{campaign}/ (record)"]
    if state.archive is not None:
        rows.insert(0, f"{state.archive['manifest']} (golden checkpoint of step {state.archive['step']})")
    if (image := context.outputs.get(Stage.BAKE, {}).get("image")) is not None:
        rows.append(f"{image} (trainer image)")
    return tuple(rows)


def _look(account: Account, names: Names, look: Look) -> Looked:
    listed, found = 0, []
    try:
        for thing in look.list(account):
            listed += 1
            if thing.belongs_to(names):
                found.append(thing.name if thing.name.startswith(names.prefix) else thing.id)
    except (ClientError, BotoCoreError) as error:
        reason = error.response["Error"]["Code"] if isinstance(error, ClientError) else type(error).__name__
        return Looked(service=look.service, kind=look.kind, listed=listed, could_not_look=f"{reason}: {error}"[:300])
    return Looked(service=look.service, kind=look.kind, listed=listed, found=tuple(found))
