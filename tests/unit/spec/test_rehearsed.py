"""The rehearsal of a spec for AWS: the same campaign but for named differences, and it can be run on one machine."""

from __future__ import annotations

import copy
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.cli.run.rehearse import notes, parse_faults
from infra.errors import UserError
from infra.plan.checks import check, failed
from infra.plan.survey import survey
from infra.record import rehearsals
from infra.record.rehearsals import RehearsalResult, remember, sentence
from infra.spec.campaign import Spec, SpecFile, load
from infra.spec.rehearsed import Derived, derive, name_of
from tests.root import ROOT
from trainer.contract import LoraConfig

REAL = ROOT / "infra/campaigns/p5-32-nodes.yaml"
DRAWN = Path("/drawn/weights")
WORKLOAD: dict[str, Any] = {
    "source": "trainer/examples/ddp", "script": "train.py", "args": ["50000", "0"],
    "checkpoints": {"format": "marker"},
    "estimates": {"steps": 50000, "step_seconds": 4, "checkpoint_gib": 90},
    "rehearsal": {"args": ["100", "0"], "estimates": {"steps": 100, "step_seconds": 0.1, "checkpoint_gib": 0.001}},
}  # fmt: skip


def document(**changes: Any) -> dict[str, Any]:
    content = yaml.safe_load(REAL.read_text())
    content["kubernetes"] = str(content["kubernetes"])
    return content | changes


def as_workload() -> dict[str, Any]:
    content = document(workload=WORKLOAD)
    del content["training"], content["data"]
    return content


def derived(content: dict[str, Any], *faults: str, nodes: int = 2) -> Derived:
    return derive(content, Spec.model_validate(content), nodes, faults or ("kill-node@40%",), DRAWN)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(ROOT)

    def load_it(found: Derived) -> SpecFile:
        path = tmp_path / "dry.yaml"
        path.write_text(yaml.safe_dump(found.document))
        return load(path)

    return load_it


def test_the_trainer_image_stands_in_for_a_foreign_one_unless_the_rehearsal_has_one() -> None:
    content = as_workload()
    content["workload"] = WORKLOAD | {"image": "nvcr.io/nvidia/pytorch:25.10-py3"}
    found = derived(content)
    assert Spec.model_validate(found.document).runtime.image is None
    (told,) = [difference for difference in found.differences if difference.field == "workload.image"]
    assert told.real == "nvcr.io/nvidia/pytorch:25.10-py3" and "stands in" in told.why
    content["workload"]["rehearsal"] = {"image": "team/job:v1"} | WORKLOAD["rehearsal"]
    kept = derived(content)
    assert Spec.model_validate(kept.document).runtime.image == "team/job:v1"


@pytest.mark.parametrize("content", [document(), as_workload()], ids=["built-in", "workload"])
@pytest.mark.parametrize("nodes", [2, 3])
def test_it_can_be_run_here_and_a_node_dies_after_a_checkpoint(content: dict[str, Any], nodes: int, made: Any) -> None:
    file = made(derived(content, "kill-node@1%", "kill-node@90%", nodes=nodes))
    facts = survey(file.spec)
    assert not failed(check(file, facts, facts.prices.as_of))
    assert file.spec.target == "rehearsal" and file.spec.nodes.count == nodes
    first, second = file.spec.rehearsal.faults
    assert first.kill_node == second.kill_node == nodes - 1
    assert file.spec.checkpoint.every_steps < first.after_step < second.after_step < file.spec.job.steps


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_gang_that_may_be_smaller_is_rehearsed_as_one_of_this_machine(nodes: int, made: Any) -> None:
    content = document()
    content["recovery"] = {**content.get("recovery", {}), "min_nodes": 28}
    found = derived(content, nodes=nodes)
    file = made(found)
    assert (file.spec.nodes.count, file.spec.recovery.min_nodes) == (nodes, 1)
    fields = {row.field for row in found.differences}
    assert {"recovery.min_nodes", "recovery.spare_timeout"} <= fields
    wrong = [row for row in check(file, survey(file.spec), date(2026, 11, 21)) if row.field == "recovery.min_nodes"]
    assert not failed(tuple(wrong)), wrong


