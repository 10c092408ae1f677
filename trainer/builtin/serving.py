"""The state of a node's ranks from their heartbeats, and its shards, on the server that every job has."""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from trainer.builtin.checkpoint.files import open_regular
from trainer.builtin.failures.first_end import state_of
from trainer.builtin.failures.verdict import seen_alive
from trainer.builtin.heartbeat import Beat, read_beats
from trainer.contract import AGENT_PORT, Phase, RankStatus, Status
from trainer.errors import TrainerError
from trainer.place import generation
from trainer.supervisor import serving
from trainer.supervisor.place import Place
from trainer.supervisor.sealing import listing

_ORDER = list(Phase)
PREFIX = "/checkpoints/"
TOKEN_VARIABLE = "BIVOUAC_NEIGHBOUR_TOKEN"
"""Environment variable of the agent and its ranks; each request for a shard must carry the token."""
_PATH = re.compile(r"^/checkpoints/(step-\d{8,}/attempt-\d{4,}/[^/.][^/]*)$")
_RANGE = re.compile(r"^bytes=(\d{1,18})-(\d{1,18})$")


@dataclass
class Node:
    """The agent's place in the campaign, and the folders of its heartbeats and checkpoints."""

    place: Place
    """It changes once, when the nodes have agreed on their order."""
    steps: int
    run: Path
    checkpoints: Path
    """The campaign's folder on the local tier, which is listed and from which other nodes may fetch shards."""
    started: float = field(default_factory=time.monotonic)

    def status(self) -> Status:
        beats = {beat.rank: beat for beat in read_beats(self.run)}
        place, count = self.place, self.place.ranks_per_node
        ranks = range(place.node_rank * count, (place.node_rank + 1) * count)
        slowest = min(beats.values(), key=lambda beat: beat.step, default=None)
        return Status(
            campaign=place.campaign,
            attempt=place.attempt,
            generation=generation(),
            node=place.node_name,
            phase=min((beat.phase for beat in beats.values()), key=_ORDER.index, default=Phase.STARTING),
            step=slowest.step if slowest and len(beats) == count else 0,
            steps=self.steps,
            committed_step=max((beat.committed_step for beat in beats.values()), default=-1),
            tokens=slowest.tokens if slowest else 0,
            loss=slowest.loss if slowest else None,
            step_seconds=slowest.step_seconds if slowest else None,
            data_wait_seconds=max((b.data_wait_seconds for b in beats.values() if b.data_wait_seconds), default=None),
            figures=slowest.figures if slowest else None,
            alarms=max((beat.alarms for beat in beats.values()), default=0),
            ranks=tuple(self._rank(rank, beats.get(rank)) for rank in ranks),
            seen=seen_alive(self.run, list(beats.values())),
        )

    def _rank(self, rank: int, beat: Beat | None) -> RankStatus:
        if beat is None:
            age = time.monotonic() - self.started
            return RankStatus(rank=rank, alive=True, step=0, heartbeat_age_s=round(age, 3))
        age = time.monotonic() - beat.at
        alive = beat.outcome is None and state_of(beat.pid) not in ("", "Z", "X")
        return RankStatus(rank=rank, alive=alive, step=beat.step, heartbeat_age_s=round(age, 3))

    def give_shard(self, request: BaseHTTPRequestHandler) -> bool:
        """Answer a request for a shard; return whether it was one."""
        if not request.path.startswith(PREFIX):
            return False
        answer(request, self.checkpoints)
        return True


def serve(node: Node) -> ThreadingHTTPServer:
    """Start serving in a daemon thread.

    Raises `TrainerError` when the port is taken: a plain `OSError` would count as a storage failure.
    """
    address = node.place.pod_ip
    try:
        return serving.serve(
            address,
            # By way of JSON, which has no number that is not finite.
            status=lambda: json.loads(node.status().model_dump_json()),
            answer_other=lambda path: listing.answer(path, node.checkpoints, node.place.campaign, node.place.node_name),
            port=AGENT_PORT,
            stream=node.give_shard,
        )
    except OSError as error:
        cure = "end the process that listens there (ss -ltnp), or give the pod a network of its own"
        raise TrainerError("the agent cannot serve", f"{address}:{AGENT_PORT}: {error.strerror}", cure) from error


def new_token() -> None:
    """Set a new token, before the agent starts its ranks, which inherit the environment."""
    os.environ[TOKEN_VARIABLE] = secrets.token_hex(16)


def answer(request: BaseHTTPRequestHandler, root: Path) -> None:
    """Serve a range of a shard in a campaign's folder on the local tier: 403 without the token, 416 for an invalid
    range, 404 for anything else."""
    token, path = os.environ.get(TOKEN_VARIABLE, ""), _PATH.match(request.path)
    authorization = request.headers.get("Authorization", "")
    if not token or not hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
        request.send_error(403, "not a rank of this attempt")
        return
    try:
        file = open_regular(root / path.group(1)) if path else None
    except OSError:
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
