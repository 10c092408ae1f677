"""The meeting of all supervisors after a rank's death: they decide once, together, whether to start the ranks again.

Pod 0's supervisor, which outlives every rank, holds the table. It has one decision for each generation; the first
counts, so all supervisors read the same. One comes here only when its own ranks are dead and reaped.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from typing import Any, Callable, Mapping, NamedTuple

from trainer.supervisor.place import Place
from trainer.supervisor.serving import PORT

_POLL_S, _LONG_POLL_S, _ANSWER_S = 0.1, 30.0, 5.0
_KNOCK_EVERY_S, _KNOCK_S = 1.0, 1.0
_TELL_S = 1.0
_NO_ANSWER = (OSError, ValueError, http.client.HTTPException)
_MARGIN_S = 2.0
"""Time beyond the meeting's own for a pod 0 whose machine is gone without a word."""


class Word(NamedTuple):
    """What a supervisor brings to a meeting."""

    node: str
    refuses: str = ""
    """Why this node cannot go on in place."""
    own: bool = False
    """A rank of this node died by itself."""
    rank: int | None = None
    cause: str = ""
    at: float = 0.0
    """When its supervisor saw it, in seconds since the epoch."""

    def event(self) -> dict[str, Any]:
        """Return the fields of `restarted_in_place` at the first new step after the death."""
        seconds = round(max(0.0, time.time() - self.at), 2)
        return {"culprit": self.rank, "of_node": self.node, "cause": self.cause, "seconds": seconds}


class Decision(NamedTuple):
    go: bool
    why: str = ""
    culprit: Word | None = None


class _Row:
    """One meeting."""

    def __init__(self) -> None:
        self.is_over = False
        """A node has told that a rank of this generation has died."""
        self.addresses: dict[int, str] = {}
        self.words: dict[int, Word] = {}
        self.decision: Decision | None = None


