"""The archive's proof for checkpoints of ranks that shared matrices or sequences: the trainer's own programs evaluate
and export what came back from S3, and other ones look at what was exported."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
import torch
import transformers
from botocore.config import Config
from safetensors.torch import load_file

from infra.archive import model as programs
from infra.archive.archive import Archiver, say
from infra.archive.bucket import ArchiveBucket
from infra.archive.manifest import MANIFEST_NAME, ArchiveManifest, EvaluationProof
from infra.archive.model import model_on
from infra.archive.settings import ArchiveConfig, Places
from infra.errors import PermanentError
from infra.rehearsal.aws.strict.settings import SOFT
from infra.rehearsal.aws.world import World as Aws
from tests.manifests import seal, shard_at
from tests.rehearsal.aws_account import emulated
from tests.trainer.agents import World
from tests.trainer.builtin.model.test_layouts import LAST, LOSS, WEIGHT, Form, exported, trained
from tests.trainer.test_zero_stages import folder_of, manifest_of
from trainer.builtin.data.held_out import open_held_out
from trainer.contract import TrainConfig

pytestmark = pytest.mark.nightly

PREFIX = "campaigns/tiny"
FORMS = [Form(2, tensor=2), Form(2, tensor=2, stage=2, model="qwen3"), Form(2, sequence=2, stage=3, model="llama")]
FORMS += [Form(2, sequence=2), Form(2, tensor=2, model="llama", precision="bfloat16")]


@dataclass
class Site:
    """Buckets, and the folders of a Job."""

    s3: Any
    name: str
    world: World
    root: Path

    def archiver(self) -> Archiver:
        names = {"campaign": "tiny", "region": "us-east-1", "image_manifest": "images/none.json"}
        config = ArchiveConfig(**names, state_bucket=f"state-{self.name}", archive_bucket=f"archive-{self.name}")
        work = self.root / "work"
        work.mkdir(exist_ok=True)
        places = Places(self.world.shared, self.world.root / "train-1.json", self.world.data)
        bucket = ArchiveBucket(self.s3, f"archive-{self.name}", PREFIX, say)
        return Archiver(config, bucket, work, places, model_on(self.world.data))

    def fetch(self, manifest: ArchiveManifest, folder: str, into: Path) -> Path:
        """Bring a folder of the archive back, as a person would."""
        into.mkdir()
        for item in manifest.below(folder):
            body = self.s3.get_object(Bucket=f"archive-{self.name}", Key=item.key)["Body"].read()
            assert hashlib.sha256(body).hexdigest() == item.sha256
            (into / item.key.rpartition("/")[2]).write_bytes(body)
        return into


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    with emulated(tmp_path_factory.mktemp("site"), strictness=SOFT) as made:
        yield made


def site_of(aws: Aws, world: World, root: Path, patch: pytest.MonkeyPatch) -> Site:
    key, secret = aws.operator_key
    session = boto3.Session(key, secret, region_name=aws.region)
    s3 = session.client("s3", endpoint_url=aws.endpoint_url, config=Config(signature_version="s3v4"))
    name = hashlib.sha256(str(root).encode()).hexdigest()[:12]
    for bucket in (f"archive-{name}", f"state-{name}"):
        s3.create_bucket(Bucket=bucket)
    for record in ("spec.json", "live.json"):
        s3.put_object(Bucket=f"state-{name}", Key=f"{PREFIX}/{record}", Body=b'{"spent_usd": 12.5, "owner": "ann"}')
    patch.setattr(programs, "CONFIG_FILE", str(world.root / "train-1.json"))  # the Job's mount
    return Site(s3, name, world, root)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_what_is_read_back_evaluates_as_the_ranks_did_and_its_export_as_both(
    form: Form, aws: Aws, config: TrainConfig, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = trained(form, tmp_path / "many", data, config)
    site = site_of(aws, many.world, tmp_path, monkeypatch)

    manifest = site.archiver().run()

    recorded = manifest_of(many.world, LAST).evaluation_loss
    assert manifest.proof is EvaluationProof.EVALUATED and manifest.tolerance is None
    assert manifest.recorded_evaluation_loss == recorded
    assert manifest.restored_evaluation_loss == manifest.reference_evaluation_loss == pytest.approx(
        recorded, rel=LOSS[form.precision]
    )  # fmt: skip
    assert not manifest.refused

    out = site.fetch(manifest, "huggingface", tmp_path / "out")
    weights = load_file(out / "model.safetensors")
    alone = Form(1, stage=form.stage, precision=form.precision, model=form.model)
    theirs = exported(trained(alone, tmp_path / "one", data, config), tmp_path / "other")
    assert weights.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.allclose(weights[name], tensor, rtol=0, atol=WEIGHT[form.precision]), name
    assert by_transformers(out, many.world) == pytest.approx(recorded, rel=LOSS[form.precision])


def by_transformers(out: Path, world: World) -> float:
    """The held-out loss of an exported model: Hugging Face's own, in its own words."""
    model = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
    held_out = open_held_out(world.data, "", 512, world.config.model.context)
    tokens = torch.from_numpy(held_out.held_out(world.config.evaluate_batches * world.config.micro_batch))
    with torch.no_grad():
        scores = model(tokens[:, :-1]).logits.float().log_softmax(-1)
    return -float(scores.gather(2, tokens[:, 1:, None]).mean())


def test_a_group_that_saved_one_ranks_matrices_twice_is_no_archive(
    aws: Aws, config: TrainConfig, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole and sealed checkpoint of which half of each matrix is lost."""
    many = trained(Form(2, tensor=2), tmp_path / "many", data, config)
    for step in (LAST // 2, LAST):
        folder, manifest = folder_of(many.world, step), manifest_of(many.world, step)
        first, second = (folder / f"attempt-0001/mp_rank_{rank:02d}_model_states.pt" for rank in range(2))
        second.write_bytes(first.read_bytes())
        shards = tuple(shard_at(folder / shard.file, shard.rank) for shard in manifest.shards)
        seal(folder, manifest.model_copy(update={"shards": shards}))
    site = site_of(aws, many.world, tmp_path, monkeypatch)

    with pytest.raises(PermanentError, match="does not evaluate as it did in training"):
        site.archiver().run()
    assert site.archiver().bucket.get(MANIFEST_NAME) is None
