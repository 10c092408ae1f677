"""For all tests of one process, whichever comes first."""

from __future__ import annotations

import hypothesis

import infra  # noqa: F401  before anything imports pulumi: it sets what grpc must know of forks

# A machine that stalls is no bug, and the same commit sees the same examples wherever it is tested.
hypothesis.settings.register_profile("bivouac", deadline=None, derandomize=True)
hypothesis.settings.load_profile("bivouac")
