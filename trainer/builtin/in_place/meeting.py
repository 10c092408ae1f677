"""The meeting of all agents after a rank's death: they decide once, together, whether to start the ranks again.

The store lives in the agent of node 0 and outlives every rank. One key holds the decision; the first to set it wins,
so all agents read the same one. An agent comes here only when its own ranks are dead and reaped.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore

from trainer.contract import AGENT_PORT
from trainer.contract.frozen import Frozen
from trainer.supervisor.place import Place

_POLL_S = 0.1
_KNOCK_EVERY_S, _KNOCK_S = 1.0, 1.0
_MARGIN_S = 2.0
"""Time beyond the meeting's own for a store whose machine is gone without a word."""
_DECISION, _HERE, _OVER = "decision", "here", "over"


class Word(Frozen, extra="ignore"):
    """What an agent brings to a meeting."""

    node: str
    refuses: str = ""
    """Why this node cannot go on in place."""
    own: bool = False
    """A rank of this node died by itself."""
    rank: int | None = None
    cause: str = ""
    at: float = 0.0
    """When its agent saw it, in seconds since the epoch."""


class Decision(Frozen, extra="ignore"):
    go: bool
    why: str = ""
    culprit: Word | None = None


@dataclass(frozen=True)
class Meeting:
    """The meetings of one attempt, one after each generation."""

    store: TCPStore
    place: Place
    longest_s: float

    def watch(self, generation: int, end_event: threading.Event) -> None:
        """Tell the others where this agent listens. Set `end_event` once one of them says that the generation ended: a
        death may show late to other nodes."""
        # A connection of its own: a call that waits blocks the others of its connection.
        store = _generation_store(self.store.clone(), generation)  # type: ignore[attr-defined]
        store.set(_address_key(self.place.node_rank), self.place.pod_ip)

        def wait() -> None:
            while not end_event.is_set():
                try:
                    store.wait([_OVER], timedelta(minutes=10))
                except RuntimeError as error:  # its time is over, or the store has gone with node 0
                    if "timeout" not in str(error).lower():
                        return
                    end_event.wait(_POLL_S)
                else:
                    end_event.set()

        threading.Thread(target=wait, name=f"over-{generation}", daemon=True).start()

    def tell_over(self, generation: int) -> None:
        """Tell the other agents that the generation is over, without waiting for a store that does not answer."""

        def tell() -> None:
            with contextlib.suppress(RuntimeError):
                _generation_store(self.store, generation).set(_OVER, "")

        threading.Thread(target=tell, name=f"tell-{generation}", daemon=True).start()

    def decide(self, generation: int, word: Word, is_stopping: Callable[[], bool]) -> Decision:
        """Tell this node's word and return the agents' decision. It is no when an agent is gone or refuses, when not
        all meet in time, when `is_stopping`, or when the store does not answer."""
        results: list[Decision] = []

        def meet() -> None:
            try:
                results.append(self._meet(_generation_store(self.store, generation), word, is_stopping))
            except (RuntimeError, ValueError) as error:
                results.append(Decision(go=False, why=f"the agents' store is gone: {str(error).splitlines()[0][:200]}"))

        meeting = threading.Thread(target=meet, name=f"meeting-{generation}", daemon=True)
        meeting.start()
        meeting.join(self.longest_s + _MARGIN_S)
        return results[0] if results else Decision(go=False, why="the agents' store does not answer")

    def _meet(self, store: PrefixStore, word: Word, is_stopping: Callable[[], bool]) -> Decision:
        nodes, start_s = self.place.node_count, time.monotonic()
        store.set(_of_node(self.place.node_rank), word.model_dump_json())
        if word.refuses:
            return _propose(store, Decision(go=False, why=f"{word.node}: {word.refuses}"))
        if store.add(_HERE, 1) == nodes:
            words = store.multi_get([_of_node(node) for node in range(nodes)])
            return _propose(store, _common_decision([Word.model_validate_json(text) for text in words]))
        knock_s = start_s
        while not store.check([_DECISION]):
            now = time.monotonic()
            if is_stopping():
                return _propose(store, Decision(go=False, why=f"{word.node} is asked to stop"))
            if now - start_s > self.longest_s:
                reason = f"{store.add(_HERE, 0)} of {nodes} agents met within {self.longest_s:g} s"
                return _propose(store, Decision(go=False, why=reason))
            if self.place.node_rank == 0 and now - knock_s > _KNOCK_EVERY_S:
                knock_s = now
                if lost_address := self._ended_agent(store, start_s + self.longest_s):
                    return _propose(store, Decision(go=False, why=f"the agent of {lost_address} is gone"))
            time.sleep(_POLL_S)
        return Decision.model_validate_json(store.get(_DECISION))

    def _ended_agent(self, store: PrefixStore, limit_s: float) -> str:
        """Return the address of an agent that has not met and whose pod has ended: its machine refuses the connection.
        Silence is no proof."""
        for node in range(self.place.node_count):
            if time.monotonic() < limit_s and not store.check([_of_node(node)]) and store.check([_address_key(node)]):
                address = store.get(_address_key(node)).decode()
                if _refuses(address):
                    return address
        return ""


def _common_decision(words: list[Word]) -> Decision:
    """Return the decision of all words, none of which refuses: a death must explain why the others lost a peer."""
    own_deaths = [word for word in words if word.own]
    if not own_deaths:
        return Decision(go=False, why="no process is known to have died: a rank hangs, or the network is broken")
    return Decision(go=True, culprit=min(own_deaths, key=lambda word: word.at))


def _propose(store: PrefixStore, decision: Decision) -> Decision:
    """Set the decision if there is none yet. Return the one that counts."""
    return Decision.model_validate_json(store.compare_set(_DECISION, "", decision.model_dump_json()))


def _generation_store(store: TCPStore, generation: int) -> PrefixStore:
    return PrefixStore(f"meeting-{generation}", store)


def _of_node(node: int) -> str:
    return f"word-{node}"


def _address_key(node: int) -> str:
    return f"address-{node}"


def _refuses(address: str) -> bool:
    try:
        socket.create_connection((address, AGENT_PORT), _KNOCK_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
