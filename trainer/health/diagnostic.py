"""DCGM's diagnostic, with an engine in this pod for its duration."""

from __future__ import annotations

import json
import socket as sockets
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.contract import DCGM_LONGEST_S, PcieLink, Probe
from trainer.health.looking import CannotLook, Look, blind
from trainer.health.parsers import dcgm

_CURE = (
    "image.base must hold DCGM (images/trainer.Dockerfile installs it; the node's own is not in the pod), "
    "or leave preflight.dcgm_level out"
)
_REPLACE = "replace the node: nobody repairs a GPU of an EC2 instance"
_STARTING_S = 60.0
"""Longest time for the engine to find its GPUs."""
_ENDING_S = 20.0
_POLL_S = 0.1


def diagnose(level: int, look: Look, link: PcieLink | None = None) -> Probe:
    """Run `dcgmi diag` at this level, with an engine of its own. `link`: where the type wires fewer lanes than the card
    has, which DCGM would call broken."""
    name, target = f"dcgm_{level}", f"`dcgmi diag -r {level}` passes"
    try:
        with engine() as host, tempfile.NamedTemporaryFile("w", prefix="bivouac-dcgm-", suffix=".yaml") as overlay:
            command = ["dcgmi", "diag", "--host", host, "-r", str(level), "--json"]
            if link is not None:
                overlay.write(sku_overlay(link))
                overlay.flush()
                command += ["--configfile", overlay.name]
            output = look(*command, timeout_s=DCGM_LONGEST_S[level])
        return diagnostic_probe(dcgm.parse(output.text or output.errors), level)
    except (CannotLook, ValueError) as error:
        return blind(name, error, target, _CURE)


def sku_overlay(link: PcieLink) -> str:
    """Return DCGM's configuration file for this link, as JSON, which its YAML reader reads. Fields that it leaves out
    keep NVIDIA's values for the card: docs.nvidia.com/datacenter/dcgm, Diagnostic Configuration File.

    Not `--parameters`: by aws/aws-k8s-tester pull 806, DCGM 4.6 does not pass these subtests' parameters on.
    """
    minimum = {"min_pci_generation": 1.0, "min_pci_width": float(link.lanes)}
    pcie = {"is_allowed": True, "h2d_d2h_single_pinned": minimum, "h2d_d2h_single_unpinned": minimum}
    skus = [{"name": f"device {link.device}", "id": link.device, "pcie": pcie}]
    return json.dumps({"version": "4", "spec": "dcgm-diag-v1", "skus": skus})


@contextmanager
def engine() -> Iterator[str]:
    """Run DCGM's engine and yield its address for `--host`. Raises `CannotLook` when it does not start.

    It listens on a socket instead of its usual port, so that it does not mix with another engine on this host.
    """
    with tempfile.TemporaryDirectory(prefix="bivouac-dcgm-") as folder:
        socket, log = Path(folder, "socket"), Path(folder, "log")
        command = ["nv-hostengine", "--no-daemon", "--domain-socket", str(socket)]
        command += ["--pid", str(Path(folder, "pid")), "--log-filename", str(log)]
        output_file = Path(folder, "said")
        with output_file.open("wb") as words:
            try:
                running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=words, stderr=words)
            except OSError as error:
                raise CannotLook(f"nv-hostengine: {error.strerror or error}: DCGM is not in the image") from error
        try:
            _await(running, socket, output_file)
            yield f"unix://{socket}"
        finally:
            _end(running)


def _await(running: subprocess.Popen[bytes], socket: Path, output_file: Path) -> None:
    deadline = time.monotonic() + _STARTING_S
    while not _listens(socket):
        words = " ".join(output_file.read_text(errors="replace").split())[-160:] or "no output"
        if running.poll() is not None:
            raise CannotLook(f"nv-hostengine ended with {running.returncode}: {words}")
        if time.monotonic() > deadline:
            raise CannotLook(f"nv-hostengine does not listen after {_STARTING_S:.0f} s: {words}")
        time.sleep(_POLL_S)


def _listens(socket: Path) -> bool:
    """Return whether the engine listens: its file appears a moment earlier."""
    with sockets.socket(sockets.AF_UNIX) as probe:
        try:
            probe.connect(str(socket))
        except OSError:
            return False
    return True


def _end(running: subprocess.Popen[bytes]) -> None:
    running.terminate()
    try:
        running.wait(_ENDING_S)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()


def diagnostic_probe(diagnostic: dcgm.Diagnostic, level: int) -> Probe:
    """Judge a diagnostic; one that skipped all tests could not look."""
    name, target = f"dcgm_{level}", f"`dcgmi diag -r {level}` passes"
    if not diagnostic.executed_count:
        return blind(name, f"DCGM {diagnostic.version} skipped all of its {len(diagnostic.results)} tests", target)
    failures = [
        f"{row.test} on GPU {row.gpus}: {' '.join(row.warnings) or row.status}"
        for row in diagnostic.results
        if row.is_failure
    ]
    skips = sorted({row.test for row in diagnostic.results if row.status.startswith("skip")})
    summary = f"{diagnostic.executed_count} results, none failed" + (f"; skipped: {', '.join(skips)}" if skips else "")
    return Probe(
        name=name,
        ok=not failures,
        seen="; ".join(failures) or summary,
        wanted=target,
        cure=_REPLACE if failures else "",
    )
