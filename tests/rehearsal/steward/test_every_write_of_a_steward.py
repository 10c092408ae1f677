"""Stewards and relaunches killed before each of their writes: the next one finishes, and all comes out the same."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from infra.bake.bake import ImageManifest
from infra.campaign import relaunch as relaunching
from infra.campaign import supervise
from infra.campaign.launch import deploy, recorded_config, steward_config
from infra.campaign.relaunch import _next_version, difference, switch, taken_up
from infra.campaign.supervise import StewardWatch
from infra.cluster.steward_config import CONFIG_NAME, StewardConfig
from infra.errors import UserError
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.record.events import Stage
from infra.record.payloads.attempts import AttemptEnded, AttemptLaunched
from infra.record.payloads.outputs import BakeOutput, ProvisionOutput, StageOutput
from infra.record.payloads.stages import StageFinished
from infra.record.payloads.training import Held, TrainingFinished
from infra.session.context import Context
from infra.session.session import opened, spec_key
from infra.spec.campaign import Spec, Training
from infra.spec.names import NAMESPACE
from tests.built_in import training_of
from tests.worlds.account_site import until
from tests.worlds.steward_site import GANG_OF, Fuse, Killed, StewardSite, lone_camp

ONCE = ("training.finished", "archive.verified", "nodes.at-zero")
QUICK = 3
"""So many kills of each story here; BIVOUAC_EVERY_WRITE=1 takes every write."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StewardSite]:
    with lone_camp(tmp_path_factory, **HOLDS) as camp:
        yield camp


HOLDS: dict[str, Any] = {"campaign": "fused", "on_stop": "hold", "hold_for": "1s"}
STORIES: dict[str, tuple[int, ...]] = {
    "a crash, a restart, done": (1, 0),
    "a user error, a hold, its end": (64,),
}


def story_of(camp: StewardSite, ends: tuple[int, ...], at: int | None) -> Fuse:
    """The whole story with a kill before write `at`, and then as many stewards as it takes."""
    camp.ends = ends
    camp.forget()
    fuse = Fuse(at)
    if not camp.steward(fuse):
        assert camp.steward(Fuse()), "the second steward finishes"
    return fuse


def outcome(camp: StewardSite) -> dict[str, Any]:
    state, kinds = camp.state(), Counter(camp.kinds())
    return {
        "outcome": state.outcome,
        "attempts": [(a.number, a.failure, a.launched.committed_step) for a in state.attempts],
        "ended once each": [kinds["attempt.launched"], kinds["attempt.ended"]],
        "held": kinds["held"],
        "once": {kind: kinds[kind] for kind in ONCE},
        "closed": state.closed,
        "older jobs": len({name for _, plural, _, name in camp.api.objects if plural == "jobsets"}) > 1,
        "nodes": len(camp.site.alive()) > GANG_OF,
    }


