"""Certify: an independent look for leftovers after teardown. "Could not look" is never "not there"."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from pydantic import RootModel

from infra.aws.account import Account
from infra.engine.failures import Cause, cause_of
from infra.errors import NotProven
from infra.folders import keep
from infra.inventory import LOOKS, Evidence, Knowledge
from infra.inventory.survey import survey_all
from infra.kinds import ResourceKind, Thing
from infra.plan.estimates.figure import cents
from infra.record import meter
from infra.record.events import Event
from infra.record.objects import Unreadable
from infra.record.payloads.outputs import ArchiveOutput, BakeOutput, CertifyOutput, ProvisionOutput
from infra.record.payloads.stages import Certified, ResidueSwept, StageFinished
from infra.record.store import CampaignStore
from infra.session.context import Context
from infra.spec.names import Names, copies_prefix, data_prefix
from infra.spec.workload.links import MOUNTS
from infra.stack.outputs import CampaignOutputs
from trainer.contract.frozen import Frozen

CERTIFICATE, BASELINE = "certificate.json", "baseline.json"
SETTLE_S = 60.0
"""Listings lag behind deletions: time for which findings are looked for again."""
STALE_TAGS_S = 300.0
"""The same if only the tagging service shows leftovers and no service can be asked about them."""
_PASSING = frozenset({Cause.THROTTLED, Cause.SERVER, Cause.TIMED_OUT})
CONFIRM_S = 3.0
"""Listings lag behind creations and tags too: an empty look counts only if a second one, this much later, agrees."""


class Looked(Frozen):
    """One look: the number listed, the campaign's among them, or why nothing could be seen."""

    service: str
    kind: str
    listed: int
    found: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    """Per finding, why it is the campaign's."""
    doubts: tuple[str, ...] = ()
    """Per finding, why it may no longer exist; empty if it does."""
    could_not_look: str | None = None
    unread: tuple[str, ...] = ()
    """Older than the campaign; their tags could not be read, but they cannot be its own."""


class Certificate(Frozen):
    campaign: str
    account: str
    region: str
    principal: str
    at: datetime
    looks: tuple[Looked, ...]
    kept: tuple[str, ...]
    """Kept on purpose, with their places."""
    removed: tuple[str, ...] = ()
    """Removed though no stack knew them, such as what a service of AWS had put into the network."""
    suspects: tuple[str, ...] = ()
    """New untagged resources that only a human can attribute; they do not make the certificate unclean."""
    borrowed: tuple[str, ...] = ()
    """What others lent, and the state in which it was given back; empty where the campaign made its cluster."""
    metered_usd: Decimal | None = None
    estimated_usd: Decimal | None = None
    """Both by the record's meter; None where nobody read it."""
    doubted_since: dict[str, datetime] = {}
    """Time at which a certificate of this campaign first showed each doubtful finding."""

    @property
    def found(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(f"{look.kind} {item}" for look in self.looks for item in look.found))

    @property
    def doubted(self) -> dict[str, str]:
        """Return findings that only the tagging service shows and that may no longer exist, with the reason."""
        return {
            f"{look.kind} {item}": doubt
            for look in self.looks
            for item, doubt in zip(look.found, look.doubts, strict=False)
            if doubt
        }

    @property
    def certain(self) -> tuple[str, ...]:
        """Return findings that exist beyond doubt."""
        return tuple(item for item in self.found if item not in self.doubted)

    @property
    def blind(self) -> tuple[str, ...]:
        return tuple(f"{look.kind}: {look.could_not_look}" for look in self.looks if look.could_not_look)

    @property
    def transient(self) -> tuple[str, ...]:
        """Return looks that failed for a transient reason: AWS throttles, fails or does not answer."""
        return tuple(words for words in self.blind if cause_of(words) in _PASSING)

    @property
    def unread(self) -> tuple[str, ...]:
        return tuple(f"{look.kind} {item}" for look in self.looks for item in look.unread)

    @property
    def clean(self) -> bool:
        return not self.found and not self.blind


def run(context: Context) -> CertifyOutput:
    """Look until two looks in a row find nothing, or the listings have had their time to settle.

    Raises `NotProven` unless clean."""
    return conclude(context, _certify_until_settled(context, knowledge(context.store, context.names)))


