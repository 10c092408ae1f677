"""The worlds of these tests."""

from tests.worlds.checkpoint_files import job
from tests.worlds.refusing_kernel import pauses, refuse
from tests.worlds.supervisor_tier import disk

__all__ = ["disk", "job", "pauses", "refuse"]
