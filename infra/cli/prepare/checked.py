"""Reads and checks a spec: by the rules alone, and with AWS's answers, before anything is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from infra import target
from infra.console.plain_console import say
from infra.console.progress import Progress
from infra.plan import memory
from infra.plan.checks import Finding, check, shape_findings
from infra.plan.facts import Facts
from infra.plan.survey import environment, survey
from infra.spec.campaign import Spec, SpecError, SpecFile, load


@dataclass(frozen=True)
class Checked:
    file: SpecFile | None
    spec: Spec | None
    """None, and no facts, for an invalid spec."""
    facts: Facts | None
    findings: tuple[Finding, ...]


def checked(path: Path, account: str | None = None, *, fetches: Callable[[str], None] | None = None) -> Checked:
    """Return spec, facts and all findings. `fetches`: let git fetch a job's reference first, and say so: what it was
    when this machine fetched it last may be mended since. Raises `UserError` without such a file."""
    today = datetime.now(UTC).date()
    try:
        file = load(path)
    except SpecError as error:
        findings, sound = shape_findings(error), error.sound
        if sound is not None:
            findings += check(sound, survey(sound.spec, account, complete=False), today, complete=False)
        return Checked(None, None, None, tuple(sorted(findings, key=lambda finding: finding.line)))
    if fetches is not None and not target.in_site():  # no way leads out of one
        target.fetch_source(file.spec, fetches, patient=True)
    facts = survey(file.spec, account)
    return Checked(file, file.spec, facts, check(file, facts, today))


def with_memory(result: Checked, console: Console) -> Checked:
    """Return the findings with the memory of a rank, where that may be too small."""
    if result.file is None or result.spec is None or result.facts is None or result.facts.instance is None:
        return result
    if not memory.is_close(result.spec, result.facts.instance):
        return result
    say(console, "memory     one micro batch of the model, on tensors without data")
    prediction = memory.predict_memory(result.spec, result.facts.instance)
    facts = result.facts.model_copy(update={"memory": prediction})
    return replace(result, facts=facts, findings=check(result.file, facts, datetime.now(UTC).date()))


def with_answers(result: Checked, console: Console) -> Checked:
    """Return the findings with the answers of AWS or of an existing cluster; makes nothing. To be called where the
    spec's target is.

    A campaign that has begun is not checked: it uses its quota itself, and its zones and images are chosen. Raises
    `UserError` for foreign credentials, and for a name that a campaign in another region has.
    """
    from infra.aws.account import Account
    from infra.aws.asked import ask_aws
    from infra.aws.namesakes import refuse_namesake
    from infra.session.session import has_begun

    if result.file is None or result.spec is None or result.facts is None:
        return result
    facts = target.ask_cluster(result.spec, result.facts, Progress(console).note)
    if facts is not None:
        return replace(result, facts=facts, findings=check(result.file, facts, datetime.now(UTC).date()))
    account = Account(result.spec.region)
    account.refuse_foreign(result.spec.account)
    if has_begun(account, result.spec):
        return result
    refuse_namesake(account, result.spec.campaign)
    progress = Progress(console)
    if environment(result.spec).public_registries:  # a rehearsal's source was fetched before its site was entered
        target.fetch_source(result.spec, progress.note)
    offline_facts = survey(result.spec).model_copy(update={"memory": result.facts.memory})
    with progress.stage(
        "ask", "zones, types, network, quota, reservation and base image, as the account has them; reads only"
    ):
        facts = ask_aws(account, result.spec, offline_facts, progress.note)
    return replace(result, facts=facts, findings=check(result.file, facts, datetime.now(UTC).date()))
