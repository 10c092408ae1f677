"""The shipping of pods' logs to S3 while they are written: the copy on a node is lost with the node."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2

from infra.cluster.pod_logs import LogLine, PodLogs, is_gone
from infra.record.store import CampaignStore
from infra.record.trainer_lines import MARK, event_of
from infra.steward.seeing.followed import Followed, Untold

log = logging.getLogger("steward")
FLUSH_SECONDS = 2.0
_AT_ONCE = 8
Listener = Callable[[str, dict[str, Any]], None]
"""Called with (pod, event) for every line of a pod's that may be ours, and again for events at which it failed."""


class LogShipper:
    """Follows pods, each with one thread and one connection, and stores their logs in the state bucket.

    A thread that waits for lines costs some 0.1 MiB, the used part of its stack.
    """

    def __init__(self, logs: PodLogs, store: CampaignStore, listener: Listener, has_marks: bool = False) -> None:
        """`has_marks`: the pods run jobs of people's own, beside supervisors that mark their lines. Of a pod with such
        a line only these are events; one without any has an older supervisor, and is read like a trainer's."""
        self.logs, self.store, self.listener, self._marked = logs, store, listener, has_marks
        self._pods: dict[str, Followed] = {}
        self._followers: dict[str, threading.Thread] = {}
        self._stop, self._telling = threading.Event(), threading.Lock()
        # botocore keeps ten connections and logs a warning for each further one.
        self._asking = threading.Semaphore(_AT_ONCE)
        self._flusher = threading.Thread(target=self._flush_often, name="flush", daemon=True)
        self._flusher.start()

    def follow(self, pod: str) -> None:
        """Follow a pod's log from the end of its stored pieces; a second call changes nothing."""
        if pod in self._followers:
            return
        self._pods[pod] = Followed(pod, self.store)
        self._followers[pod] = threading.Thread(target=self._follow, args=(pod,), name=f"log-{pod}", daemon=True)
        self._followers[pod].start()

    def wait_for(self, pods: list[str], seconds: float) -> None:
        """Wait until the followers of ended pods have read the rest, at most `seconds` for all together."""
        deadline = time.monotonic() + seconds
        for pod in pods:
            if pod in self._followers:
                self._followers[pod].join(timeout=max(0.0, deadline - time.monotonic()))
        self._tell_again()

    def forget(self) -> None:
        """Mark all followed pods as of an earlier attempt: each is dropped once its log is shipped."""
        for pod_log in self._pod_logs():
            pod_log.leaving = True

    def tail(self, pod: str, lines: int = 8) -> list[str]:
        """Return the last lines for a person: plain text if there is any, else JSON events."""
        return self._pods[pod].tail(lines) if pod in self._pods else []

    def close(self) -> None:
        self._stop.set()
        self._flusher.join(timeout=5)
        self.flush()
        for pod_log in self._pod_logs():
            for untold in pod_log.untold:
                log.error("an event of %s never reached the record: %s", pod_log.pod, json.dumps(untold.event))

    def flush(self) -> None:
        """Offer open events to the listener again, then store all pending lines. Raises S3's errors."""
        self._tell_again()
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="ship") as pool:
            for future in [pool.submit(pod_log.ship, True) for pod_log in self._pod_logs()]:
                future.result()

    def _pod_logs(self) -> list[Followed]:
        return list(self._pods.values())

    def _follow(self, pod: str) -> None:
        pod_log = self._pods[pod]
        try:
            while not self._stop.is_set() and not self._resume(pod_log):
                self._stop.wait(1.0)
            while not self._stop.is_set():
                pause = self._read(pod_log)
                if pause is None or pod_log.leaving:
                    return
                self._stop.wait(pause)
        finally:
            pod_log.over = True

    def _resume(self, pod_log: Followed) -> bool:
        try:
            with self._asking:
                pod_log.resume()
        except Exception as error:
            log.warning("%s is not followed yet: its stored log cannot be read: %s", pod_log.pod, error)
            return False
        return True

    def _read(self, pod_log: Followed) -> float | None:
        """Read until the connection ends. Return the seconds to wait before the next one, None at the log's end."""
        try:
            for line in self.logs.follow(pod_log.pod, pod_log.position):
                self._take(pod_log, line)
                if self._stop.is_set():
                    return None
            return None if self.logs.ended(pod_log.pod) else 0.5
        except httpx2.HTTPStatusError as error:
            return None if is_gone(error) else 0.3
        except httpx2.HTTPError:
            # The node, its log endpoint or the connection is gone; a replacement is another pod.
            return 1.0
        except Exception:
            log.exception("following %s failed, it is tried again", pod_log.pod)
            return 1.0

    def _take(self, pod_log: Followed, line: LogLine) -> None:
        """Pass the line's event to the listener, then keep the line: no successor reads stored lines again."""
        pod_log.marks = pod_log.marks or line.text.startswith(MARK)
        event = event_of(line.text, self._marked and pod_log.marks)
        pod_log.take(line, event if event is not None and not self._tell(pod_log.pod, event) else None)
        if pod_log.full:
            # Ship here, so that a long log is not read faster than it is stored.
            self._ship(pod_log)

    def _tell(self, pod: str, event: dict[str, Any]) -> bool:
        """Return whether the listener took the event. A failure does not stop the events after it."""
        try:
            self.listener(pod, event)
        except Exception:
            log.exception("an event of %s was not taken, it is tried again: %s", pod, event.get("event"))
            return False
        return True

    def _tell_again(self) -> None:
        with self._telling:
            for pod_log in self._pod_logs():
                pod_log.drop_events([untold for untold in pod_log.untold if self._told_now(pod_log.pod, untold)])

    def _told_now(self, pod: str, untold: Untold) -> bool:
        try:
            self.listener(pod, untold.event)
        except Exception:  # logged at the first failure and again in `close`
            return False
        log.info("the event of %s is taken now: %s", pod, untold.event.get("event"))
        return True

    def _ship(self, pod_log: Followed) -> None:
        try:
            with self._asking:
                pod_log.ship(force=False)
        except Exception as error:
            log.warning(
                "the log of %s was not shipped, it is tried again: %s: %s", pod_log.pod, type(error).__name__, error
            )
            self._stop.wait(FLUSH_SECONDS)

    def _flush_often(self) -> None:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="ship") as pool:
            while not self._stop.wait(FLUSH_SECONDS):
                try:
                    self._tell_again()
                    list(pool.map(self._ship, [pod_log for pod_log in self._pod_logs() if pod_log.due()]))
                    self._drop_what_left()
                except Exception:
                    log.exception("a round of shipping logs failed, the next comes")

    def _drop_what_left(self) -> None:
        for pod_log in self._pod_logs():
            if pod_log.leaving and pod_log.over and pod_log.is_stored:
                del self._pods[pod_log.pod], self._followers[pod_log.pod]
