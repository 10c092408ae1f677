"""The trainer's image as people build it: its Dockerfile, its versions, and what its base leaves out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.root import ROOT

DOCKERFILE = (ROOT / "images/trainer.Dockerfile").read_text()


def test_the_container_is_given_every_version_as_an_argument() -> None:
    command = [sys.executable, str(ROOT / "images/build_args.py")]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode == 64 and "imagetools inspect" in refused.stderr
    done = subprocess.run([*command, "--base-digest", f"sha256:{'a' * 64}"], capture_output=True, text=True)
    given = dict(item.split("=", 1) for item in done.stdout.split() if item != "--build-arg")
    assert set(re.findall(r"^ARG (\w+)$", DOCKERFILE, re.MULTILINE)) == set(given)
    assert DOCKERFILE.count("sha256sum --check") == DOCKERFILE.count("curl --fail")


@pytest.mark.parametrize(
    ("lies", "asked_for"),
    [
        # EFA's installer from 1.44 on, as AWS's deep learning containers look for it; for NGC it has no other name
        ("lib/libnccl-net-ofi.so", "lib/libnccl-net.so"),
        ("lib/libnccl-net.so", "lib/libnccl-net.so"),
        # up to 1.43: awslabs/awsome-distributed-ai pull 936
        ("lib/x86_64-linux-gnu/libnccl-net.so", "lib/x86_64-linux-gnu/libnccl-net.so"),
        ("lib/libnccl-tuner-aws-ofi.so", None),
    ],
)
def test_the_container_has_the_plugin_where_nccl_looks_or_is_not_built(
    lies: str, asked_for: str | None, tmp_path: Path
) -> None:
    (step,) = re.findall(r"^RUN (set -e; found=(?:.*\\\n)*.*)$", DOCKERFILE, re.MULTILINE)
    top = tmp_path / "ofi-nccl"
    (top / lies).parent.mkdir(parents=True)
    (top / lies).touch()
    script = step.replace("/opt/amazon/ofi-nccl", str(top))
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    if asked_for is None:
        assert done.returncode == 1 and "no plugin of NCCL" in done.stderr
        return
    assert done.returncode == 0 and (top / asked_for).exists(), done.stderr
    (paths,) = re.findall(r"LD_LIBRARY_PATH=(\S+)", DOCKERFILE)
    assert f"/opt/amazon/ofi-nccl/{Path(asked_for).parent}" in paths.split(":")


def test_the_base_that_people_push_holds_all_but_the_project() -> None:
    stages = dict(re.findall(r"^FROM \S+(?: AS (\w+))?\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL))
    assert list(stages)[-2:] == ["base", ""]
    copied = re.findall(r"^COPY (.+) \S+$", stages["base"], re.MULTILINE)
    assert copied == ["requirements/build.txt requirements/image.txt"] and "import deepspeed, torch" in stages["base"]
    assert "--no-deps" in stages[""], "what the project needs is the base's"
