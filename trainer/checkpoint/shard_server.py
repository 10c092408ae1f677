"""The agent's side of shards between nodes: it serves its node's own over HTTP to whoever knows the token.

Apart from `neighbour`, since the agent must not import torch before it has set what torch reads.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from trainer.checkpoint.files import open_regular

PREFIX = "/checkpoints/"
TOKEN_VARIABLE = "BIVOUAC_NEIGHBOUR_TOKEN"
"""Of the agent and its ranks: whoever asks for a shard must know it."""
_PATH = re.compile(r"^/checkpoints/(step-\d{8}/attempt-\d{4,}/[^/.][^/]*)$")
_RANGE = re.compile(r"^bytes=(\d{1,18})-(\d{1,18})$")


def new_token() -> None:
    """Called by the agent before it starts its ranks, which inherit the environment."""
    os.environ[TOKEN_VARIABLE] = secrets.token_hex(16)


def answer(request: BaseHTTPRequestHandler, root: Path) -> None:
    """Serve a range of one shard below a campaign's folder on the local tier; 403 without the token, 416 for what is
    no range of it, 404 for anything else."""
    token, path = os.environ.get(TOKEN_VARIABLE, ""), _PATH.match(request.path)
    said = request.headers.get("Authorization", "")
    if not token or not hmac.compare_digest(said.encode(), f"Bearer {token}".encode()):
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
        size, asked = os.fstat(file.fileno()).st_size, _RANGE.match(request.headers.get("Range", ""))
        first, last = map(int, asked.groups()) if asked else (0, -1)
        if not first <= last < size:
            request.send_error(416, "no range of this shard")
            return
        request.send_response(206)
        request.send_header("Content-Length", str(last + 1 - first))
        request.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        request.end_headers()
        request.connection.sendfile(file, first, last + 1 - first)
