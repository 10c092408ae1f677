from __future__ import annotations

from tests.worlds.refusing_kernel import pauses, refuse

__all__ = ["pauses", "refuse"]
