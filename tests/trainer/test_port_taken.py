"""An agent whose port somebody has: named with its cure, and not blamed on the storage."""

from __future__ import annotations

import pytest

from trainer.builtin.agent import end_of
from trainer.contract import AGENT_PORT, ExitCode
from trainer.supervisor.serving import serve

ADDRESS = "127.66.66.6"


def test_a_port_that_is_taken_is_named_and_ends_with_70() -> None:
    first = serve(ADDRESS, dict, lambda path: None)
    try:
        with pytest.raises(RuntimeError, match=f"{ADDRESS}:{AGENT_PORT}") as refused:
            serve(ADDRESS, dict, lambda path: None)
    finally:
        first.shutdown()
        first.server_close()
    end = end_of(refused.value)
    assert end.code == ExitCode.INTERNAL and "cure" in end.detail, "70 restarts the process; 74 would suspect a tier"
    serve(ADDRESS, dict, lambda path: None).shutdown()
