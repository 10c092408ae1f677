"""`pulumi` typed by hand with the real CLI: what it says, what it makes, what it refuses, and that a driver goes on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from infra.aws.account import Account
from infra.bake import node_image
from infra.campaign import provision, teardown
from infra.campaign.stages import StageStep, run_step
from infra.cli.hand.by_hand import configuration
from infra.engine.drift import resources_of
from infra.engine.state_copy import stored_state
from infra.errors import UserError
from infra.record.events import Stage
from infra.record.payloads.attempts import AttemptLaunched
from infra.record.payloads.training import ArchiveVerified, TrainingFinished
from infra.record.store import CampaignStore
from infra.session.session import open_session
from infra.spec.names import FOUNDATION_STACK
from tests.root import ROOT
from tests.worlds.campaign_site import CampaignSite, camp

STACK = "campaign-drilled"


@dataclass
class Project:
    """A clone's folder, as far as Pulumi reads it, and a clean shell in it."""

    camped: CampaignSite
    folder: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=self.folder, env=os.environ, capture_output=True, text=True)

    def bivouac(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "infra.cli.main", *words)

    def pulumi(self, *words: str, stack: str = STACK) -> str:
        """The output of a command that must succeed."""
        done = self.run("pulumi", "--non-interactive", *words, "--stack", stack)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def refused(self, *words: str, stack: str = STACK) -> str:
        """The output of a command that must fail, in words."""
        done = self.run("pulumi", "--non-interactive", *words, "--stack", stack)
        assert done.returncode != 0 and "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
        return done.stdout + done.stderr

    def store(self) -> CampaignStore:
        return open_session(self.camped.spec, "test").store

    def resources(self, stack: str = STACK) -> dict[str, str]:
        """URN -> id of what is in the state, and is a thing of its own."""
        resources = resources_of(stored_state(self.store(), stack))
        return {urn: str(one["id"]) for urn, one in resources.items() if one.get("id")}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """With both stacks made by `bivouac stack init`, and the foundation up."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copy(ROOT / "Pulumi.yaml", folder)
    shutil.copytree(ROOT / "infra/cli/hand", folder / "infra/cli/hand")
    (folder / ".venv").symlink_to(sys.prefix)
    with camp(tmp_path_factory.mktemp("camp")) as camped, pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIVOUAC_SITE", "in-process")
        patch.setenv("PYTHONPATH", str(ROOT))
        (folder / "campaign.yaml").write_text(yaml.safe_dump(camped.spec.model_dump(mode="json", exclude_unset=True)))
        one = Project(camped, folder)
        made = one.bivouac("stack", "init", "campaign.yaml")
        assert made.returncode == 0, made.stdout + made.stderr
        url = re.search(r"PULUMI_BACKEND_URL='(\S+)'", made.stdout)
        assert url is not None, made.stdout
        patch.setenv("PULUMI_BACKEND_URL", url[1])
        one.pulumi("config", "set", "bivouac:spec", "campaign.yaml")
        seen = one.bivouac("shell", "--", "pulumi", "preview", "--stack", STACK)
        assert seen.returncode == 0 and "to create" in seen.stdout, "a preview needs no foundation"
        one.pulumi("up", "--yes", "--skip-preview", stack=FOUNDATION_STACK)
        yield one


@pytest.mark.parametrize(
    ("stack", "given", "words", "cure"),
    [
        (STACK, {}, "bivouac:spec is not set", "pulumi config set --stack campaign-drilled bivouac:spec"),
        (STACK, {"bivouac:spce": "a.yaml"}, "bivouac:spce", "pulumi config rm --stack campaign-drilled bivouac:spce"),
        (STACK, {"bivouac:spec": "none.yaml"}, "there is no such spec file", "give the path"),
        (STACK, {"bivouac:spec": "broken.yaml"}, "not YAML", "mend"),
        ("campaign-other", {"bivouac:spec": "campaign.yaml"}, "campaign drilled", "--stack campaign-drilled"),
    ],
)
def test_a_wrong_configuration_is_told_with_its_cure(
    project: Project, stack: str, given: dict[str, str], words: str, cure: str
) -> None:
    (project.folder / "broken.yaml").write_text("campaign: [")
    with pytest.raises(UserError) as refused:
        configuration(stack, given, project.folder, preview=True)
    assert words in str(refused.value) and cure in str(refused.value)


def test_a_rehearsal_is_refused_outside_of_its_site(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BIVOUAC_SITE")
    with pytest.raises(UserError, match=r"bivouac shell \S+campaign.yaml -- pulumi"):
        configuration(STACK, {"bivouac:spec": "campaign.yaml"}, project.folder, preview=True)


def test_a_campaign_comes_after_its_image_and_is_told_so_without_a_traceback(project: Project) -> None:
    assert "cure: bivouac bake SPEC" in project.refused("up", "--yes", "--skip-preview")
    assert project.resources() == {}


def test_the_foundation_is_unchanged_after_a_refresh_and_is_not_destroyed(project: Project) -> None:
    before = project.resources(FOUNDATION_STACK)
    assert re.search(r"Resources:\s+\d+ unchanged", project.pulumi("refresh", "--yes", stack=FOUNDATION_STACK))
    said = project.refused("destroy", "--yes", stack=FOUNDATION_STACK)
    assert "protected" in said and project.resources(FOUNDATION_STACK) == before


@pytest.fixture(scope="module")
def standing(project: Project) -> Project:
    """With the campaign's stack up by hand, after an image as `bivouac bake` leaves it."""
    spec = project.camped.spec
    base, name = node_image.find_base(SimpleNamespace(account=Account(spec.region), spec=spec))  # type: ignore[arg-type]
    image = node_image.NodeImage(
        ami=base, snapshots=(), inputs_digest=node_image.inputs_digest(ROOT, base, spec), base_ami=base, base=name,
        versions={}, applied=(), not_applied={}, machine={}, baked_at=datetime.now(UTC),
    )  # fmt: skip
    project.store().put(image.key, image.model_dump_json().encode())
    project.pulumi("up", "--yes", "--skip-preview")
    return project


