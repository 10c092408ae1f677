"""The kept series of all campaigns as one source, with times counted from each one's own begin, to be seen side by
side: those of the results folder, and those of the records in the account."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from infra.aws.account import Account, NoCredentials
from infra.cli.look.series import LOST, KeptSeries
from infra.console.words import plural
from infra.errors import UserError, first_line
from infra.folders import results_root
from infra.record import series
from infra.record.store import CampaignStore
from infra.session.session import campaigns
from infra.spec.names import buckets

Lines = Callable[[], Iterator[str]]


def all_campaigns(region: str, note: Callable[[str], None]) -> KeptSeries:
    """Return the series of all campaigns that are known here. `note` gets which cannot be read. Raises `UserError`
    if there are none."""
    texts: dict[str, Lines] = {
        path.parent.name: partial(series.lines_of_file, path)
        for path in sorted(results_root().glob(f"*-*/*/{series.JOINED}"))
    }
    try:
        account = Account(region)
        bucket = buckets(account.identity()["Account"], region).state
        for name in campaigns(account, bucket):
            store = CampaignStore(account.client("s3"), bucket, name, "")
            if keys := series.pieces(store):
                texts[name] = partial(series.lines_of_pieces, store, keys)
    except NoCredentials:
        note("AWS was not asked: there are no credentials")
    return side_by_side(texts, note)


def side_by_side(texts: Mapping[str, Lines], note: Callable[[str], None]) -> KeptSeries:
    """Return the series of these campaigns, each from second 0 on."""
    spans = dict[str, tuple[float, float]]()
    for name, lines in texts.items():
        try:
            times = [float(line.rsplit(" ", 1)[1]) for line in lines() if not line.startswith("#")]
        except (*LOST, IndexError) as error:
            note(f"the series of {name} cannot be read: {first_line(error)}")
            continue
        if times:
            spans[name] = min(times), max(times)
    if not spans:
        cure = "they are kept while `addons.prometheus` is on; `bivouac dashboard NAME` shows one campaign, also live"
        raise UserError("no campaign here has series that are kept", seen=str(results_root()), cure=cure)

    def moved() -> Iterator[str]:
        for name, (begin, _) in spans.items():
            for line in texts[name]():
                text, _, second = line.rpartition(" ")
                yield line if line.startswith("#") else f"{text} {float(second) - begin:.3f}\n"

    longest = max(end - begin for begin, end in spans.values())
    return KeptSeries(f"what is kept of {plural(len(spans), 'campaign')}", 0.0, longest, moved)
