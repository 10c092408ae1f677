"""One container of a pod over its restarts, with its status."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from infra.rehearsal.nodelet.client import Object, timestamp
from infra.rehearsal.nodelet.pods.images import ContainerImage
from infra.rehearsal.nodelet.pods.sandbox import Container, PodNetwork, RootSpec, StartError, remove_tree

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 10.0, 300.0
BACKOFF_FORGOTTEN_S = 600.0
LONGEST_MESSAGE = 4096
LOG_LINES, LOG_CHARACTERS = 80, 2048
DEFAULT_MESSAGE_PATH = "/dev/termination-log"

Kind = Literal["init", "sidecar", "app"]
Policy = Literal["Always", "OnFailure", "Never"]


@dataclass(frozen=True)
class Folders:
    """A container's folders: its root is assembled in `run`, its output goes to `logs`."""

    run: Path
    logs: Path

    def log(self, name: str, restart: int) -> Path:
        return self.logs / name / f"{restart}.log"


class PodContainer:
    """Not thread-safe: only its pod's thread calls it. `on_exit` is called from a waiting thread."""

    def __init__(self, spec: Object, kind: Kind, policy: Policy, uid: str, folders: Folders) -> None:
        self.spec, self.kind, self.policy = spec, kind, policy
        self.name: str = spec["name"]
        self._uid, self._folders = uid, folders
        self._process: Container | None = None
        self._state: Object = {"waiting": {"reason": "ContainerCreating" if kind == "app" else "PodInitializing"}}
        self._last: Object = {}
        self._image_digest = ""
        self.starts = 0
        self.ready = False
        self.exit_code: int | None = None
        """Exit code of the latest run; None while one runs and before the first has ended."""
        self._backoff_s, self._due, self._started = 0.0, 0.0, 0.0

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def started_s(self) -> float:
        """Seconds since its latest start."""
        return time.monotonic() - self._started

    @property
    def finished(self) -> bool:
        """True if it ended and its policy does not restart it."""
        if self.running or self.exit_code is None:
            return False
        return self.policy == "Never" or (self.policy == "OnFailure" and self.exit_code == 0)

    def due_in(self) -> float | None:
        """Return the seconds until it should be started, or None while it runs or if it is finished."""
        return None if self.running or self.finished else max(0.0, self._due - time.monotonic())

    def wait_for(self, reason: str, message: str, delay_s: float) -> None:
        """Put off the next start, with the reason as its state."""
        if "terminated" in self._state:
            self._last = self._state
        self._state = {"waiting": {"reason": reason, "message": message}}
        self._due = time.monotonic() + delay_s

    def start(
        self, image: ContainerImage, root: RootSpec, network: PodNetwork | None, on_exit: Callable[[int], None]
    ) -> None:
        """Start the program. One that cannot be executed ends at once with exit code 128."""
        if "terminated" in self._state:
            self._last = self._state
        restart = self.starts
        self.starts += 1
        self._image_digest, self._started, self.exit_code = image.digest, time.monotonic(), None
        log = self.log_path(restart)
        log.parent.mkdir(parents=True, exist_ok=True)
        self.message_file(restart).write_bytes(b"")
        self.message_file(restart).chmod(0o666)  # whatever user the container runs as, as under a kubelet
        started_at = timestamp()
        try:
            process = Container(root, log, network)
        except StartError as error:
            self._state = {"running": {"startedAt": started_at}}
            return self.note_end(128, ("StartError", error.message))
        self._process, self._state = process, {"running": {"startedAt": started_at}}
        threading.Thread(target=lambda: on_exit(process.wait()), name=f"wait {self.name}", daemon=True).start()
        return None

    def note_end(self, code: int, cause: tuple[str, str] | None = None) -> None:
        self._process, self.ready, self.exit_code = None, False, code
        reason, message = cause or ("Completed" if code == 0 else "Error", self._message(code))
        self._state = {
            "terminated": {
                "exitCode": code,
                "reason": reason,
                "startedAt": self._state["running"]["startedAt"],
                "finishedAt": timestamp(),
                "containerID": self._id(),
            }
            | ({"message": message} if message else {})
        }
        remove_tree(self.root_folder(self.starts - 1))
        if not self.finished:
            self._back_off()

    def _back_off(self) -> None:
        if self.started_s > BACKOFF_FORGOTTEN_S:
            self._backoff_s = 0.0
        # The first restart is immediate, as in a kubelet.
        self._due = time.monotonic() + self._backoff_s
        if self._backoff_s:
            self._last = self._state
            message = f"back-off {self._backoff_s:.0f}s restarting failed container={self.name}"
            self._state = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
        self._backoff_s = min(max(self._backoff_s * 2, FIRST_BACKOFF_S), LONGEST_BACKOFF_S)

    def note_loss(self) -> None:
        """Record that it ran before a reboot of the machine."""
        self.exit_code, now = 137, timestamp()
        message = "The container could not be located when the pod was terminated"
        termination = {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": message, "finishedAt": now}
        self._state = {"terminated": termination | {"startedAt": now}}

    @property
    def process(self) -> Container | None:
        """The running program, None while there is none; safe from any thread."""
        return self._process

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.signal(number)

    def status(self) -> Object:
        document: dict[str, Any] = {
            "name": self.name,
            "image": self.spec["image"],
            "imageID": f"{self.spec['image'].partition('@')[0]}@{self._image_digest}" if self._image_digest else "",
            "ready": self.ready if self.kind != "init" else self.exit_code == 0,
            "started": self.running,
            "restartCount": max(0, self.starts - 1),
            "state": self._state,
            "lastState": self._last,
        }
        if self.starts:
            document["containerID"] = self._id()
        return document

    def log_path(self, restart: int | None = None) -> Path:
        return self._folders.log(self.name, max(0, self.starts - 1) if restart is None else restart)

    def message_file(self, restart: int) -> Path:
        return self._folders.run / f"{self.name}-{restart}.message"

    def root_folder(self, restart: int) -> Path:
        return self._folders.run / f"{self.name}-{restart}.root"

    @property
    def message_path(self) -> str:
        """The file for the program's termination message."""
        return str(self.spec.get("terminationMessagePath") or DEFAULT_MESSAGE_PATH)

    def _message(self, code: int) -> str:
        restart = self.starts - 1
        try:
            text = self.message_file(restart).read_bytes()[:LONGEST_MESSAGE].decode(errors="replace")
        except FileNotFoundError:
            text = ""
        if text or code == 0 or self.spec.get("terminationMessagePolicy") != "FallbackToLogsOnError":
            return text
        lines = self.log_path(restart).read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join(lines)[-LOG_CHARACTERS:]

    def _id(self) -> str:
        return f"nodelet://{self._uid}/{self.name}/{self.starts - 1}"


def command_line(spec: Object, image: ContainerImage, expand: Callable[[str], str]) -> list[str]:
    """Return the command line: `command` replaces the image's entrypoint and command, `args` only its command."""
    command, arguments = spec.get("command"), spec.get("args")
    if command is None:
        command = image.entrypoint
        arguments = image.command if arguments is None else arguments
    return [expand(part) for part in (*command, *(arguments or []))]
