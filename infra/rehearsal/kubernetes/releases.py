"""Controller of Helm releases: it reads Helm's secrets (one per revision) and runs the releases' controllers."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from lightkube import ApiError, Client
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Secret
from lightkube.types import PatchType

from infra.errors import BivouacError
from infra.rehearsal.plugins.kubernetes.releases import STATE_ANNOTATION

POLL_S = 0.5
_WATCH_S = 300
_DEPLOYED: dict[str, Any] = {
    "labels": {"owner": "helm", "status": "deployed"},
    "fields": {"type": "helm.sh/release.v1"},
}
"""Selectors of the newest revisions."""

ReleaseState = Literal["running", "recorded", "failed"]


@dataclass(frozen=True)
class HelmRelease:
    namespace: str
    name: str
    chart: str
    chart_version: str
    revision: int
    secret: str
    uid: str
    values: Mapping[str, Any] = field(default_factory=dict)


class ChartInstaller(Protocol):
    """A chart's implementation in a rehearsal. Methods raise BivouacError; `install` is repeated until it works."""

    @property
    def version(self) -> str: ...
    def install(self, release: HelmRelease, stopping: threading.Event) -> None: ...
    def alive(self) -> bool: ...
    def restart(self) -> None: ...
    def remove(self) -> None: ...


def decode_release(secret: Secret) -> HelmRelease:
    """Decode the `release` key: base64 of base64 of (gzipped) JSON. Raises ValueError, KeyError or OSError."""
    meta, data = secret.metadata or ObjectMeta(), secret.data or {}
    labels = meta.labels or {}
    raw = base64.b64decode(base64.b64decode(data["release"]))
    document: dict[str, Any] = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    metadata = document["chart"]["metadata"]
    return HelmRelease(
        namespace=str(meta.namespace),
        name=labels["name"],
        chart=metadata["name"],
        chart_version=str(metadata.get("version", "")),
        revision=int(labels.get("version", "1")),
        secret=str(meta.name),
        uid=str(meta.uid),
        values=document.get("config") or {},
    )


class ReleaseController:
    """Thread that matches running controllers to release secrets; level-triggered."""

    def __init__(self, client: Callable[[], Client], charts: Mapping[str, ChartInstaller], log: logging.Logger) -> None:
        self._client, self._charts, self._log = client, charts, log
        self._installed: dict[str, HelmRelease] = {}
        self._states: dict[tuple[str, str], tuple[HelmRelease, ReleaseState]] = {}
        self._stopping, self._changed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="release-controller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        self._stopping.set()
        self._changed.set()

    def join(self) -> None:
        self._thread.join(timeout=10)

    def _run(self) -> None:
        client = self._client()
        threading.Thread(target=self._watch, args=(client,), name="release-watch", daemon=True).start()
        while not self._stopping.is_set():
            is_new = self._changed.wait(POLL_S)
            if is_new:  # news that comes after the wait is kept for the next one
                self._changed.clear()
            try:
                if is_new:
                    self._reconcile(client)
                self._revive()
            except (BivouacError, ApiError) as error:
                self._log.warning("retry in %s s: %s", POLL_S, error)
                self._retry()
            except Exception:  # the loop must outlive an API server that is down; stop() ends it for good
                if not self._stopping.is_set():
                    self._log.exception("retry in %s s", POLL_S)
                self._retry()

    def _retry(self) -> None:
        self._stopping.wait(POLL_S)
        self._changed.set()

    def _watch(self, client: Client) -> None:
        """Note every change of a release. A listing twice a second would cost the emulation 6 % of its time."""
        while not self._stopping.is_set():
            try:
                for _ in client.watch(Secret, namespace="*", **_DEPLOYED, server_timeout=_WATCH_S):
                    self._changed.set()
            except Exception as error:  # whatever it is: without a watch every later release would be missed
                self._log.debug("watch again in %s s: %r", POLL_S, error)
                self._stopping.wait(POLL_S)
            self._changed.set()  # whatever came between two watches

    def _reconcile(self, client: Client) -> None:
        releases = self._deployed_releases(client)
        for key in set(self._states) - {(release.namespace, release.name) for release in releases}:
            release, _ = self._states.pop(key)
            self._log.info("release %s/%s is gone", *key)
            if self._installed.get(release.chart) == release:
                self._charts[release.chart].remove()
                del self._installed[release.chart]
        for release in releases:
            self._bring_up(client, release)

    def _bring_up(self, client: Client, release: HelmRelease) -> None:
        key = (release.namespace, release.name)
        previous_state = self._states.get(key)
        chart = self._charts.get(release.chart)
        if previous_state and previous_state[0] == release and previous_state[1] != "failed":
            return
        self._states[key] = (release, "failed")
        if chart:
            if release.chart_version not in ("", chart.version):
                self._log.warning("%s: chart %s requested, %s runs", release.name, release.chart_version, chart.version)
            chart.install(release, self._stopping)
            self._installed[release.chart] = release
        state: ReleaseState = "running" if chart else "recorded"
        self._annotate(client, release, f"running {chart.version}" if chart else "recorded")
        self._states[key] = (release, state)
        self._log.info("release %s/%s (chart %s %s): %s", *key, release.chart, release.chart_version, state)

    def _revive(self) -> None:
        for name in self._installed:
            if not self._charts[name].alive():
                self._log.warning("the controller of %s died: started again", name)
                self._charts[name].restart()

    def _deployed_releases(self, client: Client) -> list[HelmRelease]:
        """Return the newest deployed revision of every release."""
        releases: dict[tuple[str, str], HelmRelease] = {}
        for secret in client.list(Secret, namespace="*", **_DEPLOYED):
            try:
                release = decode_release(secret)
            except (ValueError, KeyError, OSError) as error:
                self._log.warning("a secret of Helm's type holds no release: %r, %r", secret.metadata, error)
                continue
            key = (release.namespace, release.name)
            if key not in releases or release.revision > releases[key].revision:
                releases[key] = release
        return list(releases.values())

    def _annotate(self, client: Client, release: HelmRelease, state: str) -> None:
        patch = {"metadata": {"annotations": {STATE_ANNOTATION: state}}}
        client.patch(Secret, release.secret, patch, namespace=release.namespace, patch_type=PatchType.MERGE)
