"""The viewer's policy, enforced by the emulated AWS: enough for each command that looks, and for none that changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from infra.cli.data import checkpoints
from infra.cli.end.down import down_command
from infra.cli.look import exec as entering
from infra.cli.look.inside import Inside
from infra.cli.look.list import list_command
from infra.cli.look.logs import logs_command
from infra.cli.look.report import report_command
from infra.cli.look.status import status_command
from infra.cli.prepare.plan import plan_command
from infra.cli.refusals import refusal
from infra.cli.run.relaunch import relaunch_command
from infra.cli.run.repair import repair_command
from infra.cli.run.run import run_command
from infra.cluster.ranks import Member
from infra.record import pod_logs
from infra.record.payloads import payload_of
from infra.spec.names import buckets
from tests.rehearsal.acting import VIEWER, acting
from tests.rehearsal.engine.changes_by_hand import mutations
from tests.unit.steward.seeing.test_tiers_seen import commit
from tests.worlds.campaign_site import CampaignSite, camp

REGION = "us-east-1"


@pytest.fixture(scope="module")
def camped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CampaignSite]:
    """A campaign that is held, with a copy in S3, in an account with a state and an archive bucket."""
    folder = tmp_path_factory.mktemp("looked-at")
    with camp(folder) as one, pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIVOUAC_SITE", "in-process")
        patch.setenv("BIVOUAC_CACHE", str(folder / "cache"))  # `list` would ask the sites of this machine too
        archive = buckets(one.spec.account, REGION).archive
        with one.opened() as context:
            identity = context.identity
            for kind, data in EVENTS:
                context.store.append(payload_of(kind, data))
            key = f"{context.store.prefix}/{pod_logs.piece('drilled-a1-gang-0-0', 0)}"
            context.store.put_if_absent(key, b"step 3\n", {pod_logs.UNTIL: pod_logs.Position(1, 1).stored()})
        one.client("s3").create_bucket(Bucket=archive)
        commit(folder, 20, ("a.pt", "b.pt"))
        for path in (folder / "seen" / "step-00000020").rglob("*"):
            if path.is_file():
                key = f"copies/drilled/{identity}/step-00000020/{path.relative_to(folder / 'seen' / 'step-00000020')}"
                one.client("s3").upload_file(str(path), archive, key)
        yield one


EVENTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("stage.started", {"stage": "provision", "who": "arn:aws:iam::123456789012:user/ada"}),
    ("stage.finished", {"stage": "launch", "seconds": 1.0, "outputs": {}}),
    ("attempt.launched", {"attempt": 1, "jobset": "attempt-1", "committed_step": -1}),
    ("checkpoint.copied", {"step": 20}),
    (
        "attempt.ended",
        {"attempt": 1, "failure": "user", "detail": "NameError", "step": 3, "committed_at_end": -1},
    ),
    ("held", {"attempt": 1, "failure": "user", "cause": "NameError", "until": "2026-11-24T00:00:00+00:00",
                 "usd_per_hour": 1.0}),
)  # fmt: skip


def spec_file(camped: CampaignSite, folder: Path) -> Path:
    path = folder / "campaign.yaml"
    path.write_text(yaml.safe_dump(camped.spec.model_dump(mode="json", exclude_unset=True)))
    return path


LOOKS: dict[str, tuple[Callable[[Path, Console], int], str]] = {
    "status": (lambda spec, out: status_command("drilled", REGION, False, out), "held"),
    "list": (lambda spec, out: list_command(REGION, True, out), '"campaign": "drilled"'),
    "logs": (lambda spec, out: logs_command("drilled", REGION, out, notes=out), "step 3"),
    "report": (lambda spec, out: report_command("drilled", REGION, False, out), "report.html"),
    "plan": (lambda spec, out: plan_command(spec, False, out), "FSx for Lustre"),
    "checkpoints list": (lambda spec, out: checkpoints.list_command("drilled", REGION, False, out), "copy"),
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_viewer_may_look(camped: CampaignSite, name: str, tmp_path: Path) -> None:
    command, word = LOOKS[name]
    spec, out, before = spec_file(camped, tmp_path), StringIO(), objects(camped)
    with acting(camped, *VIEWER), mutations(camped) as heard:
        assert command(spec, Console(file=out, width=300)) == 0
    assert word in out.getvalue() and objects(camped) == before
    # A report asks to stand in the record too, and goes without where it may not.
    assert [call for call in heard if not (name == "report" and call[2].endswith("/report.html"))] == []


CHANGES: dict[str, Callable[[Path, Console], int]] = {
    "run": lambda spec, out: run_command(spec, True, out),
    "down": lambda spec, out: down_command("drilled", REGION, False, out, consent=True),
    "repair": lambda spec, out: repair_command("drilled", REGION, True, out),
    "relaunch": lambda spec, out: relaunch_command("drilled", REGION, None, True, True, out),
    "exec": lambda spec, out: entering.exec_command("drilled", REGION, 0, ["id"], False, False, out),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_viewer_changes_nothing_and_aws_says_so(
    camped: CampaignSite, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def in_the_cluster(store: Any, command: str) -> Iterator[Inside]:
        """A cluster that lets anybody in: here AWS alone refuses."""
        from infra.aws.account import Account

        http: Any = None
        yield Inside(store, camped.spec, Account(REGION), http)

    monkeypatch.setattr(entering, "open_cluster", in_the_cluster)
    monkeypatch.setattr(Inside, "rank", lambda self, rank: Member(1, 0, "gang-0", "train", "Running", False))
    monkeypatch.setattr(entering, "Containers", lambda http: pytest.fail("it entered the container"))
    spec, before = spec_file(camped, tmp_path), objects(camped)
    with acting(camped, *VIEWER), pytest.raises(Exception) as raised:
        CHANGES[name](spec, Console(file=StringIO(), width=300))
    told = refusal(raised.value)
    assert "s3:PutObject" in str(told.seen) and "user/viewer" in str(told.seen), told
    assert "infra/ci/README.md" in str(told.cure)
    assert objects(camped) == before


def objects(camped: CampaignSite) -> dict[str, str]:
    bucket = buckets(camped.spec.account, REGION).state
    return {one["Key"]: one["ETag"] for one in camped.client("s3").list_objects_v2(Bucket=bucket)["Contents"]}


def test_a_viewer_reads_no_data_no_weights_and_no_state_of_the_engine(camped: CampaignSite) -> None:
    import boto3
    from botocore.exceptions import ClientError

    where = buckets(camped.spec.account, REGION)
    copy = next(one["Key"] for one in camped.client("s3").list_objects_v2(Bucket=where.archive)["Contents"]
                if one["Key"].endswith("a.pt"))  # fmt: skip
    camped.client("s3").put_object(Bucket=where.state, Key=".pulumi/stacks/x.json", Body=b"{}")
    with acting(camped, *VIEWER):
        s3 = boto3.client("s3", region_name=REGION, endpoint_url=camped.world.endpoint_url)
        for bucket, key in ((where.archive, copy), (where.state, ".pulumi/stacks/x.json")):
            with pytest.raises(ClientError, match="AccessDenied"):
                s3.get_object(Bucket=bucket, Key=key)
