"""The login to a private registry: read from the account by the driver, used to resolve the digest, given to the
kubelets, and found nowhere else. A registry on loopback that demands it, an emulated account, an API server."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from infra.bake import bake
from infra.campaign import launch, relaunch
from infra.campaign.stages import StageStep, run_step
from infra.cluster.steward_config import StewardConfig
from infra.errors import UserError
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.record.events import Stage
from infra.record.payloads.outputs import BakeOutput, ProvisionOutput
from infra.rehearsal.site import secrets as site
from infra.session.context import Context
from infra.session.session import opened
from infra.steward import gangs
from tests.rehearsal.campaign.test_failed_launch import baked
from tests.serving import serve
from tests.unit.aws.test_job_image import Login, Registry, closed_to_all_but
from tests.worlds.steward_site import StewardSite, lone_camp

FIRST, LATER = Login("robot$ci", "correct-horse-battery"), Login("robot$ci", "staple-of-tomorrow")
SECRET = ("v1", "secrets", "campaign", "job-image")


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        made = Registry()
        serve(made.http)
        yield made
        made.http.shutdown()
        made.http.server_close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, registry: Registry) -> Iterator[StewardSite]:
    image = f"{registry.host}/team/job:v1"
    workload = {
        "script": "/train.py", "image": image, "pull_secret": {"secret": "bivouac_pull/team"},
        "checkpoints": {"format": "marker"}, "estimates": {"steps": 10, "step_seconds": 1},
        "rehearsal": {"image": image, "secrets": str(tmp_path_factory.mktemp("own") / "secrets.env")},
    }  # fmt: skip
    with lone_camp(tmp_path_factory, campaign="private", training=None, data=None, workload=workload) as camp:
        yield camp


@pytest.fixture
def context(
    made: StewardSite, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Context]:
    made.forget()
    kept_as(made, FIRST)
    closed_to_all_but(registry, FIRST)
    monkeypatch.setattr(launch.node_image, "insist", lambda *about: None)
    monkeypatch.setattr(launch, "_first_attempt", lambda context, client: {})
    with opened(made.spec, make_plan(made.spec, survey(made.spec)), Console(file=StringIO(), width=400), None) as one:
        one.results = tmp_path
        one.outputs[Stage.PROVISION] = ProvisionOutput(data_digest="d" * 64)
        yield one


def kept_as(made: StewardSite, login: Login) -> None:
    """The team stores the login: on AWS by hand, in a rehearsal from the local file."""
    assert made.spec.workload is not None and made.spec.workload.rehearsal.secrets is not None
    text = json.dumps({"username": login.user, "password": login.password})
    Path(made.spec.workload.rehearsal.secrets).write_text(f"workload.pull_secret={text}\n")
    site.give(made.spec)


def of_kubelets(made: StewardSite, registry: Registry) -> dict[str, Any]:
    """What a kubelet reads for an image of this registry, by Kubernetes' form of such a secret."""
    secret = made.api.objects[SECRET]
    assert secret["type"] == "kubernetes.io/dockerconfigjson"
    config = json.loads(base64.b64decode(secret["data"][".dockerconfigjson"]))
    assert list(config) == ["auths"]
    return dict(config["auths"][registry.host])


def bake_it(context: Context) -> BakeOutput:
    def run(context: Context) -> BakeOutput:
        return baked(context, "images@sha256:0").model_copy(update={"job_image": bake._job_image(context)})

    run_step(context, StageStep(Stage.BAKE, "a test", run))
    return BakeOutput.of(context.outputs)


def everything_kept(made: StewardSite) -> dict[str, str]:
    """All objects of all buckets, and all of the cluster but the one secret."""
    s3, found = made.site.client("s3"), dict[str, str]()
    for bucket in s3.list_buckets()["Buckets"]:
        for one in s3.list_objects_v2(Bucket=bucket["Name"]).get("Contents", ()):
            found[one["Key"]] = s3.get_object(Bucket=bucket["Name"], Key=one["Key"])["Body"].read().decode()
    return found | {"/".join(key): json.dumps(one) for key, one in made.api.objects.items() if key != SECRET}


def forms_of(login: Login) -> tuple[str, ...]:
    both = base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
    return login.password, both, base64.b64encode(login.password.encode()).decode()


def test_the_driver_resolves_with_the_login_and_the_gang_pulls_with_it(
    made: StewardSite, context: Context, registry: Registry
) -> None:
    digest = registry.push("v1")
    assert bake_it(context).job_image == f"{registry.host}/team/job@{digest}"
    launch.run(context)
    entry = of_kubelets(made, registry)
    assert (entry["username"], entry["password"]) == (FIRST.user, FIRST.password)
    assert base64.b64decode(entry["auth"]).decode() == f"{FIRST.user}:{FIRST.password}"
    gang = gangs.gang(_in_force(context), 1, "files")
    assert gang.image == f"{registry.host}/team/job@{digest}" and gang.pull_secret


def test_a_relaunch_brings_a_changed_login(made: StewardSite, context: Context, registry: Registry) -> None:
    registry.push("v1")
    bake_it(context)
    launch.run(context)
    kept_as(made, LATER)
    relaunch.switch(context, context.cluster_client(), 1, ())
    assert of_kubelets(made, registry)["password"] == LATER.password


def test_the_login_lies_in_one_secret_of_the_cluster_and_nowhere_else(
    made: StewardSite, context: Context, registry: Registry
) -> None:
    """Record, events, configurations and what the driver printed: also after a refusal, which quotes what it saw."""
    registry.push("v1")
    closed_to_all_but(registry, LATER)
    with pytest.raises(UserError, match="refuses the login") as refused:
        bake_it(context)
    closed_to_all_but(registry, FIRST)
    bake_it(context)
    launch.run(context)
    relaunch.switch(context, context.cluster_client(), 1, ())
    kept = everything_kept(made)
    assert any("bivouac_pull/team" in text for text in kept.values()), "the name is there, so it was looked for"
    assert any("the registry refuses the login" in text for text in kept.values())
    said = context.progress.console.file.getvalue()  # type: ignore[attr-defined]
    texts = {**kept, "printed": said, "raised": str(refused.value)}
    forms = {key: form for key, text in texts.items() for form in forms_of(FIRST) if form in text}
    assert forms == {}
    secret = base64.b64decode(made.api.objects[SECRET]["data"][".dockerconfigjson"]).decode()
    assert all(form in secret for form in forms_of(FIRST)[:2]), "each form would have been found"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("swordfish", "no printable text under `username`"),
        ('{"username": "ada"}', "no printable text under `password`"),
        ('{"username": "a:b", "password": "swordfish"}', "a colon in `username`"),
        ('{"username": "ada", "password": "sword\\nfish"}', "no printable text under `password`"),
        (None, "ResourceNotFoundException"),
    ],
)
def test_a_login_of_another_form_is_refused_unseen(
    made: StewardSite, context: Context, registry: Registry, text: str | None, why: str
) -> None:
    keeper = made.site.client("secretsmanager")
    if text is None:
        keeper.delete_secret(SecretId="bivouac_pull/team", ForceDeleteWithoutRecovery=True)
    else:
        keeper.put_secret_value(SecretId="bivouac_pull/team", SecretString=text)
    registry.asked.clear()
    with pytest.raises(UserError, match=why) as refused:
        bake_it(context)
    assert "fish" not in str(refused.value) and "bivouac_pull*" in str(refused.value.cure)
    assert registry.asked == []


def _in_force(context: Context) -> StewardConfig:
    found = launch.recorded_config(context.store, 0)
    assert found is not None
    return found
