"""The stacks of a gang that hangs, asked of its agents before the gang is ended, and kept in the record."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

from infra.record.store import STACKS, CampaignStore
from infra.steward.seeing import agents
from infra.steward.seeing.sources import PASSING

log = logging.getLogger("steward")
_PATH = "/stacks"
"""Of an agent: `trainer.supervisor.stacks`."""
_WITHIN_S = 25.0
"""An agent takes 20 s at most. The gang hangs for minutes already, and waits no longer than that for its end."""
_MOST_PODS = 64
"""All of them are asked at once, so that those that do not answer are waited for once."""
Get = Callable[[str, str, float], agents.HttpAnswer]


def keep_stacks(
    store: CampaignStore, attempt: int, addresses: Mapping[str, str], suspect: str | None = None, get: Get = agents.get
) -> tuple[str, ...]:
    """Store the stacks of each pod that answers, and return the names of the objects below the record. `addresses`: pod
    -> its agent's. `suspect`: a pod that is asked though there are more than are kept. No trouble of it delays the end
    of a gang that hangs."""
    pods = sorted(addresses, key=lambda pod: (pod != suspect, pod))[:_MOST_PODS]
    with ThreadPoolExecutor(_MOST_PODS, thread_name_prefix="stacks") as pool:
        texts = dict(zip(pods, pool.map(lambda pod: _ask(addresses[pod], get), pods), strict=True))
    names = list[str]()
    for pod, text in texts.items():
        name = f"{STACKS}attempt-{attempt}/{pod}.txt"
        if text is None:
            continue
        try:
            store.put(f"{store.prefix}/{name}", text.encode(errors="replace"))
        except PASSING as error:
            log.warning("the stacks of %s are not kept: %s", pod, error)
        else:
            names.append(name)
    return tuple(sorted(names))


def _ask(address: str, get: Get) -> str | None:
    """Return an agent's stacks; None if it does not answer, or knows no such question."""
    try:
        answer = get(address, _PATH, _WITHIN_S)
        text = json.loads(answer.body)["stacks"] if answer.code == HTTPStatus.OK else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        log.info("no stacks from %s: %s", address, error)
        return None
    return text if isinstance(text, str) else None
