"""Two nodes with NVMe and S3 alone: the oracle of recovery is equality with an undisturbed twin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.trainer.agents import Attempt, Hold, World, run
from tests.trainer.emulated_s3 import BUCKET, emulated_s3
from trainer.builtin.checkpoint.bucket import BucketTier
from trainer.builtin.checkpoint.tiers import Tier
from trainer.contract import TrainConfig
from trainer.contract.training import DataConfig

TIER, DATA = f"s3://{BUCKET}/copies/tiny/id", f"s3://{BUCKET}/datasets/digest"


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with emulated_s3(tmp_path / "site") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it keeps the credentials of whoever came first
        yield boto3.client("s3")


def digests(tier: Any, step: int) -> dict[str, str]:
    (manifest,) = [one for one in tier.committed() if one.step == step]
    return {shard.file.rpartition("/")[2]: shard.sha256 for shard in manifest.shards}


@pytest.mark.nightly
def test_after_a_killed_node_training_ends_bit_equal_to_the_twin_of_a_file_system(
    twin: Attempt, data: Path, config: TrainConfig, s3: Any, tmp_path: Path
) -> None:
    for path in data.iterdir():
        s3.upload_file(str(path), BUCKET, f"datasets/digest/{path.name}")
    from_s3 = DataConfig(manifest_digest=config.data.manifest_digest, stream_from=DATA, cache_gib=1)
    checkpoint = config.checkpoint.model_copy(update={"neighbour": False})
    changes = {"shared_tier": TIER, "data": from_s3, "checkpoint": checkpoint}
    # Neither mount is there: whoever reads or writes one of them fails.
    world = World(tmp_path / "world", tmp_path / "no data", config.model_copy(update=changes))
    with Attempt(world, 1, hold=Hold(node=1, step=34, committed=30)) as first:
        first.wait_for_step(34)
        first.wait_for_shared(30)
        first.kill(1)
        codes = first.wait()
    assert codes == [70, -9]
    world.lose_node(1)

    second = run(world, 2)

    assert [agent.returncode for agent in second.agents] == [0, 0], second.log(0).read_text()
    assert second.events("restored")[0]["step"] == 30
    downloaded = {event["file"].rpartition("/")[2] for event in second.events("downloaded_shard", node=1)}
    # The model's states, which all ranks share, come from the other node.
    assert downloaded == {"bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "rng_rank_00001.pt"}
    assert not second.events("downloaded_shard", node=0), "its own disk has them"
    repeated = set(first.losses()) & set(second.losses())
    assert repeated, "no step was repeated"
    assert first.losses() | second.losses() == twin.losses()
    assert {step: first.losses()[step] for step in repeated} == {step: second.losses()[step] for step in repeated}
    ours, theirs = BucketTier(TIER, "tiny"), twin.world.shared
    assert digests(ours, 60) == digests(Tier("shared", theirs / "tiny"), 60)
    assert not (world.shared / "tiny").exists() or not list((world.shared / "tiny").glob("step-*"))
