"""The agent's shard server: it serves the node's shards over HTTP to ranks with the token.

It is apart from `neighbour` because the agent must not import torch before it has set torch's environment.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from trainer.builtin.checkpoint.files import open_regular

PREFIX = "/checkpoints/"
TOKEN_VARIABLE = "BIVOUAC_NEIGHBOUR_TOKEN"
"""Environment variable of the agent and its ranks; each request for a shard must carry the token."""
_PATH = re.compile(r"^/checkpoints/(step-\d{8,}/attempt-\d{4,}/[^/.][^/]*)$")
_RANGE = re.compile(r"^bytes=(\d{1,18})-(\d{1,18})$")


def new_token() -> None:
    """Set a new token, before the agent starts its ranks, which inherit the environment."""
    os.environ[TOKEN_VARIABLE] = secrets.token_hex(16)


def answer(request: BaseHTTPRequestHandler, root: Path) -> None:
    """Serve a range of a shard in a campaign's folder on the local tier: 403 without the token, 416 for an invalid
    range, 404 for anything else."""
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
        request.connection.settimeout(None)  # the reader's disk may be slow
        request.connection.sendfile(file, first, last + 1 - first)
