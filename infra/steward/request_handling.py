"""The steward's server for requests from outside: verify, prune and copy out checkpoints on live tiers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from pathlib import Path

from boto3.exceptions import Boto3Error
from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.parts import Altered
from infra.checkpoints import work
from infra.checkpoints.find import carry_place
from infra.checkpoints.place import FolderPlace, Place
from infra.checkpoints.requests import CARRIED, FOLDER, SUFFIX, Answer, TierRequest
from infra.errors import BivouacError, LeaseLost, LeaseUnproven
from infra.record.lease_thread import LeaseThread
from infra.record.store import CampaignStore
from infra.steward.seeing import agents
from trainer.contract import AGENT_PORT, COMMITTED_NAME, SHARED_CHECKPOINTS, step_folder
from trainer.contract.listing import CHECKPOINTS_PATH, VERDICTS_PATH, Listing, StepVerdict

_WORD_EVERY_S = 2.0
_STALE = timedelta(hours=1)
"""Age of a request from which it is ignored: its sender has gone."""
_TIMEOUT_S = 3600.0
_BUSY_PAUSE_S = 5.0
_NODES_AT_ONCE = 8


class RequestServer(LeaseThread):
    """Serves one request after the other, in a thread of its own, so that the steward's loop never waits for it."""

    name, every_s = "requests", 5.0

    def __init__(
        self,
        store: CampaignStore,
        agents: Callable[[], Mapping[str, str]],
        guard: Callable[[], None],
        shared: Path = Path(SHARED_CHECKPOINTS),
        bucket: Place | None = None,
    ) -> None:
        """`bucket`: the shared tier in S3, instead of the folder `shared`."""
        self._store, self._agents, self._guard = store, agents, guard
        self._place = bucket or FolderPlace(shared / store.campaign)
        self._said = 0.0

    def look(self) -> int:
        """Answer every waiting request and return their number. Raises `LeaseLost` before it touches anything."""
        self._guard()
        keys = set(self._store.keys(f"{FOLDER}/"))
        waiting = [key for key in sorted(keys) if key.endswith(".json") and not key.endswith(SUFFIX)]
        count = 0
        for key in waiting:
            name = key.removeprefix(f"{self._store.prefix}/").removesuffix(".json")
            # In this order: the sender removes its request before the answer.
            old_answer = self._store.figures(f"{name}{SUFFIX}", Answer)
            if (old_answer is not None and old_answer.done) or not self._store.has(f"{name}.json"):
                continue
            try:
                request = self._store.model(f"{name}.json", TierRequest)
                if request is None or datetime.now(UTC) - request.at > _STALE:
                    continue
                self._say(name, Answer(said="the steward has begun"))
                answer = self._do(request, partial(self._tell, name))
            except (LeaseLost, LeaseUnproven):
                raise  # this steward may not even write an answer
            except (ValueError, Altered, OSError, ClientError, BotoCoreError, Boto3Error) as error:
                answer = Answer(refused=("the steward could not do it", str(error)[:500], "see `checkpoints list`"))
            except BivouacError as error:
                answer = Answer(refused=(error.what, str(error.seen), error.cure))
            self._say(name, answer.model_copy(update={"done": True}))
            count += 1
        return count

    def _do(self, request: TierRequest, tell: Callable[[str], None]) -> Answer:
        match request.kind:
            case "verify":
                return self._verify(request, tell)
            case "carry":
                return self._carry(request.steps, tell)
            case "plan-prune":
                plan = work.pruning(self._place, request.keep, (), tell)
                return Answer(keep=plan.keep, proven=plan.proven, drop=plan.drop)
            case "prune":
                # Plan again, since training went on; remove only steps that the user saw in the first plan.
                plan = work.pruning(self._place, request.keep, (), tell)
                drop = tuple(row for row in plan.drop if row.step in request.steps)
                for row in drop:
                    self._guard()
                    tell(f"removing step {row.step}")
                    self._place.remove(row.step)
                return Answer(keep=plan.keep, proven=plan.proven, drop=drop)

    def _verify(self, request: TierRequest, tell: Callable[[str], None]) -> Answer:
        verdicts, unreachable = list[StepVerdict](), list[str]()
        if "shared" in request.tiers:
            present = [row.step for row in self._place.rows() if row.committed]
            steps = [step for step in present if not request.steps or step in request.steps]
            for verdict in work.verify(self._place, steps, tell):
                verdicts.append(verdict.model_copy(update={"tier": "shared"}))
        if "local" in request.tiers:
            agents = dict(self._agents())
            tell(f"{len(agents)} nodes read their own disks")
            with ThreadPoolExecutor(_NODES_AT_ONCE) as pool:
                looks = [(pod, pool.submit(_of_node, address, request.steps)) for pod, address in agents.items()]
                for pod, look in looks:
                    try:
                        verdicts += look.result()
                    except (OSError, ValueError) as error:
                        unreachable.append(f"{pod}: {error}"[:200])
        return Answer(verdicts=tuple(verdicts), unreachable=tuple(unreachable))

    def _carry(self, steps: tuple[int, ...], tell: Callable[[str], None]) -> Answer:
        """Copy a step (none: the newest sound one) from the shared tier to the campaign's folder in S3, the manifest
        last. Readers verify it. What was carried before stays if it is the same, and goes if another attempt's."""
        committed_steps = [row.step for row in self._place.rows() if row.committed]
        step = next(iter(steps), None) if steps else work.newest_sound(self._place, committed_steps, tell)
        if step is None:
            raise ValueError("no step is committed and sound on the shared tier")
        manifest, carried_place = self._place.manifest(step), carry_place(self._store)
        if (carried_bytes := carried_place.manifest_bytes(step)) == manifest.serialize():
            return Answer(carried=step)
        if carried_bytes is not None:
            carried_place.remove(step)
        prefix = f"{self._store.prefix}/{CARRIED}/{step_folder(step)}"
        for number, shard in enumerate(manifest.shards, 1):
            self._guard()
            tell(f"carrying {shard.file}, {number} of {len(manifest.shards)}")
            self._place.send(step, shard, self._store.s3, self._store.bucket, f"{prefix}/{shard.file}")
        self._store.put(f"{prefix}/{COMMITTED_NAME}", manifest.serialize())
        return Answer(carried=step)

    def _tell(self, name: str, text: str) -> None:
        if time.monotonic() - self._said > _WORD_EVERY_S:
            self._say(name, Answer(said=text))

    def _say(self, name: str, answer: Answer) -> None:
        self._store.put_json(f"{name}{SUFFIX}", answer.model_dump(mode="json"))
        self._said = time.monotonic()


