"""The secrets of a stack's state under a customer's key: opened on any machine by who may, and by nobody else."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulumi
import pytest
from pulumi.automation import CommandError

from infra.engine import engine as engine_module
from infra.engine.command import LeashedCommand
from infra.engine.engine import Engine
from infra.engine.state_copy import state_copy, stored_state
from infra.session.context import Context
from infra.stack.access.closing import closer
from infra.stack.access.policies import AccountPlace
from tests.rehearsal.acting import OPERATOR, acting, as_reader
from tests.rehearsal.aws_account import make_user
from tests.worlds.campaign_site import CampaignSite, camp

SECRET = "hunter-22-and-more"
STACK = "campaign-drilled"


def keeps_a_secret() -> None:
    pulumi.export("word", pulumi.Output.secret(SECRET))


@pytest.fixture(scope="module")
def camped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CampaignSite]:
    with camp(tmp_path_factory.mktemp("camp")) as one:
        yield one


@pytest.fixture(scope="module")
def context(camped: CampaignSite) -> Iterator[Context]:
    """With a stack that keeps a secret."""
    with camped.opened() as one, pytest.MonkeyPatch.context() as patch:
        key = camped.client("kms").create_key()["KeyMetadata"]["Arn"]
        patch.setattr(engine_module, "program", keeps_a_secret)
        engine = Engine(one, one.results / "pulumi")
        engine.up(engine.stack(STACK, {}, key))
        yield one


def previewed(context: Context) -> None:
    with state_copy(STACK, {}, stored_state(context.store, STACK), keeps_a_secret) as copy:
        copy.stack.preview()


def test_no_state_backup_or_history_shows_a_secret(context: Context) -> None:
    s3, bucket = context.account.client("s3"), context.buckets.state
    keys = [one["Key"] for one in s3.list_objects_v2(Bucket=bucket, Prefix=".pulumi/")["Contents"]]
    texts = {key: s3.get_object(Bucket=bucket, Key=key)["Body"].read().decode() for key in keys if STACK in key}
    assert len(texts) >= 2 and not [key for key, text in texts.items() if SECRET in text]
    latest = (stored_state(context.store, STACK) or {})["checkpoint"]["latest"]
    assert latest["secrets_providers"]["type"] == "cloud" and "ciphertext" in json.dumps(latest["resources"])


def test_the_operator_opens_it_on_another_machine(context: Context, camped: CampaignSite, tmp_path: Path) -> None:
    with acting(camped, *OPERATOR):
        engine = Engine(context, tmp_path)
        assert engine.up(engine.stack(STACK, {})) == {"word": SECRET}


def test_an_up_starts_the_cli_once_to_work_and_once_for_the_outputs(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start costs a quarter of a second. The rest stands in the stored state."""
    engine, starts = Engine(context, tmp_path), list[tuple[str, ...]]()
    stack, run = engine.stack(STACK, {}), LeashedCommand.run

    def count(command: LeashedCommand, words: list[str], *rest: Any, **more: Any) -> Any:
        starts.append(tuple(word for word in words[:2] if not word.startswith("-")))
        return run(command, words, *rest, **more)

    monkeypatch.setattr(LeashedCommand, "run", count)
    assert engine.clear_broken(stack) == () and engine.up(stack) == {"word": SECRET}
    assert engine.resources(stack) == 1 and starts == [("up",), ("stack", "output")]


def test_a_pull_requests_preview_opens_it_by_its_own_right(context: Context, camped: CampaignSite) -> None:
    with as_reader(camped):
        previewed(context)
    lesser = acting(camped, "preview-role", without="OpenTheEnginesStateUnderACustomersKey")
    with lesser, pytest.raises(CommandError, match="kms:Decrypt"):
        previewed(context)


def test_the_closer_opens_it(context: Context, camped: CampaignSite, monkeypatch: pytest.MonkeyPatch) -> None:
    key, secret = make_user(camped.world, "closer", *closer(AccountPlace(camped.world.account, camped.world.region)))
    monkeypatch.setitem(os.environ, "AWS_ACCESS_KEY_ID", key)
    monkeypatch.setitem(os.environ, "AWS_SECRET_ACCESS_KEY", secret)
    previewed(context)
