"""`bivouac exec NAME RANK -- COMMAND`: a command in the container of a rank."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from rich.console import Console

from infra.cli.look.inside import open_cluster
from infra.cli.records import record_of
from infra.cluster.execution import STDERR, STDOUT, Containers, Exec
from infra.cluster.ranks import Member
from infra.console.plain_console import say
from infra.errors import BivouacError, UserError

_STEPS = (signal.SIGINT, signal.SIGKILL)
"""What the first Ctrl-C sends, and the second."""
_TELLS_S = 5.0


def exec_command(
    campaign: str, region: str, rank: int, command: Sequence[str], stdin: bool, terminal: bool, console: Console
) -> int:
    """Run the command and return its exit code; with `stdin` it gets ours, with `terminal` a terminal of ours."""
    if terminal and not (sys.__stdin__ is not None and os.isatty(0) and os.isatty(1)):
        cure = "leave --tty out: -i alone passes a pipe or a file on"
        raise UserError("a terminal was asked for, and this is none", seen="standard input or output", cure=cure)
    with open_cluster(record_of(campaign, region), "exec") as cluster:
        member = cluster.rank(rank)
        cluster.note(member, os.path.basename(command[0]))
        containers = Containers(cluster.http)
        with containers.running(member.pod, member.container, command, terminal=terminal) as run:
            if terminal:
                return _on_terminal(run)
            if stdin:
                run.execution.feed(0)
            else:
                run.execution.end_input()
            try:
                with _ended_by_signals(run, member, console):
                    return run.execution.run(_pass_on)
            except BrokenPipeError:
                # Our reader has left (`| head`); the command hears of it when it prints again.
                return 128 + signal.SIGPIPE


def _pass_on(channel: int, data: bytes) -> None:
    """Write output as it is."""
    if channel in (STDOUT, STDERR):
        while data:
            data = data[os.write(channel, data) :]


def _on_terminal(run: Exec) -> int:
    """Pass each key on as it is: Ctrl-C becomes the command's."""
    attributes = termios.tcgetattr(0)
    with ExitStack() as stack:
        stack.callback(termios.tcsetattr, 0, termios.TCSADRAIN, attributes)
        former_handler = signal.signal(signal.SIGWINCH, lambda *_: run.execution.resize(shutil.get_terminal_size()))
        stack.callback(signal.signal, signal.SIGWINCH, former_handler)
        tty.setraw(0, termios.TCSADRAIN)
        run.execution.resize(os.get_terminal_size(0))
        run.execution.feed(0)
        return run.execution.run(_pass_on)


@contextmanager
def _ended_by_signals(run: Exec, member: Member, console: Console) -> Iterator[None]:
    """Pass SIGINT and SIGTERM on to the command; the second time end it, the third time leave it alone."""
    signals: list[int] = []
    senders: list[threading.Thread] = []
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def on_signal(number: int, frame: Any) -> None:
        signals.append(number)
        if len(signals) > len(_STEPS):
            say(console, f"left: the command may run on in pod {member.pod}")
            former[signal.SIGINT](number, frame)  # type: ignore[operator,misc]
        number_to_send = number if len(signals) == 1 else _STEPS[1]
        # Not here: a handler interrupts the thread that reads the command's output.
        senders.append(threading.Thread(target=_send, args=(run, number_to_send, member, console), daemon=True))
        senders[-1].start()

    for number in former:
        signal.signal(number, on_signal)
    try:
        yield
        for sender in list(senders):  # the command may have ended before it is console what was sent
            sender.join(_TELLS_S)
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _send(run: Exec, number: int, member: Member, console: Console) -> None:
    name = signal.Signals(number).name
    try:
        processes = run.end(number)
        say(console, f"{name} sent to {processes} processes in pod {member.pod}")
    except BivouacError as error:
        say(console, f"{name} could not be sent, and the command goes on: {error}")