@pytest.mark.nightly
def test_what_only_pulumi_has_made_is_destroyed_by_pulumi_too(standing: Project) -> None:
    assert re.search(r"Resources:\s+\d+ unchanged", standing.pulumi("preview"))
    standing.pulumi("destroy", "--yes", "--skip-preview")
    assert standing.resources() == {}
    standing.pulumi("up", "--yes", "--skip-preview")


@pytest.fixture(scope="module")
def trained(standing: Project) -> dict[str, str]:
    """The driver has gone on with what stood, and launched; URN -> id of what stood before."""
    before = standing.resources()
    with standing.camped.opened() as context:
        assert context.state().nothing_to_lose, "down would end it as it stood"
        run_step(context, StageStep(Stage.PROVISION, "drill", provision.run))
        context.store.append(AttemptLaunched(attempt=1, jobset="attempt-1", committed_step=-1))
    return before


@pytest.mark.nightly
def test_a_driver_goes_on_with_what_stands_and_pulumi_with_what_the_driver_has_made(
    standing: Project, trained: dict[str, str]
) -> None:
    after = standing.resources()
    assert {urn: after[urn] for urn in trained} == trained, "nothing was made anew"
    assert {urn.split("$")[-1].split("::")[0] for urn in set(after) - set(trained)} == {
        "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation"
    }
    for command in (("preview",), ("up", "--yes", "--skip-preview")):
        assert re.search(r"Resources:\s+\d+ unchanged", standing.pulumi(*command))


@pytest.mark.nightly
def test_destroy_refuses_until_the_archive_is_proven_and_down_finds_an_empty_stack(
    standing: Project, trained: dict[str, str]
) -> None:
    before = standing.resources()
    said = standing.refused("destroy", "--yes")
    assert "LustreFileSystem::shared" in said and "protected" in said
    assert standing.resources() == before
    with standing.camped.opened() as context:
        context.store.append(TrainingFinished(outcome="done", why="drill", step=40, committed_step=40))
        archive = {"step": 40, "identity": context.identity, "evaluation_loss": 1.0, "objects": 1, "bytes": 1}
        context.store.append(ArchiveVerified(manifest="golden", metrics={}, **archive))
    standing.pulumi("up", "--yes", "--skip-preview")
    standing.pulumi("destroy", "--yes")
    assert standing.resources() == {}
    with standing.camped.opened() as context:
        assert teardown.run(context).resources == 0