class Table:
    """The meetings of an attempt, one after each generation."""

    def __init__(self, nodes: int) -> None:
        self._nodes, self._rows = nodes, {0: _Row()}
        self._news = threading.Condition()

    def take(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Take what a supervisor tells; answer with what is known once there is news for it, or after its `wait_s`.
        Raises `ValueError` for a generation that cannot follow the known ones: a job may post, too."""
        with self._news:
            generation = int(message["generation"])
            if not 0 <= generation <= len(self._rows):
                raise ValueError(f"no generation of this attempt: {generation}")
            row = self._rows.setdefault(generation, _Row())
            row.addresses[int(message["pod"])] = str(message["address"])
            row.is_over = row.is_over or bool(message["over"])
            if message["word"] is not None:
                row.words[int(message["pod"])] = word = Word(*message["word"])
                row.is_over = row.is_over or (word.own and not word.refuses)
            if row.decision is None:
                row.decision = self._decision(row, str(message["proposes"]))
            self._news.notify_all()
            has_come = message["word"] is not None
            wait_s = min(_LONG_POLL_S, float(message["wait_s"]))
            self._news.wait_for(lambda: row.decision if has_come else row.is_over, wait_s)
            missing = [address for pod, address in row.addresses.items() if pod not in row.words]
            return {"over": row.is_over, "here": len(row.words), "missing": missing, "decision": row.decision}

    def _decision(self, row: _Row, proposed_why: str) -> Decision | None:
        """Return the decision, None before all have come: a death must explain why the others lost a peer."""
        for word in row.words.values():
            if word.refuses:
                return Decision(False, f"{word.node}: {word.refuses}")
        if proposed_why:
            return Decision(False, proposed_why)
        if len(row.words) < self._nodes:
            return None
        own_deaths = [word for word in row.words.values() if word.own]
        if not own_deaths:
            return Decision(False, "no process is known to have died: a rank hangs, or the network is broken")
        return Decision(True, culprit=min(own_deaths, key=lambda word: word.at))


class Meeting:
    """One supervisor's way to the table."""

    def __init__(self, place: Place, longest_s: float) -> None:
        """`place`: the pod's before any change of the nodes' order, since pod 0 holds the table."""
        self._place, self.longest_s = place, longest_s
        self.table = Table(place.node_count)

    def watch(self, generation: int, over_event: threading.Event) -> None:
        """Tell pod 0 where this supervisor listens. Set `over_event` once a node says that the generation ended: a
        death may show late to other nodes."""

        def wait() -> None:
            while not over_event.is_set():
                try:
                    if self._ask(generation, wait_s=_LONG_POLL_S)["over"]:
                        over_event.set()
                except _NO_ANSWER:  # it has not started, or ended with its node
                    over_event.wait(_KNOCK_EVERY_S)

        threading.Thread(target=wait, name=f"over-{generation}", daemon=True).start()

    def tell_over(self, generation: int) -> None:
        """Tell the other supervisors that the generation is over, without waiting for a pod 0 that does not answer."""

        def tell() -> None:
            with contextlib.suppress(*_NO_ANSWER):  # the meeting says so
                self._ask(generation, is_over=True)

        threading.Thread(target=tell, name=f"tell-{generation}", daemon=True).start()

    def refuse(self, generation: int, word: Word) -> None:
        """Tell that this node refuses, which decides for all. No answer is waited for: pod 0 may be gone once it knows,
        and the steward looks for the cause in this node's end."""

        def tell() -> None:
            with contextlib.suppress(*_NO_ANSWER):  # who waits for this node finds it gone
                self._ask(generation, word=word)

        telling = threading.Thread(target=tell, name=f"refuse-{generation}", daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread is to be had: that must not hide this node's own end
            telling.start()
            telling.join(_TELL_S)

    def decide(self, generation: int, word: Word, is_stopping: Callable[[], bool]) -> Decision:
        """Tell the word of this node, which does not refuse, and return the decision of all. It is no when a supervisor
        is gone or refuses, when not all meet in time, when `is_stopping`, or when pod 0 does not answer."""
        start_s = knock_s = time.monotonic()
        refusal, present_count = "", 1
        while True:
            try:
                answer = self._ask(generation, word=word, proposes=refusal, wait_s=_POLL_S)
            except ConnectionRefusedError:
                return Decision(False, "the agent of pod 0 is gone")
            except _NO_ANSWER:
                answer = {"decision": None, "missing": (), "here": present_count}
                time.sleep(_POLL_S)
            if answer["decision"] is not None:
                go, reason, culprit = answer["decision"]
                return Decision(go, reason, None if culprit is None else Word(*culprit))
            now, present_count = time.monotonic(), answer["here"]
            if now - start_s > self.longest_s + _MARGIN_S:
                return Decision(False, "the agent of pod 0 does not answer")
            if is_stopping():
                refusal = f"{word.node} is asked to stop"
            elif now - start_s > self.longest_s:
                refusal = f"{present_count} of {self._place.node_count} agents met within {self.longest_s:g} s"
            elif self._place.node_rank == 0 and now - knock_s > _KNOCK_EVERY_S:
                knock_s = now
                # A machine refuses the connection once the pod has ended. Silence is no proof.
                gone_address = next(filter(_refuses, answer["missing"]), "")
                refusal = f"the agent of {gone_address} is gone" if gone_address else ""

    def _ask(
        self,
        generation: int,
        is_over: bool = False,
        word: Word | None = None,
        proposes: str = "",
        wait_s: float = 0.0,
    ) -> dict[str, Any]:
        """Return pod 0's answer. Raises `OSError`, `ValueError` or `HTTPException` where there is none."""
        message = {
            "generation": generation, "pod": self._place.node_rank, "address": self._place.pod_ip, "over": is_over,
            "word": word, "proposes": proposes, "wait_s": wait_s,
        }  # fmt: skip
        if self._place.node_rank == 0:
            return self.table.take(message)
        host = self._place.rendezvous.rpartition(":")[0]
        connection = http.client.HTTPConnection(host, PORT, timeout=wait_s + _ANSWER_S)
        try:
            connection.request("POST", "/meeting", json.dumps(message))
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        if answer is None:
            raise ValueError("pod 0 does not know this job's meetings")
        return answer


def _refuses(address: str) -> bool:
    try:
        socket.create_connection((address, PORT), _KNOCK_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
