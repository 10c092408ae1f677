"""What AWS alone knows of a spec, judged by the rules of `bivouac check` before anything is made."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from rich.console import Console

from infra.checks import check
from infra.commands.check import Checked
from infra.progress import Progress


def with_answers(seen: Checked, console: Console) -> Checked:
    """The findings over facts with AWS's answers; reads only. To be called where the spec's target is.

    Of a campaign that has begun nothing is asked: what it uses of a quota is its own, its zones and images are chosen.
    Raises `UserError` for foreign credentials, and for a name that a campaign in another region has.
    """
    from infra.account import Account
    from infra.actions.asked import asked
    from infra.actions.namesakes import refuse_namesake
    from infra.lifecycle.opening import has_begun

    if seen.file is None or seen.spec is None or seen.facts is None:
        return seen
    account = Account(seen.spec.region)
    account.refuse_foreign(seen.spec.account)
    if has_begun(account, seen.spec):
        return seen
    refuse_namesake(account, seen.spec.campaign)
    progress = Progress(console)
    with progress.stage("ask", "zones, types, quota, reservation and base image, as the account has them; reads only"):
        facts = asked(account, seen.spec, seen.facts, progress.note)
    return replace(seen, facts=facts, findings=check(seen.file, facts, datetime.now(UTC).date()))
