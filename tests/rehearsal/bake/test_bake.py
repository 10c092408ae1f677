"""Both images baked on machines of the emulated AWS: the real playbook, over emulated SSM."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
import yaml
from botocore.exceptions import ClientError

from infra.aws.account import Account
from infra.aws.base_image import STEWARD_MOST_BYTES, find_base, find_steward_base
from infra.bake import bake, builder, node_image, playbook
from infra.bake.bake import pack_tools
from infra.errors import PermanentError, UserError
from infra.rehearsal.aws.iam import access
from infra.rehearsal.aws.world import World
from infra.session.context import Context
from infra.spec.names import BUILD_NETWORK, INPUTS_TAG, MANIFEST_TAG, REPOSITORY, ROLE_TAG, STEWARD_REPOSITORY
from infra.stack.outputs import FoundationOutputs
from tests.rehearsal.bake.build_account import (
    SPEC,
    account,
    build_network,
    campaign,
    eventually,
    nothing_is_left,
    run_builder,
    said,
    world,
)
from tests.root import ROOT

__all__ = ["account", "build_network", "world"]
pytestmark = [pytest.mark.nightly, pytest.mark.inside("net", "pid")]


def images(account: Account, inputs: str) -> dict[str, dict[str, Any]]:
    filters = [{"Name": f"tag:{INPUTS_TAG}", "Values": [inputs]}]
    found = account.client("ec2").describe_images(Owners=["self"], Filters=filters)["Images"]
    return {image["ImageId"]: image for image in found}


def test_a_node_image_is_baked_once_for_all_campaigns_and_its_builder_is_gone(
    world: World, account: Account, build_network: FoundationOutputs
) -> None:
    with campaign(world, "first") as context:
        base, _ = node_image.find_base(context)
        inputs = node_image.inputs_digest(ROOT, base, context.spec)
        lost = _left_unfinished(context, build_network, base, inputs)
        image, fresh = node_image.ensure(context, build_network)
        assert fresh and image.inputs_digest == inputs and nothing_is_left(context)
        assert f"{lost} was never finished: removed" in said(context)
        assert image.applied == ("system_tuning", "health_checks")
        assert set(image.not_applied) >= {"nvidia_driver", "efa", "lustre_client"}
        assert "not applied, no dnf on this machine" in said(context) and "system_tuning" in said(context)
        context.store.put_json(node_image.RECORD, {"manifest": node_image.manifest_key(image.inputs_digest)})
        stored = node_image.campaign_image(context.store)
        assert stored is not None and stored.model_dump() == image.model_dump()

    assert set(images(account, inputs)) == {image.ami}
    made = images(account, inputs)[image.ami]
    tags = {tag["Key"]: tag["Value"] for tag in made["Tags"]}
    assert made["State"] == "available" and tags["bivouac:foundation"] == "true"
    assert tags[MANIFEST_TAG] == node_image.manifest_key(image.inputs_digest)
    (snapshot,) = account.client("ec2").describe_snapshots(SnapshotIds=list(image.snapshots))["Snapshots"]
    assert {tag["Key"] for tag in snapshot["Tags"]} >= {INPUTS_TAG, MANIFEST_TAG, "bivouac:foundation"}
    disk = world.work / "images" / image.ami
    assert "vm.nr_hugepages = 5128" in (disk / "etc/sysctl.d/90-bivouac.conf").read_text()
    assert json.loads((disk / "etc/bivouac/image.json").read_text())["inputs"] == image.inputs_digest

    with campaign(world, "second") as context:
        known, fresh = node_image.ensure(context, build_network)
        assert not fresh and known.ami == image.ami and "node image of the same inputs exists" in said(context)
        assert "builder" not in said(context)

    with campaign(world, "third") as context, run_builder(context, build_network, image.ami) as built:
        machine = world.machines[built.id]
        seen = machine.run("cat /etc/bivouac/image.json && /opt/bivouac/bin/node-check", timeout_s=20)
        assert image.inputs_digest in seen.stdout and seen.returncode == 0, seen.stdout + seen.stderr


def _left_unfinished(context: Context, build_network: FoundationOutputs, base: str, inputs: str) -> str:
    """An image as a driver leaves it that is killed between CreateImage and the manifest."""
    marks = [{"ResourceType": "image", "Tags": [{"Key": INPUTS_TAG, "Value": inputs}]}]
    with run_builder(context, build_network, base) as built:
        made = context.account.client("ec2").create_image(InstanceId=built.id, Name="lost", TagSpecifications=marks)
    return str(made["ImageId"])


def test_a_changed_input_is_another_image() -> None:
    kept = node_image.inputs_digest(ROOT, "ami-1", SPEC)
    assert kept == node_image.inputs_digest(ROOT, "ami-1", SPEC)
    assert kept != node_image.inputs_digest(ROOT, "ami-2", SPEC)
    nodes = SPEC.nodes.model_copy(update={"instance_type": "trn1.32xlarge"})
    assert kept != node_image.inputs_digest(ROOT, "ami-1", SPEC.model_copy(update={"nodes": nodes}))


def test_a_forced_bake_whose_role_fails_says_the_roles_words_and_keeps_the_last_image(
    world: World, account: Account, build_network: FoundationOutputs
) -> None:
    with campaign(world, "broken") as context:
        before, _ = node_image.ensure(context, build_network)
        base, _ = node_image.find_base(context)
        disk = world.work / "images" / base
        (disk / "opt").mkdir(parents=True)
        (disk / "opt/bivouac").write_text("a base whose disk has a file where the roles want a folder")
        try:
            with pytest.raises(PermanentError, match=r"role system_tuning, task 'The program that sets.*opt/bivouac"):
                node_image.ensure(context, build_network, force=True)
        finally:
            (disk / "opt/bivouac").unlink()
            (disk / "opt").rmdir()
            disk.rmdir()
        assert nothing_is_left(context)
        assert set(images(account, before.inputs_digest)) == {before.ami}


def test_an_image_that_ec2_cannot_make_is_refused_and_the_builder_gone(
    world: World, account: Account, build_network: FoundationOutputs
) -> None:
    rule = {"kind": "image", "name": "bivouac-node-*", "phase": "create", "outcome": "fail"}
    world.routes["/_site/troubles"]("", json.dumps({"add": [rule]}).encode())
    with campaign(world, "unmade") as context:
        base, name = node_image.find_base(context)
        with (
            pytest.raises(PermanentError, match=r"the image could not be made; seen: ami-\w+: failed"),
            run_builder(context, build_network, base) as built,
        ):
            node_image.take(context, built.id, "unmade", name)
        assert nothing_is_left(context)


def test_the_trainer_image_is_installed_and_pushed_once(
    world: World, account: Account, build_network: FoundationOutputs
) -> None:
    with campaign(world, "trainer") as context, tempfile.TemporaryDirectory() as work:
        given = {
            "trainer_image_wheel": str(bake.build_wheel(ROOT, Path(work))),
            "trainer_image_tools": str(pack_tools(Path(work))),
            "trainer_image_layers": bake.layers(bake.Bases(find_base(account, SPEC), find_steward_base(account, SPEC))),
            "trainer_image_tag": "inputs",
            "trainer_image_region": context.spec.region,
        }
        base, _ = node_image.find_base(context)
        with run_builder(context, build_network, base) as built:
            heard = [
                playbook.run(
                    playbook.PLAYBOOKS / "bake.yml",
                    playbook.inventory(context, built, "trainer_image"),
                    given,
                    Path(work) / f"play-{number}",
                )
                for number in range(2)
            ]
        assert [one.failure for one in heard] == [None, None]
        assert heard[0].changed == 3 and heard[1].changed == 0, "the second run finds everything in place"
        pushed = heard[0].baked["pushed"]
        assert {name: one["digest"] for name, one in heard[1].baked["pushed"].items()} == {
            name: one["digest"] for name, one in pushed.items()
        }
        assert (
            set(pushed) == {REPOSITORY, STEWARD_REPOSITORY} and pushed[STEWARD_REPOSITORY]["bytes"] < STEWARD_MOST_BYTES
        )
        assert nothing_is_left(context)


def test_what_a_module_says_comes_whole_however_long_it_is(
    world: World, account: Account, build_network: FoundationOutputs
) -> None:
    """SSM keeps 24,000 characters of an answer; `package_facts` on a node image prints more."""
    long = {"ansible.builtin.command": {"cmd": "python3 -c \"print('0123456789' * 6000, end='')\""}, "register": "said"}
    whole = {"ansible.builtin.assert": {"that": ["said.stdout == '0123456789' * 6000"]}}
    play = {"name": "Long", "hosts": "node_image", "gather_facts": False, "tasks": [long, whole]}
    with campaign(world, "wordy") as context, tempfile.TemporaryDirectory() as work:
        path = Path(work) / "play.yml"
        path.write_text(yaml.safe_dump([play]))
        base, _ = node_image.find_base(context)
        with run_builder(context, build_network, base) as built:
            heard = playbook.run(path, playbook.inventory(context, built, "node_image"), {}, Path(work) / "play")
            # By the names that mktemp gives: the repository itself may lie below /tmp, and is seen there.
            stdout = world.machines[built.id].run("find /tmp -maxdepth 1 -name 'tmp.*'", timeout_s=20).stdout
        assert heard.failure is None and stdout.strip() == ""
        assert nothing_is_left(context)


def test_an_image_that_does_not_exist_starts_no_builder(
    world: World, account: Account, build_network: FoundationOutputs
) -> None:
    with campaign(world, "invalid") as context:
        with (
            pytest.raises(PermanentError, match=r"InvalidAMIID.NotFound: .*ami-0123456789abcdef0"),
            run_builder(context, build_network, "ami-0123456789abcdef0"),
        ):
            pass
        assert nothing_is_left(context)
        strange = replace(context, spec=context.spec.model_copy(update={"kubernetes": "1.99"}))
        with pytest.raises(UserError, match=r"no such base image; seen: amazon-eks-node-al2023-x86_64-nvidia-1\.99-v"):
            node_image.find_base(strange)


def test_a_builder_whose_agent_never_answers_is_given_up_and_ended(
    world: World, account: Account, build_network: FoundationOutputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    iam, arn = account.client("iam"), "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"
    iam.detach_role_policy(RoleName=BUILD_NETWORK, PolicyArn=arn)
    monkeypatch.setattr(builder, "_ONLINE_S", 3.0)
    try:
        with campaign(world, "silent") as context:
            base, _ = node_image.find_base(context)
            with pytest.raises(PermanentError, match="SSM agent"), run_builder(context, build_network, base):
                pass
            assert nothing_is_left(context)
    finally:
        iam.attach_role_policy(RoleName=BUILD_NETWORK, PolicyArn=arn)


def test_aws_ends_a_builder_whose_driver_is_gone(
    world: World, account: Account, build_network: FoundationOutputs
) -> None:
    """The driver enters the block and never leaves it, as one that was killed."""
    with campaign(world, "dead-driver") as context:
        base, _ = node_image.find_base(context)
        abandoned = run_builder(context, build_network, base, life=timedelta(seconds=15))
        built = abandoned.__enter__()
        other = account.client("ec2").run_instances(
            ImageId=base,
            InstanceType="m7i.large",
            MinCount=1,
            MaxCount=1,
            SubnetId=build_network.build_network_subnet_id,
        )["Instances"][0]["InstanceId"]
        assert world.machines[built.id].alive()
        assert datetime.now(UTC) < built.ends_at
        assert nothing_is_left(context), "the schedule deletes itself when it has fired"
        assert datetime.now(UTC) >= built.ends_at - timedelta(seconds=1)
        runs = [json.loads(line) for line in (world.work / "aws/schedule-runs.jsonl").read_text().splitlines()]
        assert [(run["error"], built.id in run["input"]) for run in runs] == [(None, True)]
        state = account.client("ec2").describe_instances(InstanceIds=[other])["Reservations"][0]["Instances"][0]
        assert state["State"]["Name"] in ("pending", "running")
        abandoned.__exit__(None, None, None)


def test_the_role_that_ends_builders_can_end_nothing_else(
    world: World, account: Account, build_network: FoundationOutputs
) -> None:
    guard = access.open_session(world, build_network.build_network_guard_arn, "test")
    ec2 = boto3.client(
        "ec2",
        region_name=account.region,
        aws_access_key_id=guard.access_key_id,
        aws_secret_access_key=guard.secret_access_key,
        aws_session_token=guard.session_token,
    )
    launch = dict(InstanceType="m7i.large", MinCount=1, MaxCount=1, SubnetId=build_network.build_network_subnet_id)
    base, _ = node_image.find_base(SimpleNamespace(spec=SPEC, account=account))  # type: ignore[arg-type]
    plain = account.client("ec2").run_instances(ImageId=base, **launch)["Instances"][0]["InstanceId"]
    with pytest.raises(ClientError, match=r"UnauthorizedOperation|AccessDenied"):
        ec2.terminate_instances(InstanceIds=[plain])
    account.client("ec2").create_tags(Resources=[plain], Tags=[{"Key": ROLE_TAG, "Value": "builder"}])
    ec2.terminate_instances(InstanceIds=[plain])


def test_two_builders_work_beside_each_other_and_each_is_ended_by_a_schedule_of_its_own(
    world: World, account: Account, build_network: FoundationOutputs
) -> None:
    with campaign(world, "both") as context:
        base, _ = node_image.find_base(context)
        schedules = context.names.builder_schedules
        with ExitStack() as stack:
            ids = [stack.enter_context(run_builder(context, build_network, base, name)).id for name in schedules]
            assert all(world.machines[id].alive() for id in ids)
            targets = [account.client("scheduler").get_schedule(Name=name)["Target"]["Input"] for name in schedules]
            assert [json.loads(target)["InstanceIds"] for target in targets] == [[id] for id in ids]
        assert nothing_is_left(context)


def test_a_builder_that_a_killed_driver_left_is_ended_by_the_next_bake(
    world: World, account: Account, build_network: FoundationOutputs
) -> None:
    with campaign(world, "left") as context:
        base, _ = node_image.find_base(context)
        left = run_builder(context, build_network, base)
        first = left.__enter__().id
        context.store.put_json(f"{builder.TRANSFER}left.json", {})
        builder.clear_leftovers(context)
        with run_builder(context, build_network, base) as built:
            assert built.id != first
            eventually(lambda: builder.living_builders(account, context.names) == [built.id])
        assert nothing_is_left(context)
