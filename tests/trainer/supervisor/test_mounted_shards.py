"""Shards of MosaicML Streaming and of WebDataset, read with the real packages from a folder that is mounted read-only.

In a campaign it is `/mounts/NAME`; here each node's job has a mount namespace and a `/dev/shm` of its own, as a pod.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.trainer.supervised import Supervisors, printed

pytestmark = pytest.mark.nightly
COUNT, NODES = 60, 2
PACKAGES = (
    "mosaicml-streaming==0.13.0", "webdataset==1.0.2", "braceexpand", "brotli", "catalogue", "cramjam", "pillow",
    "python-snappy", "torchvision==0.29.2", "xxhash", "zstd",
)  # fmt: skip
"""Without what they need besides torch and numpy, which a job's image has: clouds' clients above all."""
WRITE = """
import sys
from pathlib import Path
import webdataset
from streaming import MDSWriter
root, count = Path(sys.argv[1]), int(sys.argv[2])
with MDSWriter(out=str(root / "mds"), columns={"number": "int", "text": "str"}, size_limit=600) as writer:
    for number in range(count):
        writer.write({"number": number, "text": f"document {number}"})
(root / "webdataset").mkdir()
with webdataset.ShardWriter(str(root / "webdataset/part-%04d.tar"), maxcount=7, verbose=0) as writer:
    for number in range(count):
        writer.write({"__key__": f"{number:05d}", "json": {"number": number}})
"""
JOB = """
import json, os, sys
from pathlib import Path
import torch.distributed as dist
from torch.utils.data import DataLoader
kind, folder = sys.argv[1], Path(sys.argv[2])
os.environ |= {"RANK": os.environ["NODE_RANK"], "WORLD_SIZE": os.environ["NNODES"], "LOCAL_RANK": "0",
               "LOCAL_WORLD_SIZE": "1"}
dist.init_process_group("gloo")
try:
    (folder / "x").touch()
except OSError as error:
    print(json.dumps({"event": "locked", "why": error.strerror}), flush=True)
if kind == "mds":
    from streaming import StreamingDataset
    data = StreamingDataset(local=str(folder), shuffle=True, shuffle_seed=7, batch_size=5)
    rows = [int(row["number"]) for row in DataLoader(data, batch_size=None)]
else:
    import webdataset
    shards = sorted(map(str, folder.glob("*.tar")))
    data = webdataset.WebDataset(shards, shardshuffle=False, nodesplitter=webdataset.split_by_node).decode()
    rows = [row["json"]["number"] for row in data]
for step in range(1, len(rows) // 5 + 1):
    print(json.dumps({"step": step, "loss": 1 / step}), flush=True)
print(json.dumps({"event": "rows", "rows": rows}), flush=True)
dist.barrier()
"""
NAMESPACE = """
mount -t tmpfs none /dev/shm && mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *PACKAGES]
    subprocess.run(install, check=True)
    return folder


@pytest.fixture(scope="module")
def shards(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shards")
    environment = os.environ | {"PYTHONPATH": str(packages)}
    subprocess.run([sys.executable, "-c", WRITE, str(root), str(COUNT)], check=True, env=environment)
    return root


@pytest.mark.parametrize("kind", ["mds", "webdataset"])
def test_two_nodes_read_every_sample_of_a_read_only_mount_once(
    kind: str, packages: Path, shards: Path, tmp_path: Path
) -> None:
    folder = shards / kind
    assert len(list(folder.iterdir())) > NODES, "several shards"
    (tmp_path / "job.py").write_text(JOB)
    camp = Supervisors(tmp_path, nodes=NODES, folder=tmp_path)
    words = ("unshare", "-rm", "sh", "-c", NAMESPACE, "sh", str(folder), sys.executable, "job.py", kind, str(folder))
    env = {"PYTHONPATH": str(packages)}
    nodes = [camp.start(1, *words, steps=COUNT // NODES // 5, rank=rank, env=env) for rank in range(NODES)]
    texts = [node.communicate()[0] for node in nodes]
    assert [camp.ended(rank).exit_code for rank in range(NODES)] == [0, 0], "\n".join(texts)
    assert all(printed(text, "locked") for text in texts), "nothing was written beside the shards"
    rows = [number for text in texts for event in printed(text, "rows") for number in event["rows"]]
    assert sorted(rows) == list(range(COUNT))
