"""A job whose ranks are forked from a warm process (`ranks`): a rank's death starts all ranks again in place.

All nodes meet (`trainer.supervisor.in_place`), and node 0 chooses the checkpoint as for an attempt. What a restart in
place does not answer, or has answered too often, ends the attempt: the steward then makes the pods anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any, Mapping, Sequence

from trainer.contract.exits import NOTHING_SOUND, PEER_LOST
from trainer.supervisor import ends, family
from trainer.supervisor.ends import DONE, INTERNAL, STORAGE, End
from trainer.supervisor.failures import LastWords
from trainer.supervisor.in_place.generations import Generations
from trainer.supervisor.in_place.meeting import Meeting, Word
from trainer.supervisor.job import Job
from trainer.supervisor.launcher import Launcher, Warm
from trainer.supervisor.place import Place
from trainer.supervisor.sealing.shared import NoSoundSeal
from trainer.supervisor.warm import ranks

MOST = 3
"""Restarts in place of one attempt."""
_MAY_PASS = (signal.SIGKILL, signal.SIGSEGV)
"""Signals that a job does not send itself and that do not point to a lost peer or a broken device."""
_LOOK_S = 0.5
_TOGETHER_S = 0.2
"""Ranks that end within this time have ended because of one death."""
_MEET_S = 15.0
"""For all nodes to end their ranks and meet; half of what the steward waits for a silent pod, unless told otherwise."""


class WarmJob(Job):
    def __init__(self, config: Mapping[str, Any], place: Place, shared: Path, run: Path, local: Path) -> None:
        super().__init__(config, place, shared, run, local)
        self._trouble: End | None = None
        """Why no restart was possible, or whose ranks had died."""
        self._sealed_alone = threading.RLock()
        self._heard: queue.Queue[dict[str, Any]] = queue.Queue()
        self._left = 0
        """Number of this node's ranks that run."""
        self._meeting = Meeting(place, _MEET_S)
        self._culprit: Word | None = None
        """The death after which no new step is known yet."""

    def emit(self, event: str, **fields: object) -> None:
        """Say a line with the generation, and after its first step how long the restart took."""
        super().emit(event, **fields, **({"generation": self.generation} if self.generation else {}))
        if event == "step" and (culprit := self._culprit):
            self._culprit = None
            self.emit("restarted_in_place", step=fields["step"], **culprit.event())

    def take(self, message: Mapping[str, Any]) -> dict[str, Any]:
        return self._meeting.table.take(message)

    def _start(self, words: Sequence[str], environment: Mapping[str, str], pass_fds: Sequence[int] = ()) -> str:
        self._line, child_socket = socket.socketpair()
        with child_socket:
            variables = {**environment, ranks.SOCKET: str(child_socket.fileno())}
            if start_error := super()._start(words, variables, (child_socket.fileno(),)):
                return start_error
        threading.Thread(target=self._follow, name="ranks", daemon=True).start()
        return ""

    def _seal_finished(self) -> None:
        with self._sealed_alone:
            super()._seal_finished()

    def _end(self, code: int) -> End:
        return (None if self.stopping else self._trouble) or super()._end(code)

    def _follow(self) -> None:
        """Start the ranks, and start them again after deaths, until the job is over."""
        assert self.process is not None
        threading.Thread(target=self._listen, name="ranks' ends", daemon=True).start()
        try:
            end = Generations(self, self.place.node_name, self._meeting, MOST).run()
            self._trouble = end if end.reason == PEER_LOST else None
        except NoSoundSeal as error:
            self._trouble = End(STORAGE, str(error), NOTHING_SOUND)
        except OSError as error:
            if not self._over.is_set():
                self._trouble = ends.error_end(error, self.tier)
        finally:
            if not self.stopping:  # ranks that are asked to stop have their grace
                self._end_ranks()
            with contextlib.suppress(OSError):  # its process has ended
                self._line.shutdown(socket.SHUT_RDWR)

    # The line to the warm process.

    def _listen(self) -> None:
        with self._line.makefile("r") as lines:
            for line in lines:
                self._heard.put(json.loads(line))
        self._heard.put({"rank": -1, "code": 0, "left": 0})

    def _next(self, seconds: float) -> dict[str, Any] | None:
        """Return the next rank's end; None: there was none within the time."""
        try:
            rank_end: dict[str, Any] = self._heard.get(timeout=seconds)
        except queue.Empty:
            return None
        self._left = rank_end["left"]
        return rank_end

    def _order(self, variables: Mapping[str, str], command: Sequence[str]) -> None:
        """Have the ranks started, with other words than the first time if there are any."""
        self._left = self.place.ranks_per_node
        self._line.sendall((json.dumps({"variables": variables, "command": command}) + "\n").encode())
        if self.stopping:  # it came while they were started
            self._end_group(signal.SIGTERM)

    def _end_ranks(self) -> None:
        """Kill all below this process but the warm one, and wait until it has told the ranks' ends."""
        assert self.process is not None
        family.end_all(self.process.pid, {self.process.pid})
        while self._left:
            self._next(_LOOK_S)

    # A death, and what follows.

    def start_ranks(self, generation: int, over_event: threading.Event) -> End:
        """Start this node's ranks, after a death from the newest sound checkpoint; return how they ended. Those that
        are asked to stop have their grace."""
        if generation:
            self._restart()
        else:
            self._order({"TORCHELASTIC_RESTART_COUNT": "0"}, ())
        end = self._rank_end(over_event)
        if end.code != DONE:
            self._end_ranks()
        return end

    def _rank_end(self, over_event: threading.Event) -> End:
        """Wait for a rank that fails, here or on another node."""
        while not self.stopping or self._left:
            rank_end = self._next(_LOOK_S)
            if self.stopping:
                continue
            if rank_end is None:
                if over_event.is_set():
                    return End(INTERNAL, "a process on another node has died", PEER_LOST)
            elif rank_end["code"]:
                rank_ends = [rank_end]
                while self._left and (rank_end := self._next(_TOGETHER_S)):
                    rank_ends.append(rank_end)
                death = min(rank_ends, key=lambda candidate: -candidate["code"] not in _MAY_PASS)
                assert isinstance(self.launcher, Warm)
                self.launcher.note_failure(death["code"])
                return ends.rank_end(death["code"], death["rank"], -death["code"] in _MAY_PASS)
            elif not rank_end["left"]:
                break
        return End(DONE)

    def suspicion(self) -> str:
        """Return nothing: the job's image may have no `nvidia-smi`, and signals of broken devices are refused."""
        return ""

    def prepare(self, generation: int, culprit: Word) -> None:
        assert isinstance(self.launcher, Warm)
        self.launcher.note_failure(0)
        self.generation, self._culprit = generation, culprit

    def _restart(self) -> None:
        with self._sealed_alone:  # what is chosen from is not sealed into meanwhile
            self._seal_finished()
            resume = self.sealing.resume(self.generation)
        if self.stopping:
            return
        self.progress.begin(self.generation, self.committed_step)
        self.words, self.heard = LastWords(), time.monotonic()
        host, _, port = self.place.rendezvous.rpartition(":")
        # A port of its own: a rank of the last start that has not yet ended on another node does not join this one.
        place = self.place._replace(rendezvous=f"{host}:{int(port) + self.generation}")
        start = Warm(self.config, place)  # its words and variables may name the checkpoint or the port
        variables = {
            **start.environment(resume, str(self.run_folder)),
            "TORCHELASTIC_RESTART_COUNT": str(self.generation),
        }
        self._order(variables, Launcher.command(start, {**os.environ, **variables}))
