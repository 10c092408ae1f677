"""The check that a node runs at boot: whether it is what its image says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.root import ROOT

PROGRAM = ROOT / "playbooks/roles/health_checks/files/node-check"


def check(root: Path) -> tuple[int, dict[str, Any]]:
    done = subprocess.run([sys.executable, PROGRAM, "--root", str(root)], capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout)


def booted(root: Path, **image: Any) -> Path:
    """A machine's /proc and /sys as far as the check reads them."""
    files = {
        "etc/bivouac/image.json": json.dumps({"inputs": "x", **image}),
        "proc/sys/kernel/osrelease": "6.18.1\n",
        "proc/sys/vm/nr_hugepages": "5128\n",
        "proc/modules": "efa 1 0 - Live 0x0\n",
        "proc/driver/nvidia/gpus/0000:00:1e.0/information": "",
        "sys/module/nvidia/version": "580.1\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_node_that_is_what_its_image_says_is_fit(tmp_path: Path) -> None:
    image = {"kernel": "6.18.1", "huge_pages": "5128", "driver": "580.1", "modules": ["efa"]}
    code, said = check(booted(tmp_path, **image))
    assert code == 0 and said["ok"] and len(said["findings"]) == 4


@pytest.mark.parametrize(
    ("image", "what"),
    [
        ({"kernel": "6.12.0"}, "kernel"),
        ({"huge_pages": "9000"}, "huge pages of 2 MiB"),
        ({"driver": "570.2"}, "NVIDIA driver in the kernel"),
        ({"modules": ["lustre"]}, "kernel module lustre"),
    ],
)
def test_a_node_that_differs_from_its_image_is_named_with_what_differs(
    tmp_path: Path, image: dict[str, Any], what: str
) -> None:
    code, said = check(booted(tmp_path, **image))
    assert code == 1 and [row["what"] for row in said["findings"] if not row["ok"]] == [what]


def test_a_machine_without_a_baked_image_is_not_fit(tmp_path: Path) -> None:
    code, said = check(tmp_path)
    assert code == 1 and "no /etc/bivouac/image.json" in said["findings"][0]["seen"]
