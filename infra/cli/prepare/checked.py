"""Reads and checks a spec: by the rules alone, and with AWS's answers, before anything is made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from infra.console.plain_console import say
from infra.console.progress import Progress
from infra.plan import memory
from infra.plan.checks import Finding, check, shape_findings
from infra.plan.facts import Facts
from infra.plan.survey import survey
from infra.spec.campaign import Spec, SpecError, SpecFile, load


@dataclass(frozen=True)
class Checked:
    file: SpecFile | None
    spec: Spec | None
    """None, and no facts, for an invalid spec."""
    facts: Facts | None
    findings: tuple[Finding, ...]


def checked(path: Path, account: str | None = None) -> Checked:
    """Return spec, facts and all findings. Raises `UserError` when there is no such file."""
    today = datetime.now(UTC).date()
    try:
        file = load(path)
    except SpecError as error:
        found, sound = shape_findings(error), error.sound
        if sound is not None:
            found += check(sound, survey(sound.spec, account, whole=False), today, whole=False)
        return Checked(None, None, None, tuple(sorted(found, key=lambda finding: finding.line)))
    facts = survey(file.spec, account)
    return Checked(file, file.spec, facts, check(file, facts, today))


def with_memory(seen: Checked, console: Console) -> Checked:
    """Return the findings with the memory of a rank, where that may be too small."""
    if seen.file is None or seen.spec is None or seen.facts is None or seen.facts.instance is None:
        return seen
    if not memory.is_close(seen.spec, seen.facts.instance):
        return seen
    say(console, "memory     one micro batch of the model, on tensors without data")
    predicted = memory.predicted(seen.spec, seen.facts.instance)
    facts = seen.facts.model_copy(update={"memory": predicted})
    return replace(seen, facts=facts, findings=check(seen.file, facts, datetime.now(UTC).date()))


def with_answers(seen: Checked, console: Console) -> Checked:
    """Return the findings with AWS's answers; reads only. To be called where the spec's target is.

    A campaign that has begun is not checked: it uses its quota itself, and its zones and images are chosen. Raises
    `UserError` for foreign credentials, and for a name that a campaign in another region has.
    """
    from infra.aws.account import Account
    from infra.aws.asked import asked
    from infra.aws.namesakes import refuse_namesake
    from infra.session.session import has_begun

    if seen.file is None or seen.spec is None or seen.facts is None:
        return seen
    account = Account(seen.spec.region)
    account.refuse_foreign(seen.spec.account)
    if has_begun(account, seen.spec):
        return seen
    refuse_namesake(account, seen.spec.campaign)
    progress = Progress(console)
    with progress.stage(
        "ask", "zones, types, network, quota, reservation and base image, as the account has them; reads only"
    ):
        facts = asked(account, seen.spec, seen.facts, progress.note)
    return replace(seen, facts=facts, findings=check(seen.file, facts, datetime.now(UTC).date()))
