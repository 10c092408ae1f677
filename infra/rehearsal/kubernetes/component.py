"""One process of the control plane."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from infra.errors import TemporaryError

# The kernel sends PDEATHSIG when the *thread* that forked ends, so one thread, which lives as long as this process,
# makes every fork. If this process is killed, its control plane dies too, even outside a PID namespace.
_SPAWNER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="control-plane-spawner")
START_DEADLINE = timedelta(seconds=30)
GARBAGE = {"GOGC": "400"}
"""Go collects garbage when the heap is five times what lives, instead of twice: a control plane that starts and
installs JobSet then takes 6.2 s of a core instead of 7.2, and 100 MB more."""


class Component:
    """A child that dies with its parent; stdout and stderr go to `log`."""

    def __init__(self, name: str, argv: Sequence[str], log: Path) -> None:
        self.name, self._argv, self._log = name, list(argv), log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = _SPAWNER.submit(self._spawn).result()

    def _spawn(self) -> subprocess.Popen[bytes]:
        # The environment is bare: a proxy in the caller's would swallow the API server's webhook calls.
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(self._log.parent.parent), **GARBAGE}
        with self._log.open("ab") as log:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *self._argv],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=self._log.parent.parent,
                start_new_session=True,
            )  # fmt: skip

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill and reap: a deleted cluster has nothing to save, and on SIGTERM an API server lingers for a minute."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait(timeout=10)

    def last_words(self, lines: int = 3) -> str:
        if not self._log.exists():
            return f"no {self._log.name}"
        return " | ".join(self._log.read_text(errors="replace").splitlines()[-lines:])


def await_ready(controller: Component, address: str, stopping: threading.Event) -> None:
    """Return when http://`address`/readyz answers, or `stopping` is set. Raises TemporaryError with its last words."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_DEADLINE.total_seconds()
    while time.monotonic() < deadline and controller.alive() and not stopping.is_set():
        try:
            opener.open(f"http://{address}/readyz", timeout=2).close()
            return
        except (urllib.error.URLError, OSError):
            stopping.wait(0.1)
    problem = controller.last_words()
    raise TemporaryError(f"{controller.name} did not become ready", seen=problem, delay=timedelta(seconds=1))
