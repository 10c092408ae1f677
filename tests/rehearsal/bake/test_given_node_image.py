"""GPU nodes from an AMI that no bake of ours made: EKS's own, or somebody's; in the emulated account."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from infra.aws.account import Account
from infra.aws.asked import ask_aws
from infra.aws.given.node_image import base_release, find_image, image_parameter
from infra.bake import node_image
from infra.errors import UserError
from infra.plan.survey import survey
from infra.record.store import CampaignStore
from tests.example import example_spec
from tests.rehearsal.aws_account import Account as Account_
from tests.worlds.s3 import FakeS3, Time

BASE = "bivouac/base:host"


def spec(nodes: str) -> Any:
    return example_spec(image={"base": BASE, "nodes": nodes})


@pytest.fixture
def context(here: Account) -> Any:
    said = list[str]()
    progress = SimpleNamespace(step=said.append, note=said.append)
    store = CampaignStore(FakeS3(Time()), "state", "train", "w")
    return SimpleNamespace(account=here, spec=spec("eks"), store=store, guard=lambda: None, progress=progress,
                           said=said)  # fmt: skip


@pytest.fixture
def named(aws: Account_) -> dict[str, str]:
    """Name of each AMI that AWS publishes for Kubernetes 1.36 -> its id."""
    return {image["Name"]: image["ImageId"] for image in aws.ec2.describe_images(Owners=["amazon"])["Images"] if
            "-1.36-" in image["Name"]}  # fmt: skip


def test_eks_own_image_is_the_newest_of_the_version_and_accelerator(here: Account, named: dict[str, str]) -> None:
    ami, name = find_image(here, spec("eks"))
    assert named[name] == ami and name.startswith("amazon-eks-node-al2023-x86_64-nvidia-1.36-v")
    assert name == max(one for one in named if "x86_64-nvidia" in one)


def test_it_is_found_once_and_stays_the_campaigns_whatever_is_newest_later(
    context: Any, aws: Account_, named: dict[str, str]
) -> None:
    where: Any = None  # nothing is baked, so no builder asks for it
    first, fresh = node_image.ensure(context, where)
    assert not fresh and first.ami in named.values() and not first.applied and "eks" in first.not_applied["every role"]
    context.store.put_json(node_image.RECORD, {"ami": first.ami, "manifest": first.key, "baked": False})
    assert node_image.campaign_image(context.store) == first and not first.key.startswith("images/nodes/")
    parameter = image_parameter("1.36", "nvidia")
    before = aws.ssm.get_parameter(Name=parameter)["Parameter"]["Value"]
    other = next(ami for name, ami in named.items() if "nvidia" in name and ami != before)
    backend = aws.world.backend("ssm")._parameters[parameter][-1]
    backend.value = other
    try:
        assert node_image.ensure(context, where, own_image=node_image.campaign_image(context.store)) == (first, None)
        assert node_image.ensure(context, where)[0].ami == other, "another campaign takes the newest"
    finally:
        backend.value = before


def test_an_own_image_is_taken_as_it_is(context: Any, named: dict[str, str]) -> None:
    own = next(ami for name, ami in named.items() if "x86_64-nvidia" in name)
    context.spec = spec(own)
    found, fresh = node_image.ensure(context, None)  # type: ignore[arg-type]
    assert (found.ami, fresh, found.inputs_digest) == (own, None, "") and own in context.said[-1]


def test_an_image_from_which_no_node_could_start_is_refused_before_the_yes(
    here: Account, aws: Account_, named: dict[str, str]
) -> None:
    arm = next(ami for name, ami in named.items() if "arm64" in name)
    fit = next(ami for name, ami in named.items() if "x86_64-nvidia" in name)

    def told(ami: str) -> str | None:
        chosen = spec(ami)
        found = ask_aws(here, chosen, survey(chosen), lambda text: None).node_image
        return None if found is None else f"{found.what}: {found.seen}"

    assert told(fit) is None and told("eks") is None and told("bake") is None
    assert "the account sees no such AMI" in (told("ami-0123456789abcdef9") or "")
    assert f"{arm}: Architecture is arm64, not x86_64" in (told(arm) or "")
    image = aws.world.backend("ec2").amis[fit]
    image.root_device_name = "/dev/sda1"
    try:
        with pytest.raises(UserError, match="RootDeviceName is /dev/sda1, not /dev/xvda"):
            find_image(here, spec(fit))
    finally:
        image.root_device_name = "/dev/xvda"


def test_the_base_of_a_bake_is_told_with_its_age_and_what_aws_has_published_since(
    here: Account, aws: Account_, named: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def facts(nodes: str = "bake", **changes: Any) -> Any:
        chosen = example_spec(image={"base": BASE, "nodes": nodes}, **changes)
        return ask_aws(here, chosen, survey(chosen), lambda text: None)

    base = facts().node_base
    pinned, newest = sorted(name for name in named if "x86_64-nvidia" in name)
    assert base is not None and (base.name, base.ami, base.newer) == (pinned, named[pinned], (newest,))
    assert f"{base.published:%Y%m%d}" == base_release().removeprefix("v"), "EKS names a release by its day"
    assert facts("eks").node_base is None and facts(named[newest]).node_base is None
    amis = aws.world.backend("ec2").amis
    monkeypatch.delitem(amis, named[pinned])
    gone = facts()
    assert gone.node_base is None and gone.node_image is not None
    assert pinned in gone.node_image.seen and newest in gone.node_image.seen and "base.release" in gone.node_image.cure


@pytest.fixture(autouse=True)
def as_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIVOUAC_SITE", "in-process")
