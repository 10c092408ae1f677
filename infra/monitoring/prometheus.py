"""Prometheus as it is asked for series: in the cluster, or here over kept series.

https://prometheus.io/docs/prometheus/latest/querying/api/
"""

from __future__ import annotations

import secrets
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlencode

from infra.errors import PermanentError
from infra.monitoring.series import END

SPACE, SERVICE, PORT = "monitoring", "kube-prometheus-stack-prometheus", 9090
"""Namespace, service and port of the chart `kube-prometheus-stack`, as the release of this name has them."""
PROGRAMS = ("prometheus", "promtool")
_START_S = 60.0


def range_path(query: str, begin: float, end: float, step: float) -> str:
    """Return the path of a query over a range, its ends included; times in seconds since 1970."""
    return f"/api/v1/query_range?{urlencode({'query': query, 'start': begin, 'end': end, 'step': step})}"


@contextmanager
def over_text(lines: Iterable[str], programs: Mapping[str, Path]) -> Iterator[Callable[[str], tuple[int, bytes]]]:
    """Yield a function from a path to the answer's status and body, of a Prometheus on loopback that has the series
    of kept text until the block ends. `programs`: the place of each of `PROGRAMS`. Raises `PermanentError`."""
    with tempfile.TemporaryDirectory(prefix="bivouac-series-") as folder:
        place = Path(folder)
        with (place / "series.om").open("w") as file:
            file.writelines(lines)
            file.write(END)
        (place / "prometheus.yml").write_text("{}\n")
        blocks = place / "blocks"
        command = [
            str(programs["promtool"]), "tsdb", "create-blocks-from", "openmetrics",
            str(place / "series.om"), str(blocks),
        ]  # fmt: skip
        answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if answer.returncode:
            raise PermanentError("promtool cannot read the kept series", seen=answer.stderr.strip()[-500:])
        with (place / "prometheus.log").open("w+") as log:
            process, address = _start(str(programs["prometheus"]), place, blocks, log.fileno())
            try:
                yield lambda path: _get(f"{address}{path}")
            finally:
                process.terminate()
                process.wait()


def _start(program: str, place: Path, blocks: Path, log: int) -> tuple[subprocess.Popen[bytes], str]:
    """Return a Prometheus that is ready, and its address, which a page of a browser cannot guess."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        listener, prefix = f"127.0.0.1:{free.getsockname()[1]}", f"/{secrets.token_hex(16)}"
    address = f"http://{listener}{prefix}"
    argv = [
        program, f"--config.file={place / 'prometheus.yml'}", f"--storage.tsdb.path={blocks}",
        "--storage.tsdb.retention.time=100y", f"--web.listen-address={listener}", "--log.level=warn",
        f"--web.route-prefix={prefix}", "--web.cors.origin=^$",
    ]  # fmt: skip
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    deadline, is_ready = time.monotonic() + _START_S, False
    try:
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(OSError):
                if _get(f"{address}/-/ready")[0] == 200:
                    is_ready = True
                    return process, address
            time.sleep(0.05)
    finally:
        if not is_ready:  # or somebody has interrupted it
            process.kill()
            process.wait()
    problem = (place / "prometheus.log").read_text(errors="replace").strip()[-500:]
    raise PermanentError("Prometheus does not start over the kept series", seen=problem or "no output")


def _get(url: str) -> tuple[int, bytes]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=120) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