def conclude(context: Context, certificate: Certificate) -> CertifyOutput:
    """Keep a certificate in the record and on this machine, and tell people. Raises `NotProven` unless it is clean."""
    certificate = _with_dates(context.store, certificate)
    events = context.store.events()
    money = meter.read(context.plan.cost, events, certificate.at)
    removals = tuple(
        thing for event in events if isinstance(event.payload, ResidueSwept) for thing in event.payload.things
    )
    facts = {"metered_usd": cents(money.metered_usd), "estimated_usd": cents(money.estimated_usd), "removed": removals}
    certificate = certificate.model_copy(update=facts)
    body = certificate.model_dump_json(indent=1)
    context.store.put(f"{context.store.prefix}/{CERTIFICATE}", body.encode())
    keep(context.results / CERTIFICATE, body, context.progress.note)
    summary = CertifyOutput(
        clean=certificate.clean,
        found=certificate.found,
        could_not_look=certificate.blind,
        suspects=certificate.suspects,
    )
    context.store.append(Certified(**summary.data(), looks=len(certificate.looks), kept=certificate.kept))
    for suspect in certificate.suspects:
        context.progress.note(f"suspect: {suspect}")
    if certificate.unread:
        context.progress.note(f"older than the campaign, with unreadable tags: {', '.join(certificate.unread)[:300]}")
    for words in certificate.borrowed:
        context.progress.note(f"borrowed: {words}")
    refuse_unclean(certificate)
    resource_count = sum(look.listed for look in certificate.looks)
    context.progress.note(
        f"certificate: {len(certificate.looks)} kinds looked through, {resource_count} resources seen, none is ours"
        + (f"; {len(certificate.suspects)} suspects for a human to judge" if certificate.suspects else "")
    )
    return summary


def _with_dates(store: CampaignStore, certificate: Certificate) -> Certificate:
    old_dates: dict[str, Any] = {}
    with suppress(Unreadable):  # the doubts begin again
        old_dates = (store.get_json(CERTIFICATE) or {}).get("doubted_since") or {}
    dates = {item: old_dates.get(item, certificate.at) for item in certificate.doubted}
    return Certificate.model_validate(certificate.model_dump() | {"doubted_since": dates})


def _certify_until_settled(context: Context, facts: Knowledge) -> Certificate:
    """Look again, bounded: findings may be on their way out, new ones on their way in, failures transient."""

    def look() -> Certificate:
        return look_through(
            context.account, context.names, context.operator_arn, context.spec.account, stays_on_purpose(context), facts
        )

    def again(while_found: bool) -> Certificate:
        certificate, start = look(), time.monotonic()

        def patience() -> float:
            return SETTLE_S if certificate.certain or certificate.blind else STALE_TAGS_S

        while ((while_found and certificate.found) or certificate.transient) and time.monotonic() < start + patience():
            found_text = f"still seen: {', '.join(certificate.found[:3])}; listings may lag"
            failure_text = f"could not look yet: {', '.join(certificate.transient[:3])[:200]}"
            context.progress.step(found_text if certificate.found else failure_text)
            time.sleep(1.0)
            certificate = look()
        return certificate

    certificate = again(while_found=True)
    if not certificate.found:
        for _ in context.turns(CONFIRM_S):
            context.progress.step("nothing is seen; a second look in a moment, since listings may lag")
        certificate = again(while_found=False)
    return certificate


def refuse_unclean(certificate: Certificate) -> None:
    """Raise `NotProven` naming everything that was found or could not be looked at."""
    if certificate.clean:
        return
    doubts, first_dates = certificate.doubted, certificate.doubted_since
    dates = {item: f", first seen {date:%Y-%m-%d %H:%M} UTC" for item, date in first_dates.items()}
    facts = [
        *(f"left: {item}" for item in certificate.certain),
        *(f"perhaps left: {item} ({reason}{dates.get(item, '')})" for item, reason in doubts.items()),
        *(f"could not look: {item}" for item in certificate.blind),
    ]
    raise NotProven(
        f"there is no proof that {certificate.campaign} is gone",
        seen="; ".join(facts),
        cure=f"`bivouac sweep {certificate.campaign}` shows what is left and removes what is provably the campaign's; "
        f"allow the denied listings; then `bivouac down {certificate.campaign}` looks again",
    )


def look_through(
    account: Account,
    names: Names,
    principal: str,
    owner: str,
    stays: tuple[str, ...],
    knowledge: Knowledge | None = None,
) -> Certificate:
    """Run all looks in parallel; a denial blinds only one."""
    knowledge = knowledge or Knowledge(names, region=account.region)
    survey, blind = survey_all(account, LOOKS)
    findings = knowledge.judge(survey)
    blind = knowledge.unread(survey) | blind
    attributable = {look.name for look in LOOKS if look.attributable}
    suspects = knowledge.suspects({kind: things for kind, things in survey.items() if kind in attributable})
    return Certificate(
        campaign=names.campaign,
        account=owner,
        region=account.region,
        principal=principal,
        at=datetime.now(UTC),
        looks=tuple(
            _look_row(look, survey[look.name], findings[look.name], blind.get(look.name), knowledge) for look in LOOKS
        ),
        kept=stays,
        suspects=tuple(str(suspect) for suspect in suspects),
    )


