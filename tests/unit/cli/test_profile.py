"""`bivouac profile`: what it asks in the container, and what it says when there is no trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from infra.cli.look.profile import fetch_trace
from infra.cluster.execution import STDERR, STDOUT
from infra.cluster.ranks import Member
from infra.errors import TemporaryError
from tests.worlds.progress import SilentProgress

MEMBER = Member(attempt=1, node=0, pod="c-a1-gang-0-0", container="trainer", phase="Running", ending=False)
PROGRESS: Any = SilentProgress()


class Container:
    """Answers one command with these outputs and this exit code."""

    def __init__(self, code: int, *said: tuple[int, bytes]) -> None:
        self.code, self.said, self.asked = code, said, list[str]()

    @contextmanager
    def running(self, pod: str, container: str, words: Sequence[str]) -> Iterator[Any]:
        self.asked = [pod, container, *words]

        def run(hear: Callable[[int, bytes], None]) -> int:
            for channel, data in self.said:
                hear(channel, data)
            return self.code

        yield SimpleNamespace(execution=SimpleNamespace(end_input=lambda: None, run=run))


def test_the_path_that_the_rank_prints_is_what_is_fetched() -> None:
    container: Any = Container(
        0, (STDERR, b"a warning\n"), (STDOUT, b"/tmp/bivouac-run-x/trace-rank"), (STDOUT, b"-9.json.gz\n")
    )
    assert fetch_trace(container, MEMBER, 9, 4, PROGRESS) == "/tmp/bivouac-run-x/trace-rank-9.json.gz"
    assert container.asked[:2] == ["c-a1-gang-0-0", "trainer"]
    assert container.asked[2:] == ["python", "-m", "trainer.builtin.watch.profile", "--rank", "9", "--steps", "4"]


@pytest.mark.parametrize("said", [[(STDERR, b"rank 9 does not train here yet\n")], []])
def test_without_a_trace_the_containers_words_are_told(said: list[tuple[int, bytes]]) -> None:
    container: Any = Container(69, *said)
    with pytest.raises(TemporaryError, match="does not train here yet" if said else "exit code 69"):
        fetch_trace(container, MEMBER, 9, 4, PROGRESS)
