"""An agent whose port somebody has: named with its cure, and not blamed on the storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.builtin.serving import Node, serve
from trainer.contract import AGENT_PORT, ExitCode
from trainer.errors import TrainerError, classify
from trainer.supervisor.place import Place

ADDRESS = "127.66.66.6"


def test_a_port_that_is_taken_is_named_and_ends_with_70(tmp_path: Path) -> None:
    node = Node(Place("camp", 1, "node-0", ADDRESS, 0, 1, 1, "pod-0:29500"), 10, tmp_path, tmp_path)
    first = serve(node)
    try:
        with pytest.raises(TrainerError, match=f"{ADDRESS}:{AGENT_PORT}") as refused:
            serve(node)
    finally:
        first.shutdown()
        first.server_close()
    known = classify(refused.value)
    assert known.exit_code == ExitCode.INTERNAL and known.cure, "70 restarts the process; 74 would suspect a tier"
    serve(node).shutdown()
