"""Which methods of an emulated service answer AWS's operations."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path

import pytest
from botocore import xform_name
from botocore.session import Session
from moto.core.responses import BaseResponse

from infra.rehearsal.aws.operations import Parameters, add_backend
from infra.rehearsal.aws.world import World

BACKENDS = {
    ("ec2.reservations", "Reservations"): "ec2",
    ("ec2.placement", "Placement"): "ec2",
    ("ec2.autoscaling", "AutoScaling"): "autoscaling",
    ("money.budgets", "Budgets"): "budgets",
    ("money.budget_alarms", "Alarms"): "budgets",
    ("ecr", "EcrRegistry"): "ecr",
    ("builds", "Builds"): "codebuild",
    ("fsx.systems", "Lustre"): "fsx",
    ("fsx.repositories", "Repositories"): "fsx",
    ("ssm", "Commands"): "ssm",
    ("schedules", "Schedules"): "scheduler",
    ("eks.addons", "AddonCalls"): "eks",
    ("eks.access", "AccessEntries"): "eks",
    ("eks.clusters", "Clusters"): "eks",
    ("eks.tags", "Tags"): "eks",
    ("eks.pod_identity", "PodIdentity"): "eks",
    ("eks.nodegroups", "NodeGroups"): "eks",
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(work=tmp_path, tools=tmp_path, endpoint_url="http://127.0.0.1:1")


def test_an_operation_is_a_public_verb_and_noun_that_takes_parameters(world: World) -> None:
    class Answers(BaseResponse):
        pass

    class Backend:
        def list_things(self, params: Parameters) -> None: ...
        def find(self, params: Parameters) -> None: ...
        def _list_things_here(self, params: Parameters) -> None: ...
        def drop_things(self, name: str) -> None: ...

    add_backend(world, Answers, Backend())
    assert {name for name in vars(Answers) if not name.startswith("__")} == {"list_things"}


@pytest.mark.parametrize(("place", "service"), BACKENDS.items(), ids=lambda value: "-".join(value))
def test_every_operation_of_a_backend_is_one_that_aws_has(place: tuple[str, str], service: str, world: World) -> None:
    class Answers(BaseResponse):
        pass

    owner = getattr(import_module(f"infra.rehearsal.aws.{place[0]}"), place[1])
    model = Session().get_service_model(service)
    operations = {xform_name(name) for name in model.operation_names}
    add_backend(world, Answers, object.__new__(owner))
    added = {name for name in vars(Answers) if not name.startswith("__")}
    public = {name for name, _ in inspect.getmembers(owner, inspect.isfunction)}
    assert added and added <= operations
    assert added == public & operations, "each method that bears an operation's name answers it"
