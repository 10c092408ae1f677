"""The trainer's image as people build it: its Dockerfile, its versions, and what its base leaves out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from infra.aws.base_image import STEWARD_MOST_BYTES
from tests.root import ROOT

DOCKERFILE = (ROOT / "images/trainer.Dockerfile").read_text()


STAGES = dict(re.findall(r"^FROM \S+(?: AS (\w+))?\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL))
ASKED = re.compile(r"^ARG (\w+)$", re.MULTILINE)


@pytest.mark.parametrize(
    ("target", "asks"),
    [
        ("slim", {"BASE", *ASKED.findall(STAGES["slim"])}),
        ("base", {"BASE", *(arg for name, text in STAGES.items() if name != "slim" for arg in ASKED.findall(text))}),
    ],
)
def test_a_target_is_given_every_version_as_an_argument(target: str, asks: set[str]) -> None:
    command = [sys.executable, str(ROOT / "images/build_args.py"), "--target", target]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode == 64 and "imagetools inspect" in refused.stderr
    done = subprocess.run([*command, "--base-digest", f"sha256:{'a' * 64}"], capture_output=True, text=True)
    given = dict(item.split("=", 1) for item in done.stdout.split() if item != "--build-arg")
    assert asks == set(given), "and none that it does not ask for"
    assert DOCKERFILE.count("sha256sum --check") == DOCKERFILE.count("curl --fail")


@pytest.mark.parametrize(("size", "code"), [("400MB", 0), ("401MB", 1)])
def test_a_slim_image_beyond_its_limit_is_not_built(size: str, code: int, tmp_path: Path) -> None:
    (step,) = re.findall(r"^RUN (used=(?:.*\\\n)*.*)$", STAGES["slim"], re.MULTILINE)
    du = tmp_path / "du"
    du.write_text(f"#!/bin/sh\necho '{size}\t/'\n")
    du.chmod(0o755)
    limit = yaml.safe_load((ROOT / "images/versions.yaml").read_text())["versions"]["slim_container"]["most_mb"]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MOST_MB": str(limit)}
    done = subprocess.run(["sh", "-c", step], env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert ("at most 400; cure:" in done.stderr) == bool(code) and limit * 10**6 == STEWARD_MOST_BYTES


@pytest.mark.parametrize("name", ["slim", "base"])
def test_a_base_tells_its_python_and_is_not_built_with_another(name: str) -> None:
    proof = f"assert sys.version.startswith('{sys.version_info[0]}.{sys.version_info[1]}.'), sys.version"
    (step,) = re.findall(r'^RUN python -c "(import sys; assert .*)"$', STAGES[name], re.MULTILINE)
    assert step.replace("${PYTHON_VERSION}", f"{sys.version_info[0]}.{sys.version_info[1]}") == f"import sys; {proof}"
    other = subprocess.run([sys.executable, "-c", step.replace("${PYTHON_VERSION}", "3.1")], capture_output=True)
    assert other.returncode == 1
    assert re.search(r"^ENV PYTHON_VERSION=\$\{PYTHON_VERSION\}", STAGES[name], re.MULTILINE)


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


def test_the_bases_that_people_push_hold_all_but_the_project() -> None:
    assert list(STAGES)[-2:] == ["base", ""]
    copied = [re.findall(r"^COPY (.+) \S+$", STAGES[name], re.MULTILINE) for name in ("base", "slim")]
    assert copied == [["requirements/build.txt requirements/image.txt"], ["requirements/steward.txt"]]
    assert "import deepspeed, torch" in STAGES["base"]
    assert "--no-deps" in STAGES[""], "what the project needs is the base's"