def test_every_field_is_that_of_aws_or_a_named_difference(made: Any) -> None:
    content = document(
        region="eu-north-1", zone="eu-north-1b", second_zone="eu-north-1a", addons={"mpi_operator": True},
        encryption={"customer_key": True, "key_arn": "arn:aws:kms:eu-north-1:111122223333:key/abc"},
    )  # fmt: skip
    before = copy.deepcopy(content)
    found = derived(content)
    assert content == before, "the given document stays"
    real, here = flat(content), flat(found.document)
    changed = {name for name in {**real, **here} if real.get(name) != here.get(name)}
    fields = {difference.field for difference in found.differences}
    assert {name for name in changed if not any(name == one or name.startswith(f"{one}.") for one in fields)} == set()
    assert all(difference.why for difference in found.differences)
    spec = made(found).spec
    assert (spec.region, spec.zone, spec.second_zone) == ("us-east-1", "us-east-1b", None)
    assert spec.encryption.customer_key and spec.encryption.key_arn is None and spec.addons.mpi_operator
    assert spec.storage == Spec.model_validate(content).storage and spec.nodes.capacity == "reservation"


BLOCK = ROOT / "infra/campaigns/p5en-capacity-block.yaml"


@pytest.mark.parametrize(
    "bought",
    [
        {"capacity": "reservation", "reservation_id": "cr-0fedcba9876543210"},
        {"capacity": "reservation", "reservation_id": "open"},
        {"capacity": "capacity-block", "reservation_id": "cr-0fedcba9876543210", "block_fee_usd": "15978.24",
         "block_end": "2026-11-20T11:30:00Z"},
    ],
)  # fmt: skip
def test_capacity_that_was_bought_stays_of_its_kind_and_name(bought: dict[str, Any], made: Any) -> None:
    content = yaml.safe_load(BLOCK.read_text())
    content["nodes"] = {**{key: content["nodes"][key] for key in ("count", "instance_type")}, **bought}
    content["nodes"]["usd_per_hour"] = 41.61
    found = derived(content)
    file = made(found)
    nodes = file.spec.nodes
    assert (str(nodes.capacity), nodes.reservation_id) == (bought["capacity"], bought["reservation_id"])
    assert str(nodes.block_fee_usd or "") == bought.get("block_fee_usd", "") and nodes.block_end is None
    facts = survey(file.spec)
    assert not failed(check(file, facts, facts.prices.as_of)), "a block that is over on AWS is none here"
    fields = {difference.field for difference in found.differences}
    assert "nodes.reservation_id" in fields and ("nodes.block_end" in fields) is ("block_end" in bought)
    assert "nodes.capacity" not in fields and "- `nodes.capacity`" in notes("p5en", found, 0)


def flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name, value in content.items():
        rows |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return rows


@pytest.mark.parametrize("section", [{"model": "llama-3.1-8b", "init_from": "s3://bucket/llama"}, {"compute": 1e22}])
def test_a_large_model_is_rehearsed_by_a_small_one_of_its_kind(section: dict[str, Any], made: Any) -> None:
    content = document()
    content["training"] = {"steps": 100, "global_batch": 1024, **section}
    training = made(derived(content)).spec.training
    assert training.model.name == ("debug" if "model" in section else "") and training.model.width == 64
    assert training.init_from == (str(DRAWN) if "init_from" in section else None) and training.compute is None
    assert training.steps == 240


def test_what_is_said_of_bfloat16_is_left_out_where_the_rehearsal_computes_in_float32(made: Any) -> None:
    content = document()
    rounded = {"watch": {"precision_every": 100}, "gradients": {"reduce": "bfloat16"}, "precision": "bfloat16"}
    content["training"] = {"steps": 100, "global_batch": 1024, "model": "llama-3.1-8b", **rounded}
    training = made(derived(content)).spec.training
    assert (training.watch.precision_every, training.gradients.reduce) == (0, None)


def test_adapters_are_rehearsed_beside_drawn_weights(made: Any) -> None:
    content, lora = document(), {"rank": 4, "targets": ["q_proj", "v_proj"]}
    start = {"model": {"name": "qwen3-0.6b", "lora": lora}, "init_from": "s3://bucket/qwen"}
    content["training"] = {"steps": 100, "global_batch": 1024, **start}
    found = derived(content)
    model = made(found).spec.training.model
    assert model.width == 64 and model.lora == LoraConfig(rank=4, targets=("q_proj", "v_proj"))
    (told,) = (difference for difference in found.differences if difference.field == "training.init_from")
    assert told.real == "s3://bucket/qwen" and "draws" in told.why


