"""A launch that came to nothing: what it leaves, and what the next run makes of it. An emulated account with a node
group, and an API server that really answers HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from lightkube import Client
from lightkube.models.meta_v1 import ObjectMeta
from rich.console import Console

from infra.bake import node_image
from infra.bake.bake import ImageManifest, manifest_key
from infra.campaign import launch, preflight, stages
from infra.cluster import kubernetes
from infra.cluster.kubernetes import JobSet
from infra.cluster.nodes import GpuNodes
from infra.errors import PermanentError
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.record.events import Stage
from infra.record.payloads.attempts import AttemptLaunched, AttemptRunning, NodesAtZero
from infra.record.payloads.outputs import BakeOutput, PreflightOutput, ProvisionOutput, StageOutput
from infra.record.payloads.stages import StageFinished, StageStarted
from infra.session.context import Context
from infra.session.session import opened
from tests.worlds.steward_site import StewardSite, lone_camp

CAMPAIGN = "failing"
OLD, NEW = "images@sha256:0", "images@sha256:1"


class Asked(Exception):
    """Nodes were asked for: what these tests look at is over."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StewardSite]:
    with lone_camp(tmp_path_factory, campaign=CAMPAIGN) as camp:
        camp.api.created = lambda document: None
        yield camp


@pytest.fixture
def context(made: StewardSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    """Provisioned and proven, with the first image; its patience is short."""
    made.forget()
    patience = -made.spec.recovery.startup_timeout.total_seconds()
    monkeypatch.setattr(launch, "_STEWARD_S", 1.0 + patience)
    with opened(made.spec, make_plan(made.spec, survey(made.spec)), Console(file=StringIO()), None) as one:
        one.results = tmp_path
        for stage, outputs in (
            (Stage.BAKE, baked(one, OLD)),
            (Stage.PROVISION, ProvisionOutput(data_digest="d" * 64)),
            (Stage.PREFLIGHT, PreflightOutput()),
        ):
            one.store.append(StageStarted(stage=stage))
            one.store.append(StageFinished(stage=stage, seconds=0.0, outputs=outputs))
            one.outputs[stage] = outputs
        monkeypatch.setattr(kubernetes, "PATIENCE_S", 0.5)
        monkeypatch.setattr(preflight.basics, "prove", lambda context, client: None)
        yield one
    made.api.dropping = 0


def baked(context: Context, image: str) -> BakeOutput:
    """As a bake leaves it."""
    code = image[-1]
    manifest = ImageManifest(
        image=image, inputs_digest=code, base="b", base_digest="sha256:b", base_packages={}, layer_packages={}
    )
    context.store.put(manifest_key(code), manifest.model_dump_json().encode())
    return BakeOutput(image=image, code=code, manifest=manifest_key(code), baked=True)


def asking_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run ends where it asks for nodes."""

    def asked(nodes: GpuNodes, count: int) -> None:
        raise Asked

    monkeypatch.setattr(GpuNodes, "set_desired", asked)


def left(made: StewardSite) -> set[str]:
    return {key[3] for key in made.api.objects if key[1] in ("deployments", "jobsets")}


def started(context: Context) -> Client:
    """A steward and its first gang, which waits for ever."""
    client = kubernetes.from_outside(context.account, context.names.cluster)
    labels = {"bivouac.dev/campaign": CAMPAIGN, "bivouac.dev/attempt": "1"}
    client.create(JobSet(metadata=ObjectMeta(name="failing-a1", namespace="campaign", labels=labels)))
    launch.deploy(client, context.store, launch.steward_config(context))
    return client


def test_what_a_launch_in_a_silent_cluster_left_is_gone_before_nodes_are_asked_for_again(
    made: StewardSite, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = started(context)
    made.api.dropping = 1000
    with pytest.raises(PermanentError, match="the GPU nodes were given back"):
        launch._first_attempt(context, client)
    made.api.dropping = 0
    assert left(made) == {"failing-a1", "steward"} and Stage.PREFLIGHT not in context.state().finished_stages
    asking_nobody(monkeypatch)
    with pytest.raises(Asked):
        preflight.run(context)
    assert not left(made), "neither takes the new nodes before their proof"


def test_a_driver_killed_while_it_gives_nodes_back_leaves_a_record_that_counts_on_none(
    made: StewardSite, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = started(context)
    asking_nobody(monkeypatch)
    with pytest.raises(Asked):
        launch._first_attempt(context, client)
    assert Stage.PREFLIGHT not in context.state().finished_stages, "the size may be zero by now"
    with pytest.raises(Asked):
        preflight.run(context)
    assert not left(made), "nor may what it left fill the nodes that are asked for"


def steps_of_the_next_run(context: Context, monkeypatch: pytest.MonkeyPatch, image: str) -> list[Stage]:
    """Which stages it enters, where the bake brings this image, until the steward is deployed."""
    entered = list[Stage]()

    def bake(_: Context) -> BakeOutput:
        return baked(context, image)

    def proven(_: Context) -> PreflightOutput:
        return PreflightOutput()

    for step in stages.STEPS[: [one.stage for one in stages.STEPS].index(Stage.LAUNCH) + 1]:
        run = {Stage.BAKE: bake, Stage.PREFLIGHT: proven}.get(step.stage, step.run)

        def noted(one: Context, stage: Stage = step.stage, run: Any = run) -> StageOutput:
            entered.append(stage)
            output: StageOutput = run(one)
            return output

        listed = [replace(one, run=noted) if one.stage is step.stage else one for one in stages.STEPS]
        monkeypatch.setattr(stages, "STEPS", tuple(listed))
    monkeypatch.setattr(node_image, "insist", lambda *_: None)
    context.outputs.clear()
    with pytest.raises(PermanentError, match="no attempt began to train"):
        stages.run_campaign(context)
    return entered


def test_code_that_was_mended_after_a_launch_that_failed_is_what_the_next_run_launches(
    made: StewardSite, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PermanentError, match="bakes changed code"):
        launch._first_attempt(context, started(context))
    assert steps_of_the_next_run(context, monkeypatch, NEW) == [Stage.BAKE, Stage.PREFLIGHT, Stage.LAUNCH]
    config = launch.recorded_config(context.store, 0)
    assert config is not None and (config.image, config.code_digest) == (NEW, "1")


def test_what_ran_once_is_never_baked_anew_by_a_run(
    made: StewardSite, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it committed was made by that code; another is a person's relaunch."""
    context.store.append(AttemptLaunched(attempt=1, jobset="failing-a1", committed_step=-1))
    context.store.append(AttemptRunning(attempt=1, nodes=[]))
    context.store.append(NodesAtZero(group=context.names.gpu_group))
    state = context.state()
    assert not state.bake_again and Stage.BAKE in state.finished_stages
