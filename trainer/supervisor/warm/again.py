"""A job whose ranks are forked from a warm process (`ranks`): a rank's death starts all ranks again in place.

All nodes take part. The node whose rank died says so in a file of the shared tier, the others end their ranks when they
see it, and node 0 chooses the checkpoint as for an attempt. What a restart in place does not answer, or has answered
too often, ends the attempt: the steward then makes the pods anew.
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

from trainer.contract.exits import NOTHING_SOUND
from trainer.supervisor import ends, family, seal
from trainer.supervisor.ends import STORAGE, End
from trainer.supervisor.failures import LastWords
from trainer.supervisor.job import Job
from trainer.supervisor.launcher import Launcher, Warm
from trainer.supervisor.place import Place
from trainer.supervisor.sealing.shared import NothingSound
from trainer.supervisor.warm import ranks

MOST = 3
"""Restarts in place of one attempt."""
_MAY_PASS = (signal.SIGKILL, signal.SIGSEGV)
"""Signals that a job does not send itself and that, unlike SIGBUS, do not point to a broken device."""
_LOOK_S = 0.5
_TOGETHER_S = 0.2
"""Ranks that end within this time have ended because of one death."""
_HEARD_S = 10.0
"""Wait for another node's word after a rank of this node has failed because it lost its peer."""


class Again(Job):
    def __init__(self, config: Mapping[str, Any], place: Place, shared: Path, run: Path, local: Path) -> None:
        super().__init__(config, place, shared, run, local)
        self._trouble: End | None = None
        """Why no restart was possible."""
        self._sealed_alone = threading.RLock()
        self._heard: queue.Queue[dict[str, Any]] = queue.Queue()
        self._left = 0
        """Number of this node's ranks that run."""
        self._died: dict[str, Any] = {}
        """The death after which no new step is known yet."""

    def emit(self, event: str, **fields: object) -> None:
        """Say a line with the generation, and after its first step how long the restart took."""
        super().emit(event, **fields, **({"generation": self.generation} if self.generation else {}))
        if event == "step" and (death := self._died):
            self._died = {}
            seconds = round(max(0.0, time.time() - death.pop("at")), 2)
            self.emit("restarted_in_place", step=fields["step"], seconds=seconds, **death)

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
            self._order({"TORCHELASTIC_RESTART_COUNT": "0"}, ())
            while (death := self._death()) and self._is_answered(death) and self._restart():
                pass
        except NothingSound as error:
            self._trouble = End(STORAGE, str(error), NOTHING_SOUND)
        except OSError as error:
            if not self._over.is_set():
                self._trouble = End(STORAGE, ends.of_error(error, self.tier))
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

    def _restart_note(self) -> Path:
        """The file with which a node tells the others that all ranks start again."""
        return self.tier / "resume" / f"attempt-{self.place.attempt:04d}-restart-{self.generation + 1}.json"

    def _death(self) -> dict[str, Any] | None:
        """Wait for a rank that fails, here or on another node; None: all have ended well, or were asked to."""
        while True:
            rank_end = self._next(_LOOK_S)
            if rank_end is None:
                if self._restart_note().exists() and not self.stopping:
                    return {"rank": -1, "code": 0}
            elif rank_end["code"] and not self.stopping:
                rank_ends = [rank_end]
                while self._left and (rank_end := self._next(_TOGETHER_S)):
                    rank_ends.append(rank_end)
                return min(rank_ends, key=lambda candidate: -candidate["code"] not in _MAY_PASS)
            elif not rank_end["left"]:
                return None

    def _is_answered(self, death: Mapping[str, Any]) -> bool:
        """Tell the other nodes of a death that a restart in place answers; otherwise return whether they tell us."""
        code = int(death["code"])
        if -code in _MAY_PASS and self.generation < MOST:
            restart = {"culprit": death["rank"], "of_node": self.place.node_name, "at": time.time()}
            restart["cause"] = f"died of {ends.signal_name(-code)}"
            seal.publish(self._restart_note(), json.dumps(restart).encode())
            return True
        deadline = time.monotonic() + (_HEARD_S if code > 0 and self.place.node_count > 1 else 0.0)
        while not self._restart_note().exists():
            if self.stopping or time.monotonic() >= deadline:
                assert isinstance(self.launcher, Warm)
                self.launcher.note_failure(code)
                return False
            time.sleep(_TOGETHER_S)
        return True

    def _restart(self) -> bool:
        """Start all ranks of this node again, from the newest sound checkpoint; False: the job is to stop."""
        death = json.loads(self._restart_note().read_text())
        self._end_ranks()
        self.generation += 1
        with self._sealed_alone:  # what is chosen from is not sealed into meanwhile
            self._seal_finished()
            resume = self.sealing.resume(self.generation)
        if self.stopping:
            return False
        self.progress.begin(self.generation, self.committed_step)
        self.words, self.heard = LastWords(), time.monotonic()
        self._died = death
        host, _, port = self.place.rendezvous.rpartition(":")
        # A port of its own: a rank of the last start that has not yet ended on another node does not join this one.
        place = self.place._replace(rendezvous=f"{host}:{int(port) + self.generation}")
        start = Warm(self.config, place)  # its words and variables may name the checkpoint or the port
        variables = {
            **start.environment(resume, str(self.run_folder)),
            "TORCHELASTIC_RESTART_COUNT": str(self.generation),
        }
        self._order(variables, Launcher.command(start, {**os.environ, **variables}))
        return True