def test_a_rehearsal_writes_its_series_nowhere() -> None:
    made = derived(document(addons={"remote_write": {"url": "https://prometheus.example.org/api/v1/write"}}))
    assert "remote_write" not in made.document.get("addons", {})
    assert "addons.remote_write" in str(made.differences)


def test_a_workload_runs_its_own_differences(made: Any) -> None:
    spec = made(derived(as_workload())).spec
    assert spec.job.args == ("100", "0") and spec.job.steps == 100 and spec.checkpoint.every_steps == 10


def test_a_rehearsed_job_has_the_secrets_of_a_local_file_and_the_page_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    content = as_workload()
    arn = "arn:aws:secretsmanager:us-east-1:999999999999:secret:bivouac_job/token-AbC123"
    content["account"] = "999999999999"
    content["workload"] = WORKLOAD | {
        "secrets": {"TOKEN": {"secret": arn}}, "rehearsal": {**WORKLOAD["rehearsal"], "secrets": "secrets.env"},  # type: ignore[dict-item]
    }  # fmt: skip
    derived = derive(content, Spec.model_validate(content), 2, (), DRAWN)
    (told,) = (difference for difference in derived.differences if difference.field == "workload.secrets")
    assert told.rehearsed == "those in secrets.env"
    small = Spec.model_validate(derived.document)
    assert small.secrets["TOKEN"].secret == "bivouac_job/token"
    file = SpecFile(path=tmp_path / "x.yaml", spec=small, lines={})
    facts = survey(small)
    assert not [one for one in check(file, facts, facts.prices.as_of) if failed((one,)) and "secrets" in one.field]


def test_the_login_of_a_private_registry_is_rehearsed_with_a_value_of_this_machine() -> None:
    content = as_workload()
    content["workload"] = WORKLOAD | {
        "image": "registry.example.com/team/job:v1",
        "pull_secret": {"secret": "arn:aws:secretsmanager:us-west-2:999999999999:secret:bivouac_pull-AbC123"},
        "rehearsal": {**WORKLOAD["rehearsal"], "secrets": "secrets.env"},  # type: ignore[dict-item]
    }
    found = derived(content)
    (told,) = (difference for difference in found.differences if difference.field == "workload.pull_secret")
    assert told.rehearsed == "those in secrets.env"
    small = Spec.model_validate(found.document)
    assert small.pull_secret is not None and small.pull_secret.secret == "bivouac_pull" and small.runtime.image is None


def test_text_in_s3_is_rehearsed_in_the_emulated_s3(tmp_path: Path) -> None:
    text = {"source": "s3://team/web", "pattern": "**/*.jsonl", "prepare": {"where": "cluster", "nodes": 9}}
    for own in ({}, {"rehearsal": {"text": str(tmp_path)}, "tokenizer": str(tmp_path / "tokenizer.json")}):
        found = Spec.model_validate(derived(document(data={**text, **own}), nodes=3).document)
        assert found.data is not None and found.data.in_cluster and found.data.prepare.nodes == 3
        assert set(found.data.rehearsal) == {"text"} and found.data.tokenizer is None
        assert found.data.source == ("s3://team/web" if own else "s3://rehearsed-text/python")


def test_samples_of_chats_are_rehearsed_by_the_real_tokenizer_and_template(tmp_path: Path) -> None:
    content = yaml.safe_load((ROOT / "infra/campaigns/fine-tuning.yaml").read_text())
    content["kubernetes"] = str(content["kubernetes"])
    without = derived(content)
    assert without.document["data"] == {"source": "python:stdlib", "max_files": 60}
    assert "data.rehearsal" in next(difference.why for difference in without.differences if difference.field == "data")
    content["data"]["rehearsal"] = {"text": str(tmp_path)}
    faults = ("kill-node@40%", "kill-node@60%")
    real, small = Spec.model_validate(content), Spec.model_validate(derived(content, *faults).document)
    assert small.rehearsal is not None and small.checkpoint is not None
    first, second = (fault.after_step for fault in small.rehearsal.faults)
    assert 2 * small.checkpoint.every_steps < first < second
    assert real.data is not None and small.data is not None and real.training and small.training
    kept = ("format", "chat", "tokenizer", "end_of_document", "source", "pattern")
    assert [getattr(small.data, name) for name in kept] == [getattr(real.data, name) for name in kept]
    ours = ("context", "vocabulary", "document_attention", "reset_positions", "end_of_document")
    assert [getattr(small.training.model, name) for name in ours] == [
        getattr(real.training.model, name) for name in ours
    ]
    assert small.training.model.config["num_hidden_layers"] < real.training.model.config["num_hidden_layers"]


