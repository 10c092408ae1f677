"""`bivouac open NAME`: the places where a campaign can be looked at: those that exist now, and no others."""

from __future__ import annotations

import webbrowser
from typing import NamedTuple
from urllib.parse import quote

from rich.console import Console

from infra import target
from infra.cli.answers import write_json
from infra.cli.records import kept_record, record_of
from infra.console.plain_console import say
from infra.console.tables import Listing
from infra.errors import UserError
from infra.folders import results_folder
from infra.record.events import CampaignState, Stage, fold
from infra.record.series import JOINED
from infra.record.store import CampaignStore
from infra.session.session import stored_spec
from infra.spec.campaign import Spec
from infra.spec.names import Names

REPORT = "report"


class LookingPlace(NamedTuple):
    """One place, by its address or by the command that leads there."""

    name: str
    address: str
    is_url: bool = True


def open_command(campaign: str, region: str, what: str | None, console: Console, *, as_json: bool = False) -> int:
    """List the places, or open one in a browser. Raises `UserError` if neither the account nor the results folder has
    the campaign, or it has no such place."""
    try:
        campaign_store = record_of(campaign, region)
        spec, state = stored_spec(campaign_store), campaign_store.state()
        store: CampaignStore | None = campaign_store
    except UserError as error:
        results_record = kept_record(campaign, region, error)
        store, spec, state = None, results_record.spec, fold(results_record.events)
    rows = places(spec, state, store)
    if what is not None:
        return _open(rows, what, console)
    if as_json:
        write_json(console, [row._asdict() for row in rows])
        return 0
    table = Listing("place", "~address, or the command that leads there")
    for row in rows:
        table.row(row.name, row.address)
    table.show(console)
    return 0


def places(spec: Spec, state: CampaignState, record: CampaignStore | None) -> list[LookingPlace]:
    """Return the places of a campaign in this state. `record`: None if it cannot be reached."""
    name, region = spec.campaign, spec.region
    results = results_folder(name, spec.account, region)
    page, rows = results / "report.html", list[LookingPlace]()
    if page.exists():
        rows.append(LookingPlace(REPORT, page.resolve().as_uri()))
    else:
        rows.append(LookingPlace(REPORT, f"bivouac report {name} --open", is_url=False))
    has_cluster = record is not None and Stage.PROVISION in state.finished_stages and not _is_torn_down(state)
    if spec.addons.prometheus and (record is not None or (results / JOINED).exists()):
        rows.append(LookingPlace("dashboards", f"bivouac dashboard {name}", is_url=False))
    if spec.addons.grafana and has_cluster:
        forward = "kubectl -n monitoring port-forward service/kube-prometheus-stack-grafana 3000:80"
        rows.append(LookingPlace("grafana", f"bivouac shell {name} -- {forward}", is_url=False))
    if not target.has_console(spec):
        return rows
    if has_cluster:
        console_url = f"https://{region}.console.aws.amazon.com/eks/home?region={region}#/clusters/"
        rows.append(LookingPlace("cluster", console_url + quote(Names(name).cluster)))
    if record is not None:
        place = f"{record.bucket}?region={region}&prefix={quote(record.prefix)}/"
        url = f"https://s3.console.aws.amazon.com/s3/buckets/{place}"
        rows.append(LookingPlace("record", url))
    return rows


def _is_torn_down(state: CampaignState) -> bool:
    return Stage.TEARDOWN in state.finished_stages


def _open(rows: list[LookingPlace], what: str, console: Console) -> int:
    choices = {row.name: row for row in rows}
    if what not in choices:
        raise UserError("the campaign has no such place now", seen=what, cure=f"one of {', '.join(choices)}")
    row = choices[what]
    if not row.is_url:
        say(console, f"type: {row.address}")
    elif not webbrowser.open(row.address):
        say(console, f"no browser was found: {row.address}")
    return 0
