"""For all tests of one process, whichever comes first."""

from __future__ import annotations

import infra.lifecycle  # noqa: F401  before anything imports pulumi: it sets what grpc must know of forks