def _of_node(address: str, steps: tuple[int, ...]) -> list[StepVerdict]:
    """Return the verdicts of a node's agent on these steps, or on every committed one, on its disk. Raises `OSError` or
    `ValueError` if it has not given them all in its time."""
    deadline = time.monotonic() + _TIMEOUT_S
    listing = _get(address, CHECKPOINTS_PATH, deadline)
    rows = () if listing is None else Listing.model_validate_json(listing).rows
    wanted_steps = [row.step for row in rows if row.committed and (not steps or row.step in steps)]
    answers = (_get(address, f"{VERDICTS_PATH}{step}", deadline) for step in wanted_steps)
    return [StepVerdict.model_validate_json(answer) for answer in answers if answer is not None]


def _get(address: str, path: str, deadline: float) -> bytes | None:
    """Return the answer's body, None after 404. Wait while the node serves another request."""
    while True:
        answer = agents.get(address, path, deadline - time.monotonic(), agents.LISTING_BYTES, AGENT_PORT)
        if answer.code == HTTPStatus.OK:
            return answer.body
        if answer.code == HTTPStatus.NOT_FOUND:
            return None
        if answer.code != HTTPStatus.TOO_MANY_REQUESTS:
            raise agents.NoAnswer(f"HTTP {answer.code}")
        time.sleep(_BUSY_PAUSE_S)
