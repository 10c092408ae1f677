"""One pod from its binding to this node until it is gone: a thread owns its containers and reports its status."""

from __future__ import annotations

import contextlib
import logging
import queue
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from infra.errors import BivouacError, TemporaryError
from infra.rehearsal.nodelet.client import NOT_FOUND, ApiRefused, Object, namespaced_path
from infra.rehearsal.nodelet.pods.containers import PodContainer
from infra.rehearsal.nodelet.pods.images import PullError
from infra.rehearsal.nodelet.pods.podbox import PodBox, make_containers
from infra.rehearsal.nodelet.pods.probes import Prober, askable
from infra.rehearsal.nodelet.pods.status import PodStatus, phase_of
from infra.rehearsal.nodelet.surroundings import Surroundings

log = logging.getLogger(__name__)

RETRY_S = 1.0
PULL_RETRY_S = 10.0
REFRESH_S = 10.0
AFTER_KILL_S = 10.0
OVER = ("Succeeded", "Failed")


class Deleted(Exception):
    """The pod must end within its grace period."""


class Gone(Exception):
    """The pod no longer exists: end at once, without a report."""


class PodWorker:
    def __init__(self, surroundings: Surroundings, pod: Object, on_end: Callable[[str], None]) -> None:
        self._around, self._pod, self._on_end = surroundings, pod, on_end
        self.uid: str = pod["metadata"]["uid"]
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._box = PodBox(surroundings, pod)
        self._init, self._apps = make_containers(pod, self._box.folders)
        self._status = PodStatus(surroundings.config.address)
        self._failure: tuple[str, str] | None = None
        self._told: Object | None = None
        self._began = time.monotonic()
        self._complaints: set[str] = set()

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"pod {self._pod['metadata']['name']}", daemon=True).start()

    def update(self, pod: Object) -> None:
        self._inbox.put(("pod", pod))

    def vanish(self) -> None:
        self._inbox.put(("gone", None))

    def has_name(self, namespace: str, name: str) -> bool:
        metadata = self._pod["metadata"]
        return bool(metadata["namespace"] == namespace and metadata["name"] == name)

    def container(self, name: str) -> PodContainer | None:
        return next((candidate for candidate in (*self._init, *self._apps) if candidate.name == name), None)

    def _run(self) -> None:
        try:
            self._live()
        except Gone:
            self._end_processes(0)
        except Exception as error:
            log.exception("pod %s", self._pod["metadata"]["name"])
            self._end_processes(0)
            self._failure = ("NodeletFailed", f"{type(error).__name__}: {error}")
            with contextlib.suppress(Gone):
                self._report()
        finally:
            self._box.remove()
            self._on_end(self.uid)

    def _live(self) -> None:
        if (self._pod.get("status") or {}).get("phase") in OVER:
            return self._delete()
        try:
            if "deletionTimestamp" in self._pod["metadata"]:
                raise Deleted
            if self._existed_before():
                for container in (*self._init, *self._apps):
                    container.note_loss()
            else:
                self._take_in()
                self._report()
                self._run_init()
                self._run_apps()
        except Deleted:
            self._terminate()
        self._end_processes(0)
        self._report_surely()
        if "deletionTimestamp" in self._pod["metadata"]:
            self._delete()
        return None

    def unheard(self) -> Object | None:
        """Return the latest update that arrived after the end, or None."""
        latest = None
        while not self._inbox.empty():
            kind, payload = self._inbox.get()
            latest = payload if kind == "pod" else latest
        return latest

    def _existed_before(self) -> bool:
        """Return True if it ran before a reboot and its policy forbids a second start."""
        statuses = (self._pod.get("status") or {}).get("containerStatuses") or []
        has_run = any("running" in status["state"] or "terminated" in status["state"] for status in statuses)
        return has_run and self._pod["spec"].get("restartPolicy") == "Never"

    def _take_in(self) -> None:
        """Set up network, names and volumes; retry each until it works."""
        for step in (self._box.plug_in, self._box.mount):
            while True:
                try:
                    step(self._pod)
                    break
                except (TemporaryError, ApiRefused) as error:
                    self._complain("FailedCreatePodSandBox" if step == self._box.plug_in else "FailedMount", error)
                    self._report()
                    self._take(RETRY_S)
            self._status.address = self._box.address

    def _run_init(self) -> None:
        for container in self._init:
            while self._failure is None and not (
                container.finished or (container.kind == "sidecar" and container.running)
            ):
                self._start_if_due(container)
                self._report()
                if not container.finished and not (container.kind == "sidecar" and container.running):
                    due = container.due_in()
                    self._take(REFRESH_S if due is None else min(due, REFRESH_S))
                    self._check_deadline()
            if (container.finished and container.exit_code) or self._failure is not None:
                return

    def _run_apps(self) -> None:
        sidecars = [container for container in self._init if container.kind == "sidecar"]
        while phase_of(self._init, self._apps) not in OVER and self._failure is None:
            for container in (*sidecars, *self._apps):
                self._start_if_due(container)
            self._report()
            if phase_of(self._init, self._apps) in OVER:
                return
            dues = [due for container in (*sidecars, *self._apps) if (due := container.due_in()) is not None]
            self._take(min([REFRESH_S, *dues]))
            self._box.refresh()
            self._check_deadline()

    def _check_deadline(self) -> None:
        limit = self._pod["spec"].get("activeDeadlineSeconds")
        if limit is not None and time.monotonic() - self._began > limit:
            self._failure = ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
            self._end_processes(self._grace())

    def _start_if_due(self, container: PodContainer) -> None:
        if container.due_in() != 0:
            return
        try:
            image = self._around.images.pull(container.spec["image"])
            root = self._box.root(self._pod, container, image)
        except PullError as error:
            container.wait_for("ErrImagePull", str(error), PULL_RETRY_S)
            return self._complain("Failed", error)
        except TemporaryError as error:
            container.wait_for("CreateContainerConfigError", str(error), RETRY_S)
            return self._complain("Failed", error)
        container.start(image, root, self._box.network, lambda code: self._inbox.put(("exit", (container, code))))
        self._around.events.tell(self._pod, "Normal", "Started", f"Started container {container.name}")
        if container.running:
            self._probe(container)
        return None

    def _probe(self, container: PodContainer) -> None:
        starts = container.starts

        def still() -> bool:
            return container.running and container.starts == starts

        readiness, liveness = container.spec.get("readinessProbe") or {}, container.spec.get("livenessProbe") or {}
        container.ready = not askable(readiness)
        address = self._box.address
        if askable(readiness):
            Prober(
                readiness, container.spec, address, still, lambda good: self._inbox.put(("ready", (container, good)))
            ).start()
        if askable(liveness):
            Prober(
                liveness, container.spec, address, still, lambda good: self._inbox.put(("alive", (container, good)))
            ).start()

    def _take(self, timeout_s: float | None) -> None:
        """Wait for messages and handle all that arrived. Raises Deleted, Gone."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                self._hear(*self._inbox.get(timeout=left))
            except queue.Empty:
                return
            deadline = time.monotonic()  # handle what else has arrived, without waiting for more

    def _hear(self, kind: str, payload: Any) -> None:
        if kind == "gone":
            raise Gone
        if kind == "pod":
            self._pod = payload
            if "deletionTimestamp" in payload["metadata"]:
                raise Deleted
        elif kind == "exit":
            container, code = payload
            container.note_end(code)
        elif kind == "ready":
            container, good = payload
            container.ready = good and container.running
        elif kind == "alive":
            container, good = payload
            if not good:
                self._around.events.tell(
                    self._pod, "Warning", "Unhealthy", f"liveness of {container.name} failed: restarting"
                )
                container.signal(signal.SIGKILL)

    def _grace(self) -> float:
        metadata, spec = self._pod["metadata"], self._pod["spec"]
        period = metadata.get("deletionGracePeriodSeconds")
        return float(spec.get("terminationGracePeriodSeconds", 30) if period is None else period)

    def _terminate(self) -> None:
        if any(container.running for container in (*self._init, *self._apps)):
            self._around.events.tell(self._pod, "Normal", "Killing", f"Stopping within {self._grace():.0f} s")
        self._end_processes(self._grace())

    def _end_processes(self, grace_s: float) -> None:
        """Send SIGTERM, and SIGKILL after the grace; adopt a shorter grace that arrives meanwhile. Nothing restarts."""
        started_at, is_killed = time.monotonic(), False
        running = [container for container in (*self._init, *self._apps) if container.running]
        for container in running if grace_s else ():
            container.signal(signal.SIGTERM)
        while any(container.running for container in running):
            left = started_at + grace_s - time.monotonic()
            if left <= 0 and not is_killed:
                is_killed, left = True, 0.0
                for container in running:
                    container.signal(signal.SIGKILL)
            elif left <= -AFTER_KILL_S:
                log.error("a process of pod %s does not end", self._pod["metadata"]["name"])
                return
            try:
                self._take(left if left > 0 else 1.0)
            except Deleted:
                grace_s = min(grace_s, self._grace())
            except Gone:
                grace_s = 0.0

    def _report(self) -> None:
        """Report the status if it changed. Raises Gone. If the server is unreachable, the next call retries."""
        document = self._status.document(self._init, self._apps, self._failure)
        if document == self._told:
            return
        metadata = self._pod["metadata"]
        path = namespaced_path("pods", metadata["namespace"], metadata["name"]) + "/status"
        try:
            self._around.api.patch(path, {"metadata": {"uid": self.uid}, "status": document})
            self._told = document
        except ApiRefused as error:
            if error.status == NOT_FOUND or "uid" in error.message:
                raise Gone from error
            self._complain("FailedStatus", error)
        except TemporaryError as error:
            log.warning("status of %s: %s", metadata["name"], error)

    def _report_surely(self) -> None:
        """Report the final status until it is stored."""
        while True:
            self._report()
            if self._told == self._status.document(self._init, self._apps, self._failure):
                return
            try:
                self._take(RETRY_S)
            except Deleted:
                continue

    def _delete(self) -> None:
        metadata = self._pod["metadata"]
        path = namespaced_path("pods", metadata["namespace"], metadata["name"])
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": self.uid},
        }
        while True:
            try:
                self._around.api.delete(path, options)
                return
            except ApiRefused:
                return
            except TemporaryError:
                time.sleep(RETRY_S)

    def _complain(self, reason: str, error: BivouacError) -> None:
        if str(error) not in self._complaints:
            self._complaints.add(str(error))
            self._around.events.tell(self._pod, "Warning", reason, str(error))
