"""The job's secrets, which an init container has put into the pod's memory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Iterable

_FILE = "/bivouac-secrets/values.json"
"""`trainer.contract.workload.SECRETS`."""


def take(names: Iterable[str]) -> None:
    """Put the values into the environment, which the job inherits. Raises `ValueError` for one that is missing."""
    wanted = list(names)
    if not wanted:
        return
    values = json.loads(Path(os.environ.get("BIVOUAC_SECRETS", _FILE)).read_text())
    missing = [name for name in wanted if name not in values]
    if missing:
        raise ValueError("the pod has no secret " + ", ".join(missing))
    os.environ.update({name: values[name] for name in wanted})