@pytest.mark.nightly
@pytest.mark.parametrize("story", STORIES)
def test_a_steward_killed_before_any_of_its_writes_is_followed_by_one_that_finishes(
    made: StewardSite, story: str
) -> None:
    whole = story_of(made, STORIES[story], None)
    undisturbed = outcome(made)
    assert undisturbed["once"] == dict.fromkeys(ONCE, 1) and undisturbed["closed"]
    writes = range(len(whole.writes))
    for at in writes if "BIVOUAC_EVERY_WRITE" in os.environ else writes[1 :: max(1, len(writes) // QUICK)]:
        story_of(made, STORIES[story], at)
        assert outcome(made) == undisturbed, f"killed before write {at}, {whole.writes[at]}"


@pytest.fixture
def held(made: StewardSite, tmp_path: Path) -> Iterator[Context]:
    """A driver's context of a held campaign whose first steward is deployed."""
    made.forget()
    with opened(made.spec, make_plan(made.spec, survey(made.spec)), Console(file=StringIO()), None) as context:
        context.results = tmp_path
        bake = BakeOutput(image="i@sha256:0", code="c", manifest="images/c.json")
        image = ImageManifest(
            image=bake.image, inputs_digest="c", base="b", base_digest="d", base_packages={}, layer_packages={}
        )
        context.store.put(bake.manifest, image.model_dump_json().encode())
        context.outputs |= {Stage.BAKE: bake, Stage.PROVISION: ProvisionOutput(data_digest="d" * 64)}
        for stage in (Stage.BAKE, Stage.PROVISION, Stage.LAUNCH):
            context.store.append(StageFinished(stage=stage, seconds=1, outputs=context.outputs.get(stage, {})))
        deploy(made.client(Fuse()), context.store, steward_config(context))
        context.store.append(AttemptLaunched(attempt=1, jobset="fused-a1", committed_step=-1))
        context.store.append(AttemptEnded(attempt=1, failure="user", detail="", committed_at_end=-1))
        context.store.append(Held(attempt=1, failure="user", cause="", log=[], until="later", usd_per_hour=1.0))
        yield context


def in_force(camp: StewardSite, context: Context) -> StewardConfig:
    """What the steward's pod would be started with; that the record holds the very same is asserted."""
    spec = camp.api.objects["apps/v1", "deployments", NAMESPACE, "steward"]["spec"]["template"]["spec"]
    name = spec["volumes"][0]["configMap"]["name"]
    config = StewardConfig.model_validate_json(
        camp.api.objects["v1", "configmaps", NAMESPACE, name]["data"][CONFIG_NAME]
    )
    assert recorded_config(context.store, config.version) == config
    stored = context.store.get_json(spec_key(config.version))
    assert Spec.model_validate(stored) == config.spec, "configuration and spec of one version are one relaunch's"
    assert spec["containers"][0]["image"] == config.image
    return config


def longer(training: Training) -> Training:
    return training.model_copy(update={"steps": training.steps + 10})


def test_a_relaunch_killed_before_any_of_its_writes_leaves_one_of_two_configurations(
    made: StewardSite, held: Context
) -> None:
    old, client = held.spec, made.client
    mended = old.model_copy(update={"training": longer(training_of(old))})
    held.spec, held.plan = mended, make_plan(mended, survey(mended))
    held.outputs[Stage.BAKE] = held.outputs[Stage.BAKE].model_copy(update={"code": "c2"})
    before, guard, steps = in_force(made, held), held.account.guard, list[str]()
    for at in range(20):
        fuse = Fuse(at)
        held.account.guard = lambda fuse=fuse: fuse.burn("s3")  # type: ignore[misc]
        try:
            switch(held, client(fuse), _next_version(held), difference(old, mended))
        except Killed as killed:
            steps.append(str(killed))
            assert in_force(made, held) == before, f"killed before write {at}, {killed}"
            continue
        finally:
            held.account.guard = guard
        break
    assert len(steps) >= 5 and "deployments/steward" in steps[-1], "the last write switches"
    after = in_force(made, held)
    assert (after.spec, after.code_digest) == (mended, "c2") and after.version > before.version
    assert held.state().version == 0 and held.state().hold is not None, "in force once the new steward says so"
    made.ends = (64, 0)
    taken = ("version", "relaunch", "spec", "train", "code_digest")  # the fake nodes carry no accelerator
    assert made.steward(Fuse(), **{name: getattr(after, name) for name in taken})
    state = held.state()
    assert (state.version, state.outcome, state.hold) == (after.version, "done", None)
    assert taken_up(state.model_copy(update={"outcome": None}), difference(mended, mended), now=False)


def test_a_steward_whose_deployment_was_deleted_is_made_again_with_its_own_configuration(
    made: StewardSite, held: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "_SILENT_S", 0.2)
    monkeypatch.setattr(supervise, "_LOOK_EVERY_S", 0.0)
    before, watch = in_force(made, held), StewardWatch(held)
    key = ("apps/v1", "deployments", NAMESPACE, "steward")
    del made.api.objects[key]
    until(lambda: watch.look() == "the steward starts again")
    assert in_force(made, held) == before


def end_the_hold(context: Context) -> None:
    """As its steward does when its time has come."""
    context.store.append(TrainingFinished(outcome="held", why="not relaunched within 0:20:00", committed_step=-1))


@pytest.mark.parametrize("when", ["before the lease", "during the bake", "as the steward is switched"])
def test_a_hold_that_ends_before_its_relaunch_is_told_and_nothing_is_deployed_in_vain(
    made: StewardSite, held: Context, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    old, before, baked = held.spec, in_force(made, held), list[str]()
    mended = old.model_copy(update={"training": longer(training_of(old))})

    def minutes(context: Context) -> StageOutput:
        """A bake: no builder can work on the machines of this world."""
        baked.append(when)
        if when == "during the bake":
            end_the_hold(context)
        return context.outputs[Stage.BAKE].model_copy(update={"code": "c2"})

    def created(document: dict[str, Any]) -> None:
        if document.get("kind") == "Deployment":
            end_the_hold(held)

    monkeypatch.setattr(relaunching.bake, "run", minutes)
    if when == "before the lease":
        end_the_hold(held)
    if when == "as the steward is switched":
        monkeypatch.setattr(made.api, "created", created)
    begun = time.monotonic()
    with pytest.raises(UserError, match=r"cannot be relaunched|training was over before") as refused:
        relaunching.relaunch(held, mended, make_plan(mended, survey(mended)), difference(old, mended), now=False)
    assert "outcome held" in str(refused.value) and "`bivouac run` goes on" in (refused.value.cure or "")
    assert time.monotonic() - begun < relaunching._TAKE_UP_S / 2, "it does not wait for a steward that will not come"
    assert bool(baked) == (when != "before the lease"), "no builder is paid for in vain"
    if when != "as the steward is switched":
        assert in_force(made, held) == before and not held.store.keys("specs/")
