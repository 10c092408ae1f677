"""Networks and ports of the loopback interface that no other test of a run takes.

Of ports that are drawn from 10,000, two of 28 jobs that play at once are equal in four of a hundred runs.
"""

from __future__ import annotations

import itertools
import os
import random

_LOWEST_PORT, _PORTS = 20_000, 10_000
_NETS = 250
_OFFSET = random.randrange(_PORTS)
"""Tests of another run may be beside these."""
_NUMBERS = itertools.count()


def _number() -> int:
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    share = _PORTS // workers
    return worker * share + (_OFFSET + next(_NUMBERS)) % share


def own_network() -> str:
    """Return the first three numbers of 250 addresses, without a dot behind."""
    number = _number()
    return f"127.{1 + number // _NETS}.{number % _NETS}"


def own_port() -> int:
    """Return a port below those that the kernel gives away."""
    return _LOWEST_PORT + _number()
