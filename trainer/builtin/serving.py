"""The state of a node's ranks from their heartbeats, and its shards, on the server that every job has."""

from __future__ import annotations

import errno
import hmac
import json
import os
import re
import secrets
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from trainer.builtin.checkpoint.files import open_regular
from trainer.builtin.failures.first_end import state_of
from trainer.builtin.failures.verdict import seen_alive
from trainer.builtin.heartbeat import Beat, read_beats
from trainer.contract import Phase, RankStatus, Status
from trainer.errors import lasting
from trainer.place import generation
from trainer.supervisor.ends import End
from trainer.supervisor.place import Place
from trainer.supervisor.running import Running
from trainer.supervisor.sealing import listing
from trainer.supervisor.serving import Answer

_ORDER = list(Phase)
PREFIX = "/checkpoints/"
TOKEN_VARIABLE = "BIVOUAC_NEIGHBOUR_TOKEN"
"""Environment variable of the agent and its ranks; each request for a shard must carry the token."""
_PATH = re.compile(r"^/checkpoints/(step-\d{8,}/attempt-\d{4,}/[^/.][^/]*)$")
_RANGE = re.compile(r"^bytes=(\d{1,18})-(\d{1,18})$")


class Node(Running):
    """One node's ranks as others see them."""

    def __init__(self, place: Place, steps: int, run: Path, checkpoints: Path) -> None:
        """`run`: folder of the heartbeats. `checkpoints`: the campaign's folder on the local tier, which is listed and
        from which other nodes may fetch shards."""
        super().__init__({}, place, run)
        self.steps, self.checkpoints, self._start_s = steps, checkpoints, time.monotonic()

    def newest_steps(self) -> tuple[int, int]:
        beats = read_beats(self.run_folder)
        return min((beat.step for beat in beats), default=0), max((beat.committed_step for beat in beats), default=-1)

    def termination(self, end: End) -> dict[str, Any]:
        """Return the content of a `Termination`, with what is known of each rank."""
        ranks = [rank.model_dump(mode="json", exclude_defaults=True) for rank in end.ranks]
        return {**super().termination(end), "ranks": ranks}

    def status(self) -> dict[str, Any]:
        """Return the status by way of JSON, which has no number that is not finite."""
        beats = {beat.rank: beat for beat in read_beats(self.run_folder)}
        place, count = self.place, self.place.ranks_per_node
        ranks = range(place.node_rank * count, (place.node_rank + 1) * count)
        slowest = min(beats.values(), key=lambda beat: beat.step, default=None)
        status = Status(
            campaign=place.campaign,
            attempt=place.attempt,
            generation=generation(),
            node=place.node_name,
            phase=min((beat.phase for beat in beats.values()), key=_ORDER.index, default=Phase.STARTING),
            step=slowest.step if slowest and len(beats) == count else 0,
            steps=self.steps,
            committed_step=self.newest_steps()[1],
            tokens=slowest.tokens if slowest else 0,
            loss=slowest.loss if slowest else None,
            step_seconds=slowest.step_seconds if slowest else None,
            data_wait_seconds=max((b.data_wait_seconds for b in beats.values() if b.data_wait_seconds), default=None),
            figures=slowest.figures if slowest else None,
            alarms=max((beat.alarms for beat in beats.values()), default=0),
            ranks=tuple(self._rank(rank, beats.get(rank)) for rank in ranks),
            seen=seen_alive(self.run_folder, list(beats.values())),
        )
        content: dict[str, Any] = json.loads(status.model_dump_json())
        return content

    def _rank(self, rank: int, beat: Beat | None) -> RankStatus:
        if beat is None:
            age = time.monotonic() - self._start_s
            return RankStatus(rank=rank, alive=True, step=0, heartbeat_age_s=round(age, 3))
        age = time.monotonic() - beat.at
        alive = beat.outcome is None and state_of(beat.pid) not in ("", "Z", "X")
        return RankStatus(rank=rank, alive=alive, step=beat.step, heartbeat_age_s=round(age, 3))

    def answer(self, path: str) -> Answer | None:
        return listing.answer(path, self.checkpoints, self.place.campaign, self.place.node_name)

    def stream(self, request: BaseHTTPRequestHandler) -> bool:
        """Answer a request for a shard; return whether it was one."""
        if not request.path.startswith(PREFIX):
            return False
        answer(request, self.checkpoints)
        return True


def new_token() -> None:
    """Set a new token, before the agent starts its ranks, which inherit the environment."""
    os.environ[TOKEN_VARIABLE] = secrets.token_hex(16)


def answer(request: BaseHTTPRequestHandler, root: Path) -> None:
    """Serve a range of a shard in a campaign's folder on the local tier: 403 without the token, 416 for an invalid
    range, 503 for a shard that cannot be read now, 404 for anything else."""
    token, path = os.environ.get(TOKEN_VARIABLE, ""), _PATH.match(request.path)
    authorization = request.headers.get("Authorization", "")
    if not token or not hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
        request.send_error(403, "not a rank of this attempt")
        return
    try:
        file = open_regular(root / path.group(1)) if path else None
    except OSError as error:
        if not lasting(error) and error.errno != errno.EINVAL:
            request.send_error(503, f"the shard cannot be read: {error.strerror}")
            return
        file = None
    if file is None:
        request.send_error(404, "no such shard")
        return
    with file:
        size, range_match = os.fstat(file.fileno()).st_size, _RANGE.match(request.headers.get("Range", ""))
        first_byte, last_byte = map(int, range_match.groups()) if range_match else (0, -1)
        if not first_byte <= last_byte < size:
            request.send_error(416, "no range of this shard")
            return
        request.send_response(206)
        request.send_header("Content-Length", str(last_byte + 1 - first_byte))
        request.send_header("Content-Range", f"bytes {first_byte}-{last_byte}/{size}")
        request.end_headers()
        request.connection.settimeout(None)  # the reader's disk may be slow
        request.connection.sendfile(file, first_byte, last_byte + 1 - first_byte)
