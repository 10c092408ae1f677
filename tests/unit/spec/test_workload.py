"""The spec's section `workload`: what it takes, what it refuses, and how it differs on a small machine."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.cli.prepare.checked import checked
from infra.plan.checks import check, failed
from infra.plan.checks.finding import Case
from infra.plan.checks.workload import local_checkpoint_disks
from infra.plan.job_config import workload_config
from infra.plan.layout import gang_sizes
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.spec.campaign import SpecError, SpecFile, load
from infra.spec.workload.workload import Workload
from tests.root import ROOT
from tests.tables import Table
from tests.unit.plan.checks.refused import FRESH

TABLE = Table(__file__)

EXAMPLE = ROOT / "trainer/examples/ddp/rehearsal.yaml"
ARN = "arn:aws:secretsmanager:us-east-1:123456789012:secret:"


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(ROOT)

    def made(remove: tuple[str, ...] = (), top: dict[str, Any] | None = None, **changes: Any) -> SpecFile:
        document = yaml.safe_load(EXAMPLE.read_text())
        document["workload"] |= changes
        for name in remove:
            del document["workload"][name]
        path = tmp_path / "spec.yaml"
        path.write_text(yaml.safe_dump(document | (top or {})))
        return load(path)

    return made


@TABLE.cases
def test_what_cannot_work_is_refused_in_words(changes: dict[str, Any], why: str, spec: Any) -> None:
    with pytest.raises(SpecError) as refusal:
        spec(**changes)
    assert why in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mounts": {f"m{n}": f"s3://bucket/{n}" for n in range(8)}}, "8 are too many"),
        ({"init_from": "s3://bucket/w", "mounts": {f"m{n}": f"s3://bucket/{n}" for n in range(7)}}, "8 are too many"),
        ({"secrets": {f"T{number}": {"secret": "a"} for number in range(41)}}, "at most 40"),
    ],
    ids=["mounts", "mounts and weights", "secrets"],
)
def test_too_many_of_a_thing_are_refused_with_their_limit(changes: dict[str, Any], why: str, spec: Any) -> None:
    with pytest.raises(SpecError, match=why):
        spec(**changes)


def test_a_spec_trains_one_thing(spec: Any) -> None:
    built_in = yaml.safe_load((ROOT / "infra/campaigns/rehearsal.yaml").read_text())
    for top, why in (
        ({"training": built_in["training"], "data": built_in["data"]}, "either `training`"),
        ({"data": built_in["data"]}, "belongs to `training`"),
        ({"workload": None}, "either `training`"),
    ):
        with pytest.raises(SpecError, match=why):
            spec(top=top)


def test_a_rehearsal_has_arguments_variables_and_figures_of_its_own(spec: Any) -> None:
    small = {"args": ["10", "0"], "env": {"A": "2"}, "estimates": {"steps": 10, "step_seconds": 0.1}}
    whole = spec(env={"A": "1", "B": "1"}, rehearsal=small).spec
    job = whole.job
    assert isinstance(job, Workload)
    assert (job.args, job.env, job.steps) == (("10", "0"), {"A": "2", "B": "1"}, 10)
    on_aws = whole.model_copy(update={"target": "aws"}).job
    assert isinstance(on_aws, Workload)
    assert (on_aws.args, on_aws.env, on_aws.steps) == (("60", "0.2"), {"A": "1", "B": "1"}, 60)


def test_the_plan_of_a_workload_by_hand(spec: Any) -> None:
    given = spec(estimates={"steps": 1000, "step_seconds": 2, "checkpoint_gib": 10, "tflop_per_step": 1000})
    found = given.spec
    plan = make_plan(found, survey(found))
    assert plan.layout.world_size == 2 and plan.layout.accumulation == 1
    assert plan.figure("training time").value == 2000
    # p5.4xlarge: one H100 each, 989 TFLOP/s: 1e15 / (2 s x 2 x 989e12)
    assert float(plan.figure("implied MFU").value) == pytest.approx(25.278, abs=0.001)
    assert {tier.name: (tier.checkpoint_bytes, tier.needed_bytes) for tier in plan.tiers} == {
        "shared": (10 * 2**30, 6 * 10 * 2**30),  # 3 kept, 1 being copied, 2 of the job's own
        "archive": (10 * 2**30, 10 * 2**30),
    }


def test_a_jobs_step_that_takes_more_than_the_accelerators_peak_is_refused(spec: Any) -> None:
    for tflop, level in ((2000, None), (3000, "warning"), (4000, "error")):  # of 2 s x 2 x 989 TFLOP/s
        given = spec(estimates={"steps": 1000, "step_seconds": 2, "checkpoint_gib": 10, "tflop_per_step": tflop})
        findings = check(given, survey(given.spec), FRESH)
        told = [(row.level.value, row.field) for row in findings if row.rule == "plausible-step-time"]
        assert told == ([(level, "workload.estimates.step_seconds")] if level else [])


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({}, "workload.elastic false"),
        ({"elastic": True}, None),
        ({"elastic": True, "checkpoints": {"tier": "local"}}, "workload.checkpoints.tier local"),
    ],
)
def test_a_job_says_that_it_trains_on_any_number_of_nodes(changes: dict[str, Any], seen: str | None, spec: Any) -> None:
    given = spec(top={"recovery": {"min_nodes": 1}}, **changes)
    told = [row.seen for row in check(given, survey(given.spec), FRESH) if row.field == "recovery.min_nodes"]
    assert told == ([] if seen is None else [seen])
    assert gang_sizes(given.spec, 2) == ((1,) if changes else ())


def test_the_plan_counts_the_limits_of_evaluation_and_export_and_the_bytes_of_an_export(spec: Any) -> None:
    def planned(**changes: Any) -> tuple[float, dict[str, int], float, Any]:
        found = spec(estimates={"steps": 1000, "step_seconds": 2, "checkpoint_gib": 10}, **changes).spec
        plan = make_plan(found, survey(found))
        (archive,) = (float(stage.seconds) for stage in plan.clock if stage.stage == "archive")
        (s3,) = (float(line.usd) for line in plan.cost if line.name == "S3 archive")
        return archive, {tier.name: tier.needed_bytes for tier in plan.tiers}, s3, found.workload.judging

    gib, rate = 2**30, 1.25e9
    evaluate, export = {"command": ["a"], "limit": "10m"}, {"command": ["b"], "limit": "7m"}
    plain = planned()
    assert plain[0] == pytest.approx(180 + 2 * 10 * gib / rate, abs=1) and plain[3] == timedelta()
    alone = planned(evaluate=evaluate)
    assert alone[0] == pytest.approx(180 + 600 + 3 * 10 * gib / rate, abs=1)
    assert alone[1] == plain[1] and alone[3] == timedelta(minutes=10)
    both = planned(evaluate=evaluate, export=export)
    assert both[0] == pytest.approx(180 + 2 * 600 + 420 + 5 * 10 * gib / rate, abs=1)
    assert both[1] == {name: needed + 10 * gib for name, needed in plain[1].items()}
    assert both[2] == pytest.approx(2 * plain[2], abs=0.02) and both[3] == timedelta(minutes=27)
    assert planned(export=export)[3] == timedelta(minutes=7)


def test_the_example_can_be_run_and_a_missing_source_or_script_cannot(spec: Any) -> None:
    def errors(file: SpecFile) -> list[str]:
        found = check(file, survey(file.spec), survey(file.spec).prices.as_of)
        return [one.field for one in found if failed((one,))]

    assert errors(spec()) == []
    assert errors(spec(source="/no/such/folder")) == ["workload.source"]
    assert errors(spec(script="other.py")) == ["workload.script"]
    assert errors(spec(remove=("source",))) == ["workload.script"]
    assert errors(spec(remove=("source",), script="/opt/train.py")) == []


def test_secrets_lie_in_the_campaigns_account_and_region_and_rehearsals_have_a_file(spec: Any) -> None:
    def errors(target: str, secret: str, **more: Any) -> list[tuple[str, str]]:
        small = {"rehearsal": {"secrets": "secrets.env"}} if more.get("file") else {}
        top = {"target": target, **({"rehearsal": None} if target == "aws" else {})}
        file = spec(top=top, secrets={"TOKEN": {"secret": secret}}, **small)
        found = check(file, survey(file.spec), survey(file.spec).prices.as_of)
        return [(one.field, one.seen) for one in found if failed((one,)) and "secrets" in one.field]

    theirs = ARN.replace("123456789012", "999999999999") + "bivouac_job-AbC123"
    away = ARN.replace("us-east-1", "eu-west-1") + "bivouac_job-AbC123"
    assert errors("aws", "bivouac_job/token") == errors("aws", f"{ARN}bivouac_job-AbC123") == []
    for secret in (theirs, away):
        assert errors("aws", secret) == [("workload.secrets.TOKEN.secret", secret)]
        assert errors("rehearsal", secret, file=True) == [], "the emulated account has one of the same name"
    assert errors("rehearsal", "bivouac_job/token") == [("workload.rehearsal.secrets", "TOKEN")]


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ({"secret": "team/token"}, "secret team/token"),
        ({"secret": "/bivouac_job"}, "secret /bivouac_job"),
        ({"secret": f"{ARN}bivouac_webhook-AbC123"}, f"secret {ARN}bivouac_webhook-AbC123"),
        ({"parameter": "/team/bivouac_job"}, "parameter /team/bivouac_job"),
    ],
)
def test_a_jobs_secret_is_opted_in_by_its_name_and_the_error_tells_how(
    spec: Any, source: dict[str, str], seen: str
) -> None:
    file = spec(secrets={"TOKEN": source}, rehearsal={"secrets": "secrets.env"})
    found = [one for one in check(file, survey(file.spec), survey(file.spec).prices.as_of) if failed((one,))]
    (told,) = [one for one in found if one.field == "workload.secrets.TOKEN"]
    assert told.seen == seen and "store it as bivouac_job/" in str(told.cure)
    for name in ({"parameter": "/bivouac_job/token"}, {"parameter": "bivouac_job"}):
        file = spec(secrets={"TOKEN": name}, rehearsal={"secrets": "secrets.env"})
        fine = check(file, survey(file.spec), survey(file.spec).prices.as_of)
        assert not [one for one in fine if "secrets" in one.field and failed((one,))], name


def test_a_value_in_place_of_a_source_is_refused_unseen_and_the_rest_is_judged(spec: Any, tmp_path: Path) -> None:
    spec()
    document = yaml.safe_load((tmp_path / "spec.yaml").read_text())
    document["workload"] |= {"secrets": {"TOKEN": "hunter22", "KEY": {"secret": "a*"}}, "source": "/no/such/folder"}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(document))
    findings = [finding for finding in checked(tmp_path / "spec.yaml").findings if failed((finding,))]
    assert {one.field for one in findings} >= {"workload.secrets.TOKEN", "workload.secrets.KEY.secret"}
    assert "workload.source" in {one.field for one in findings}
    assert not [one for one in findings if "hunter22" in str(one)]


def test_only_names_of_secrets_leave_the_spec(spec: Any) -> None:
    given = {"B": {"secret": f"{ARN}team/all-AbC123", "key": "b"}, "A": {"parameter": "/a"}}
    found = spec(secrets=given, rehearsal={"secrets": "secrets.env"}).spec
    assert workload_config(found, make_plan(found, survey(found)), "d", "s", "me").secrets == ("A", "B")
    assert found.secrets["B"].model_dump(exclude_none=True) == {"secret": "team/all", "key": "b"}, "of the same name"
    on_aws = found.model_copy(update={"target": "aws"})
    assert on_aws.secrets["B"].secret == f"{ARN}team/all-AbC123"


def test_the_supervisors_configuration_is_that_of_the_spec(spec: Any) -> None:
    found = spec(env={"A": "1"}, grace="90s", progress={"pattern": "it (?P<step>[0-9]+)"}).spec
    config = workload_config(found, make_plan(found, survey(found)), "d" * 64, "s" * 64, "me")
    assert config.command == ("train.py", "60", "0.2") and config.launcher == "torchrun"
    assert (config.source, config.source_digest) == ("/data/source-ssssssssssssssss.tar", "s" * 64)
    assert config.checkpoints.folder == "/shared-checkpoints/ddp/own" and config.save_every == 10
    assert (config.steps, config.grace_s, config.env, config.identity) == (60, 90, {"A": "1"}, "me")
    assert found.job.grace_s == timedelta(seconds=90).total_seconds()


def test_a_job_on_its_nodes_disks_is_told_where_and_planned_with_their_room_and_rate(spec: Any) -> None:
    disks = {"format": "dcp", "tier": "local", "keep_local": 1}
    found = spec(checkpoints=disks, estimates={"steps": 60, "step_seconds": 0.25, "checkpoint_gib": 10}).spec
    facts = survey(found)
    plan = make_plan(found, facts)
    config = workload_config(found, plan, "d" * 64, "s" * 64, "me").checkpoints
    assert (config.folder, config.tier, config.keep_local) == ("/local-checkpoints/ddp/own", "local", 1)
    tiers = {tier.name: tier.needed_bytes for tier in plan.tiers}
    assert tiers["local"] == 4 * 10 * 2**30, "one kept, one being copied, two of the job's own; each may be whole"
    assert tiers["shared"] == 4 * 10 * 2**30, "three kept, and one being copied"
    assert float(plan.figure("save stall").value) == pytest.approx(10 * 2**30 / 1e9, rel=0.01), "one disk of 1 GB/s"
    assert float(plan.figure("sealing").value) == pytest.approx(2 * 10 * 2**30 / 1e9, rel=0.01), "read and written"
    assert facts.instance is not None
    bare = facts.model_copy(update={"instance": facts.instance.model_copy(update={"nvme_count": 0})})
    (draft,) = local_checkpoint_disks(Case(found, bare, FRESH))
    assert draft.place == "workload.checkpoints.tier" and draft.seen == facts.instance.name
    assert not list(local_checkpoint_disks(Case(found, facts, FRESH)))


def test_the_supervisor_is_told_what_to_evaluate_and_where_weights_lie(spec: Any) -> None:
    def told(target: str = "rehearsal", **changes: Any) -> Any:
        found = spec(**changes).spec.model_copy(update={"target": target})
        return workload_config(found, make_plan(found, survey(found)), "d", "s", "me")

    assert (told().init_from, told().judging) == ("", None)
    evaluate = {"command": ["python3", "evaluate.py"], "tolerance": 0.1, "limit": "3m"}
    judging = told(evaluate=evaluate, export={"command": ["python3", "export.py"]}).judging
    assert judging.model_dump() == {
        "evaluate": ("python3", "evaluate.py"), "evaluate_s": 180, "tolerance": 0.1, "export": ("python3", "export.py"),
        "export_s": 900,
    }  # fmt: skip
    in_s3: dict[str, Any] = {"init_from": "s3://bucket/llama", "rehearsal": {"init_from": "small"}}
    assert told(**in_s3).init_from == told("aws", **in_s3).init_from == "/mounts/init-from"
    assert told(init_from="llama").init_from == "/data/init-from"


def test_weights_in_s3_are_a_link_and_a_rehearsal_puts_a_small_folder_in_their_place(spec: Any) -> None:
    given = spec(init_from="s3://bucket/llama", mounts={"a": "s3://bucket/x"}, rehearsal={"init_from": "small"}).spec
    assert given.workload.links == {"a": "s3://bucket/x", "init-from": "s3://bucket/llama"}
    assert given.job.init_from == "s3://bucket/llama", "the emulated S3 has the small folder's files there"
    local = spec(init_from="llama", rehearsal={"init_from": "small"}).spec
    assert local.workload.links == {} and local.job.init_from == "small"
    assert local.model_copy(update={"target": "aws"}).job.init_from == "llama"


def test_weights_and_programs_that_are_not_there_are_found_before_anything_is_paid(spec: Any, tmp_path: Path) -> None:
    def errors(target: str = "rehearsal", **changes: Any) -> list[str]:
        top = {"target": target, **({"rehearsal": None} if target == "aws" else {})}
        file = spec(top=top, **changes)
        found = check(file, survey(file.spec), survey(file.spec).prices.as_of)
        return [one.field for one in found if failed((one,)) and one.field.startswith("workload.")]

    here = str(tmp_path)
    assert errors(init_from=here) == errors("aws", init_from=here) == errors("aws", init_from="s3://bucket/x") == []
    assert errors(init_from=str(tmp_path / "none")) == ["workload.init_from"]
    assert errors(init_from="s3://bucket/x") == ["workload.rehearsal.init_from"]
    assert errors(init_from="s3://bucket/x", rehearsal={"init_from": here}) == []
    assert errors(init_from=here, rehearsal={"init_from": "/no/such"}) == ["workload.rehearsal.init_from"]
    assert errors("aws", init_from=here, rehearsal={"init_from": "/no/such"}) == []
    there, gone = {"command": ["python3", "train.py", "-x"]}, {"command": ["python3", "gone.py"]}
    assert errors(evaluate=there) == errors(evaluate={"command": ["python3", "/opt/gone.py"]}) == []
    assert errors(evaluate=gone, export=gone) == ["workload.evaluate.command", "workload.export.command"]


def test_an_export_that_nobody_evaluates_is_warned_of(spec: Any) -> None:
    command = {"command": ["python3", "train.py"]}
    assert set(warned(spec(export=command))) == {"workload.export"}
    assert warned(spec(export=command, evaluate=command)) == {}


def test_the_image_is_the_rehearsals_own_there_and_the_specs_on_aws(spec: Any) -> None:
    image = "nvcr.io/nvidia/pytorch:25.10-py3"
    here = spec(image=image, rehearsal={"image": "team/job:v1"}).spec
    assert (here.target, here.runtime.image) == ("rehearsal", "team/job:v1")
    assert spec(image=image).spec.runtime.image is None, "the trainer image stands in"
    assert here.model_copy(update={"target": "aws"}).runtime.image == image


def test_a_rehearsal_wants_a_folder_for_each_mount(spec: Any, tmp_path: Path) -> None:
    def errors(**here: str) -> list[str]:
        file = spec(mounts={"a": "s3://bucket/x", "b": "s3://bucket/xy"}, rehearsal={"mounts": here})
        found = check(file, survey(file.spec), survey(file.spec).prices.as_of)
        return [one.field for one in found if failed((one,))]

    assert errors(a=str(tmp_path), b=str(tmp_path)) == []
    assert errors(a=str(tmp_path)) == ["workload.rehearsal.mounts.b"]
    assert errors(a=str(tmp_path), b=str(tmp_path / "none")) == ["workload.rehearsal.mounts.b"]


def warned(file: SpecFile) -> dict[str, str]:
    found = check(file, survey(file.spec), survey(file.spec).prices.as_of)
    return {one.field: one.message for one in found if one.field.startswith("workload.")}


def test_variables_against_efa_are_warned_of_where_there_is_efa(spec: Any) -> None:
    env = {"NCCL_NET": "Socket", "NCCL_DEBUG": "INFO", "FI_PROVIDER": "tcp"}
    with_efa, without = {"count": 2, "instance_type": "p5.48xlarge"}, {"count": 2, "instance_type": "g6.2xlarge"}
    assert set(warned(spec(env=env, top={"nodes": with_efa}))) == {"workload.env.FI_PROVIDER", "workload.env.NCCL_NET"}
    assert warned(spec(env=env, top={"nodes": without})) == {}


def test_an_image_of_ones_own_is_told_what_efa_needs_of_it(spec: Any) -> None:
    given: dict[str, Any] = {
        "rehearsal": {"image": "team/job:v1"},
        "top": {"nodes": {"count": 2, "instance_type": "p5.48xlarge"}},
    }
    assert warned(spec(**given)) == {"workload.image": "must have libfabric and aws-ofi-nccl for EFA"}
    assert warned(spec(top=given["top"])) == {}


def test_on_aws_an_mpi_job_brings_its_image(spec: Any) -> None:
    def told(**changes: Any) -> dict[str, str]:
        job = {"launcher": "mpirun", "command": ["./solve"], "script": None, **changes}
        return warned(spec(top={"target": "aws", "rehearsal": None}, **job))

    assert told() == {"workload.image": "the trainer image has no mpirun"}
    assert "mpirun" not in str(told(image="nvcr.io/nvidia/pytorch:25.10-py3"))
    assert warned(spec(top={"target": "aws", "rehearsal": None})) == {}
