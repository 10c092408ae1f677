"""Archive transfer beside boto3's managed transfer: the same file, the same local endpoint, interleaved pairs.

Ours sends with SHA-256 and a CRC32C per part, and reads back with SHA-256 into a file. The peer is `upload_file` and
`download_file` with their defaults, which compute no SHA-256; a second row gives it one pass of SHA-256 each way, as an
archive would need it. Each run is a process of its own, so that its peak memory is its own. The endpoint is
`s3_endpoint` in another process, quick enough to leave the clients to be measured. Exit code 1 when ours is slower
than the peer without digests, or holds more memory than its parts in flight explain.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from tests.bench.parts.verdict import Verdict, judge
from tests.results import keep, results_of

RESULTS = results_of("bench", "archive")

MIB, SLACK_MIB = 2**20, 32
KINDS = ("ours", "boto3", "boto3 + SHA-256")
BUCKET = "bench"
ENDPOINT = (sys.executable, "-m", "tests.bench.parts.s3_endpoint")


def client() -> Any:
    return boto3.client("s3", region_name="us-east-1", config=Config(signature_version="s3v4"))


def run_one(kind: str, source: Path, key: str, part: int, at_once: int) -> dict[str, float]:
    """Up and back once; seconds each way, CPU seconds, peak memory above what the imports took, in MiB."""
    from awscrt import s3 as _  # noqa: F401  (in everyone's baseline)

    from infra.archive.bucket import ArchiveBucket, Content
    from infra.aws.transfer import Transfer

    s3, size = client(), source.stat().st_size
    digest = (source.parent / "sha256").read_text()
    back = source.parent / f"back-{os.getpid()}"
    started = resource.getrusage(resource.RUSAGE_SELF)
    before = started.ru_maxrss / 1024
    began = time.monotonic()
    if kind == "ours":
        inventory = ArchiveBucket(s3, BUCKET, "p", lambda *_, **__: None, transfer=Transfer(s3, BUCKET, part, at_once))
        item = inventory.place(key, Content(source, size, digest))
        sent = time.monotonic()
        inventory.read_back(item, back)
    else:
        if kind != "boto3":
            assert _sha256(source) == digest
        s3.upload_file(str(source), BUCKET, f"p/{key}")
        sent = time.monotonic()
        s3.download_file(BUCKET, f"p/{key}", str(back))
        if kind != "boto3":
            assert _sha256(back) == digest
    ended = time.monotonic()
    used = resource.getrusage(resource.RUSAGE_SELF)
    peak, cpu = used.ru_maxrss / 1024 - before, used.ru_utime + used.ru_stime - started.ru_utime - started.ru_stime
    assert back.stat().st_size == size
    back.unlink()
    s3.delete_object(Bucket=BUCKET, Key=f"p/{key}")
    return {"up_s": sent - began, "back_s": ended - sent, "peak_mib": peak, "cpu_s": cpu}


def _memory() -> str | None:
    """Where a disk is not part of what is measured."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def measure(size_mib: int, pairs: int, part: int, at_once: int, work: Path) -> list[dict[str, Any]]:
    source, digest = work / "source", hashlib.sha256()
    with source.open("wb") as file:
        for _ in range(size_mib):
            chunk = os.urandom(MIB)
            digest.update(chunk)
            file.write(chunk)
    (work / "sha256").write_text(digest.hexdigest())
    rows = []
    for number in range(pairs):
        for kind in KINDS[number % len(KINDS) :] + KINDS[: number % len(KINDS)]:
            command = [sys.executable, "-m", "tests.bench.archive", "--one", kind, str(source), f"k{number}"]
            command += [str(part), str(at_once)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append({"kind": kind, "pair": number, **json.loads(done.stdout.splitlines()[-1])})
            print(f"  pair {number + 1} {kind:16} {rows[-1]['up_s']:6.2f} s up {rows[-1]['back_s']:6.2f} s back")
    return rows


def ratio(rows: list[dict[str, Any]], kind: str, field: str) -> float:
    """Median over the pairs of the peer's seconds by ours: above 1, ours is faster."""
    of = {(row["pair"], row["kind"]): row[field] for row in rows}
    pairs = sorted({row["pair"] for row in rows})
    return statistics.median(of[pair, kind] / of[pair, "ours"] for pair in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-mib", type=int, default=512)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--part-mib", type=int, default=8)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        kind, source, key, part, at_once = options.one
        print(json.dumps(run_one(kind, Path(source), key, int(part), int(at_once))))
        return 0
    os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_EC2_METADATA_DISABLED": "true"}
    with (
        tempfile.TemporaryDirectory(prefix="bivouac-bench-") as work,
        tempfile.TemporaryDirectory(prefix="bivouac-bench-s3-", dir=_memory()) as stored,
        subprocess.Popen([*ENDPOINT, stored], stdin=-1, stdout=-1, text=True) as server,
    ):
        try:
            os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{server.stdout.readline().strip()}"  # type: ignore[union-attr]
            client().create_bucket(Bucket=BUCKET)
            part = options.part_mib * MIB
            rows = measure(options.size_mib, options.pairs, part, options.at_once, Path(work))
        finally:
            server.kill()
    # Each way as many parts as go at once, in Python's memory and once more in the runtime's; whatever the size.
    bound = 4 * options.at_once * options.part_mib + SLACK_MIB
    print(f"\n{options.size_mib} MiB, {options.pairs} pairs, medians; ours must stay below {bound} MiB")
    print(f"{'':18}{'up MiB/s':>10}{'back MiB/s':>12}{'peak MiB':>10}{'CPU s':>8}{'up: ours/peer':>15}{'back':>7}")
    for kind in KINDS:
        mine = [row for row in rows if row["kind"] == kind]
        up, back = (options.size_mib / statistics.median(row[key] for row in mine) for key in ("up_s", "back_s"))
        peak = max(row["peak_mib"] for row in mine)
        cpu = statistics.median(row["cpu_s"] for row in mine)
        versus = "" if kind == "ours" else f"{ratio(rows, kind, 'up_s'):15.2f}{ratio(rows, kind, 'back_s'):7.2f}"
        print(f"{kind:18}{up:10.0f}{back:12.0f}{peak:10.0f}{cpu:8.2f}{versus}")
    ratios = {f"{kind} {field}": ratio(rows, kind, field) for kind in KINDS[1:] for field in ("up_s", "back_s")}
    told = {"size_mib": options.size_mib, "bound_mib": bound, "ratios": ratios, "rows": rows}
    keep(RESULTS, told)
    bounded = max(row["peak_mib"] for row in rows if row["kind"] == "ours") < bound
    verdicts = [Verdict(way, *_sides(rows, field)) for way, field in (("up to S3", "up_s"), ("back from S3", "back_s"))]
    return judge(*verdicts) or int(not bounded)


def _sides(rows: list[dict[str, Any]], field: str) -> tuple[tuple[float, ...], float, str, tuple[float, ...]]:
    """Return ours, the limit, and the peer with its name."""
    ours, peer = (tuple(row[field] for row in rows if row["kind"] == kind) for kind in ("ours", "boto3"))
    return ours, 1.0, "boto3", peer


if __name__ == "__main__":
    sys.exit(main())
