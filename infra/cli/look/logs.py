"""`bivouac logs NAME`: what the job's pods printed, from the record, while they run and afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from rich.console import Console

from infra.cli.records import record_of
from infra.errors import UserError
from infra.plan.layout import layout
from infra.record import pod_logs
from infra.record.store import CampaignStore
from infra.report.trainer_log import POD
from infra.session.session import stored_spec

_LOOK_S = 2.0


def logs_command(
    campaign: str, region: str, attempt: int | None, rank: int | None, follow: bool, console: Console
) -> int:
    """Print the logs; with `follow` until the campaign's training is over."""
    store = record_of(campaign, region)
    for line in lines(store, attempt, rank, follow, lambda: time.sleep(_LOOK_S)):
        console.print(line, markup=False, soft_wrap=True)
    return 0


def lines(
    store: CampaignStore, attempt: int | None, rank: int | None, follow: bool, pause: Callable[[], None]
) -> Iterator[str]:
    """Yield the lines of an attempt's pods (None: of the newest one, and those that come while it is followed), of one
    rank's node or of all, each then with its node. Raises `UserError` if there are none."""
    node = _node_of(store, rank)
    read: dict[str, int] = {}
    rest: dict[str, str] = {}
    while True:
        over = store.state().outcome is not None
        for name, index in sorted(_chosen(store, attempt, node, read).items(), key=lambda item: item[1]):
            prefix = "" if node is not None else f"node {index} | "
            for key in pod_logs.pieces(store, name)[read.setdefault(name, 0) :]:
                text = rest.pop(name, "") + (store.get(key) or b"").decode(errors="replace")
                whole, _, rest[name] = text.rpartition("\n")
                read[name] += 1
                yield from (prefix + line for line in whole.splitlines())
            if (over or not follow) and rest.get(name):  # a line without an end
                yield prefix + rest.pop(name)
        if over or not follow:
            if not read:
                raise UserError(
                    "there are no logs of this",
                    seen=f"attempt {attempt or 'any'}, rank {'any' if rank is None else rank}",
                    cure=f"`bivouac status {store.campaign}` says which attempts there were",
                )
            return
        pause()


def _node_of(store: CampaignStore, rank: int | None) -> int | None:
    if rank is None:
        return None
    shape = layout(stored_spec(store))
    if not 0 <= rank < shape.world_size:
        raise UserError("there is no such rank", seen=rank, cure=f"write 0 to {shape.world_size - 1}")
    return rank // shape.ranks_per_node


def _chosen(store: CampaignStore, attempt: int | None, node: int | None, read: dict[str, int]) -> dict[str, int]:
    """Return pod -> node index in the gang: of the attempt, or of the newest and of those that were being read."""
    found = {name: match for name in pod_logs.pods(store) if (match := POD.search(name)) is not None}
    newest = max((int(match["attempt"]) for match in found.values()), default=0)
    return {
        name: int(match["index"])
        for name, match in found.items()
        if (int(match["attempt"]) == (attempt or newest) or name in read) and node in (None, int(match["index"]))
    }
