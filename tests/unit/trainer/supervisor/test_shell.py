"""The remote shell of `mpirun`: whom it calls, and how long it waits for a node that does not come up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.supervisor import shell


def test_the_nodes_are_named_in_order_by_the_operators_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hostfile").write_text("n0 slots=8\n\n  \nn1 slots=8\nn2\n")
    monkeypatch.setenv("BIVOUAC_MPI_HOSTS", str(tmp_path / "hostfile"))
    assert shell.hosts() == ["n0", "n1", "n2"]


@pytest.mark.parametrize(
    ("words", "host", "command"),
    [
        (["n1", "orted", "--tree"], "n1", "orted --tree"),
        (["-x", "n1", "orted"], "n1", "orted"),
        (["-o", "Port=1", "-p", "22", "-l", "me", "-i", "key", "-q", "n1", "a", "-p", "b"], "n1", "a -p b"),
    ],
)
def test_options_of_ssh_mean_nothing(
    words: list[str], host: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(shell, "_ask", lambda *arguments: asked.append(arguments) or 7)
    assert shell.call(words) == 7 and asked == [(host, {"command": command}, 600.0)]


@pytest.mark.parametrize("words", [[], ["n1"], ["-p", "22", "n1"]])
def test_a_call_without_a_command_is_refused(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "_ask", lambda *arguments: 0)
    assert shell.call(words) == 255


def test_a_node_that_does_not_come_up_is_called_until_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now, tries = [0.0], []

    def refuse(address: tuple[str, int], timeout: float) -> Any:
        tries.append(address)
        raise ConnectionRefusedError(111, "Connection refused")

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(shell, "socket", SimpleNamespace(create_connection=refuse))
    monkeypatch.setattr(shell, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    assert shell._ask("n1", {"command": "true"}, 2.0) == 255
    assert tries == [("n1", shell.PORT)] * 5 and "node n1 cannot be called" in capsys.readouterr().err
    assert shell._ask("n1", {"end": {}}, 0.0) == 255 and len(tries) == 6
