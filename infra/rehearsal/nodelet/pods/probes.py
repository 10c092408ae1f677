"""Readiness and liveness probes by HTTP or TCP, sent from the machine as a kubelet does."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable

from infra.rehearsal.nodelet.client import Object


class Prober:
    """Thread that probes while `still()`; it calls `on_change`, True or False, after enough successes or failures."""

    def __init__(
        self,
        probe: Object,
        container: Object,
        address: str,
        still: Callable[[], bool],
        on_change: Callable[[bool], None],
    ) -> None:
        self._probe, self._container, self._address = probe, container, address
        self._still, self._on_change = still, on_change

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"probe {self._container['name']}", daemon=True).start()

    def _run(self) -> None:
        probe, streak, previous, reported_result = self._probe, 0, None, None
        period_s = float(probe.get("periodSeconds") or 10)
        time.sleep(float(probe.get("initialDelaySeconds") or 0))
        while self._still():
            good = self._ask()
            streak = streak + 1 if good == previous else 1
            previous = good
            threshold = int(probe.get("successThreshold" if good else "failureThreshold") or (1 if good else 3))
            if streak >= threshold and good != reported_result and self._still():
                reported_result = good
                self._on_change(good)
            # A starting container should not wait a whole period to become ready.
            time.sleep(period_s if reported_result is not None else min(period_s, 1.0))

    def _ask(self) -> bool:
        timeout_s = float(self._probe.get("timeoutSeconds") or 1)
        try:
            if ask := self._probe.get("httpGet"):
                return self._http(ask, timeout_s)
            port = self._port(self._probe["tcpSocket"]["port"])
            host = self._probe["tcpSocket"].get("host") or self._address
            socket.create_connection((host, port), timeout_s).close()
            return True
        except (OSError, http.client.HTTPException):
            return False

    def _http(self, ask: Object, timeout_s: float) -> bool:
        host, port = ask.get("host") or self._address, self._port(ask["port"])
        connection: http.client.HTTPConnection
        if ask.get("scheme") == "HTTPS":
            context = ssl._create_unverified_context()  # a kubelet's probe does not check certificates either
            connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        headers = {header["name"]: header["value"] for header in ask.get("httpHeaders") or []}
        try:
            connection.request("GET", ask.get("path") or "/", headers={"User-Agent": "kube-probe/nodelet", **headers})
            return 200 <= connection.getresponse().status < 400
        finally:
            connection.close()

    def _port(self, port: int | str) -> int:
        ports = {entry.get("name"): entry["containerPort"] for entry in self._container.get("ports") or []}
        return int(ports.get(port, port))


def askable(probe: Object) -> bool:
    """Return True for the two supported kinds of probe."""
    return "httpGet" in probe or "tcpSocket" in probe
