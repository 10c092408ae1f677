"""Pods' logs, shipped while they are written: a dead node takes its own copy with it."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx2
from lightkube import Client
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Pod

from infra.store import CampaignStore

log = logging.getLogger("steward")
FLUSH_SECONDS = 2.0
Listener = Callable[[str, dict[str, Any]], None]
"""(pod, event line) for every JSON line that a pod prints; once more with the same line after it failed."""


class Untold(NamedTuple):
    """An event that the listener has not taken yet."""

    pod: str
    event: dict[str, Any]


class LogShipper:
    """Follows pods, one thread each, and keeps `logs/<pod>.log` in the state bucket current."""

    def __init__(self, client: Client, store: CampaignStore, listener: Listener) -> None:
        self.client, self.store, self.listener = client, store, listener
        self._texts: dict[str, list[str]] = {}
        self._dirty: set[str] = set()
        self._untold: list[Untold] = []
        self._followers: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._flusher = threading.Thread(target=self._flush_often, name="flush", daemon=True)
        self._flusher.start()

    def follow(self, pod: str) -> None:
        """Follow a pod's log from its beginning; a second call changes nothing while it is followed."""
        follower = self._followers.get(pod)
        if follower is not None:
            return
        follower = threading.Thread(target=self._follow, args=(pod,), name=f"log-{pod}", daemon=True)
        self._followers[pod] = follower
        follower.start()

    def wait_for(self, pods: list[str], seconds: float) -> None:
        """Give the followers of ended pods time to read the rest."""
        for pod in pods:
            if pod in self._followers:
                self._followers[pod].join(timeout=seconds)
        self._tell_again()

    def tail(self, pod: str, lines: int = 8) -> list[str]:
        """The last lines that a person would read: tracebacks and messages before the events in JSON."""
        with self._lock:
            texts = "".join(self._texts.get(pod, ())).splitlines()
        plain = [line for line in texts if line.strip() and not line.startswith("{")]
        return [line[:300] for line in (plain or texts)[-lines:]]

    def close(self) -> None:
        self._stop.set()
        self._flusher.join(timeout=5)
        self.flush()
        for pod, event in self._untold:
            log.error("an event of %s never reached the record: %s", pod, json.dumps(event))

    def flush(self) -> None:
        """Events that are still to be taken, then what was printed since the last time. Raises what S3 says."""
        self._tell_again()
        with self._lock:
            dirty = {pod: "".join(self._texts[pod]) for pod in self._dirty}
            self._dirty.clear()
        for pod, text in dirty.items():
            self.store.put(f"{self.store.prefix}/logs/{pod}.log", text.encode())

    def _follow(self, pod: str) -> None:
        seen = 0
        while not self._stop.is_set():
            try:
                for number, line in enumerate(self.client.log(pod, follow=True)):
                    if number >= seen:
                        seen = number + 1
                        self._take(pod, line)
                if self._ended(pod):
                    return
                self._stop.wait(0.5)
            except ApiError as error:
                if error.status.code == 404:
                    return
                self._stop.wait(0.3)
            except httpx2.HTTPError:
                # The node, its log endpoint or the connection is gone: whoever replaced it prints anew elsewhere.
                self._stop.wait(1.0)
            except Exception:
                log.exception("following %s failed: it is taken up again", pod)
                self._stop.wait(1.0)

    def _ended(self, pod: str) -> bool:
        """Whether the end of the log was the end of the pod, and not of the connection."""
        status = self.client.get(Pod, pod).status
        return status is not None and status.phase in ("Succeeded", "Failed")

    def _take(self, pod: str, line: str) -> None:
        with self._lock:
            self._texts.setdefault(pod, []).append(line if line.endswith("\n") else line + "\n")
            self._dirty.add(pod)
        if not line.startswith("{"):
            return
        try:
            event = json.loads(line)
        except ValueError:
            return
        if isinstance(event, dict):
            self._tell(Untold(pod, event))

    def _tell(self, said: Untold) -> None:
        """An event that the listener fails at is kept: it holds up neither the text nor the events after it."""
        try:
            self.listener(*said)
        except Exception:
            log.exception("an event of %s was not taken, it is tried again: %s", said.pod, said.event.get("event"))
            with self._lock:
                self._untold.append(said)

    def _tell_again(self) -> None:
        with self._lock:
            waiting, self._untold = self._untold, []
        for said in waiting:
            try:
                self.listener(*said)
            except Exception:  # said when it came first, and again at the end
                with self._lock:
                    self._untold.append(said)
            else:
                log.info("the event of %s is taken now: %s", said.pod, said.event.get("event"))

    def _flush_often(self) -> None:
        while not self._stop.wait(FLUSH_SECONDS):
            try:
                self.flush()
            except Exception as error:
                log.warning("logs were not shipped, they are tried again: %s: %s", type(error).__name__, error)
                # The text is still here, the next round writes it whole.
                with self._lock:
                    self._dirty.update(self._texts)