def test_nobody_is_told_of_a_rehearsal_or_let_into_it(made: Any) -> None:
    people = [{"principal": "arn:aws:iam::123456789012:role/ada", "role": "admin"}]
    notify = {"topic": "arn:aws:sns:us-west-2:123456789012:pager", "webhook": {"secret": "hook"}, "on": ["held"]}
    found = derived(document(access=people, notify=notify))
    spec = made(found).spec
    assert not spec.access and spec.notify.topic is None and spec.notify.webhook is None
    assert {"access", "notify.topic", "notify.webhook"} <= {difference.field for difference in found.differences}


def test_the_name_is_never_that_of_a_campaign_that_bills() -> None:
    for name in ("short", "a" * 20, "sixteen-letters-x-y"):
        assert name_of(name) != name and len(name_of(name)) <= 20 and name_of(name).endswith("-dry")


@pytest.mark.parametrize("fault", ["kill-node", "kill-node@40", "kill-node@0%", "kill-node@100%", "burn@40%"])
def test_another_fault_is_refused_in_words(fault: str) -> None:
    with pytest.raises(UserError, match="kill-node@40%"):
        derived(document(), fault)


def test_a_rank_may_die_in_place_of_a_node() -> None:
    (fault,) = derived(document(), "kill-rank@50%", nodes=3).document["rehearsal"]["faults"]
    assert fault == {"kill_rank": 2, "after_step": 120}


def test_the_faults_of_the_command_line() -> None:
    assert parse_faults(None, False) == ("kill-node@40%",) and parse_faults(None, True) == ()
    assert parse_faults(["kill-node@10%"], False) == ("kill-node@10%",)
    with pytest.raises(UserError):
        parse_faults(["kill-node@10%"], True)


def test_a_rehearsal_is_not_rehearsed_again() -> None:
    content = yaml.safe_load((ROOT / "infra/campaigns/rehearsal.yaml").read_text())
    with pytest.raises(UserError, match="a rehearsal already"):
        derived(content)


def test_the_page_tells_what_ran_as_it_is_what_differed_and_how_it_ended() -> None:
    found = derived(document())
    page = notes("p5-32-nodes", found, 0)
    same, different = page.partition("## Different here")[::2]
    assert "- `storage.shared.capacity_gib`" in same and "- `nodes.count`" not in same
    assert "| `nodes.count` | 32 | 2 |" in different and "| `training.model` |" in different
    missed = notes("p5-32-nodes", found, 75, ("kill_node: 1, after_step: 96",))
    assert "- the fault {kill_node: 1, after_step: 96}: training ended before" in missed.partition("Not exercised")[2]
    assert "ended well" in page and "exit code 75" in notes("p5-32-nodes", found, 75)


def test_a_run_says_when_this_very_spec_was_rehearsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIVOUAC_CACHE", str(tmp_path))
    spec, other = Spec.model_validate(document()), Spec.model_validate(document(purpose="another one"))
    assert "has not been rehearsed" in sentence(spec)
    remember(RehearsalResult(digest=spec.digest(), at=datetime(2026, 1, 2, 3, 4, tzinfo=UTC), ended_well=False))
    assert "2026-01-02 03:04 UTC" in sentence(spec) and "did not end well" in sentence(spec)
    remember(RehearsalResult.now(spec, ended_well=True))
    assert "it ended well" in sentence(spec) and "has not been rehearsed" in sentence(other)
    (tmp_path / "rehearsals.json").write_text("{broken")
    assert rehearsals.last(spec) is None


def test_a_spec_for_an_existing_cluster_is_rehearsed_as_a_job(tmp_path: Path) -> None:
    path = ROOT / "tests/unit/standing/standing.yaml"
    made = derive(yaml.safe_load(path.read_text()), load(path).spec, 2, ("kill-node@40%",), tmp_path)
    small = tmp_path / "small.yaml"
    small.write_text(yaml.safe_dump(made.document, sort_keys=False))
    file = load(small)
    assert file.spec is not None and (file.spec.target, file.spec.cluster) == ("rehearsal", None)
    assert not failed(check(file, survey(file.spec), date(2026, 11, 27)))
    assert {"cluster", "nodes.usd_per_hour"} <= {difference.field for difference in made.differences}