def _look_row(
    look: ResourceKind,
    things: Sequence[Thing],
    findings: Sequence[tuple[Thing, Evidence]],
    blind: str | None,
    knowledge: Knowledge,
) -> Looked:
    return Looked(
        service=look.service,
        kind=look.name,
        listed=len(things),
        found=tuple(thing.label for thing, _ in findings),
        evidence=tuple(str(reason) for _, reason in findings),
        doubts=tuple(thing.doubt for thing, _ in findings),
        could_not_look=blind,
        unread=knowledge.unread_before(look.name, things),
    )


class _Baseline(RootModel[dict[str, frozenset[str]]]):
    """Kind -> ids of what existed before."""


def note_baseline(context: Context) -> None:
    """Record, once, what exists before the campaign makes anything: only later resources are new."""
    if context.store.has(BASELINE):
        return
    survey, blind = survey_all(context.account, LOOKS)
    rows = {kind: sorted(thing.id for thing in things) for kind, things in survey.items() if kind not in blind}
    context.store.put_if_absent(f"{context.store.prefix}/{BASELINE}", json.dumps(rows).encode())


def knowledge(store: CampaignStore, names: Names) -> Knowledge:
    """Return what the record knows: the campaign's network, roles, instances and start, and the baseline."""
    events = store.events()
    places: set[str] = set()
    for event in events:
        places |= _places_of(event)
    baseline = store.figures(BASELINE, _Baseline) or _Baseline({})
    return Knowledge(
        names=names,
        places=frozenset(places),
        began=events[0].at if events else None,
        before=baseline.root,
        region=store.region,
    )


def _places_of(event: Event) -> set[str]:
    """Return the ids of the campaign's resources in an event. An existing network is none of them: things in it may be
    anybody's."""
    if isinstance(event.payload, StageFinished) and isinstance(event.payload.outputs, ProvisionOutput):
        outputs = CampaignOutputs.model_validate(event.payload.outputs.outputs)
        network = {outputs.vpc_id, outputs.gpu_subnet_id, outputs.system_subnet_id}
        return (network if outputs.network_made else set()) | {
            outputs.node_security_group_id,
            *filter(None, [outputs.file_system_id]),
            outputs.node_role_arn,
            outputs.steward_role_arn,
            outputs.trainer_role_arn,
            outputs.archive_role_arn,
        }
    instance = getattr(event.payload, "instance", None)
    return {str(instance)} if instance else set()


def stays_on_purpose(context: Context) -> tuple[str, ...]:
    """Return what stays on purpose: archive, record, prepared data, images."""
    state = context.state()
    campaign = context.spec.campaign
    rows = [f"s3://{context.buckets.state}/campaigns/{campaign}/ (record)"]
    if state.archive is not None:
        rows.insert(0, f"{state.archive.manifest} (golden checkpoint of step {state.archive.step})")
    if (unproven_copy := ArchiveOutput.known(context.outputs).unproven) is not None:
        rows.insert(0, f"{unproven_copy.prefix} (what the job left, as it is; no checkpoint is proven in it)")
    content, newest = "interval copies", state.copied
    if context.spec.storage.shared is None:
        content, newest = "checkpoints", state.newest_committed
    if newest >= 0 and (state.archive is None or state.archive.copies_left):
        copies = f"s3://{context.buckets.archive}/{copies_prefix(campaign, context.identity)}/"
        reason = "the campaign has no archive" if state.archive is None else "locked, or not removed"
        rows.append(f"{copies} ({content} up to step {newest}; {reason}; they bill until they are removed)")
    if digest := ProvisionOutput.known(context.outputs).data_digest:
        rows.append(f"s3://{context.buckets.data}/{data_prefix(digest)} ({context.spec.runtime.data_name})")
    images = BakeOutput.known(context.outputs)
    for image, kind in ((images.image, "trainer image"), (images.steward_image, "steward image")):
        if image:
            rows.append(f"{image} ({kind})")
    if images.node_image is not None and images.node_image.ours:
        rows.append(f"{images.node_image.ami} (node image)")
    mounts = context.spec.runtime.attached
    rows += [f"{mount} (somebody's, mounted at {MOUNTS}/{name})" for name, mount in mounts.items()]
    return tuple(rows)
