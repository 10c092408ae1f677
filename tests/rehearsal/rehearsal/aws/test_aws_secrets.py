"""A job's secrets over HTTP: the local file's values under their names in the emulated account, read by the role that
the stack gives to the pods, and by no other name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.aws.account import QUICK
from infra.aws.account import Account as Own
from infra.errors import UserError
from infra.rehearsal.aws.world import World
from infra.rehearsal.site import secrets as site
from infra.spec.campaign import Spec
from infra.spec.secrets import SecretSources
from infra.stack.access import policies
from infra.steward.secrets import SecretRefused, fetch_all
from tests.example import example_spec
from tests.rehearsal.aws_account import Account, code_of, make_user, signed_in

pytestmark = pytest.mark.usefixtures("answers_as_modelled")
SOURCES = {
    "PLAIN": {"secret": "team/plain"},
    "TOKEN": {"secret": "team/all", "key": "token"},
    "USER_NAME": {"secret": "team/all", "key": "user"},
    "KEY": {"parameter": "/team/key"},
}
VALUES = {"PLAIN": "hunter22", "TOKEN": "swordfish", "USER_NAME": "ada-l", "KEY": "-----BEGIN\nabcdefgh\n"}


def job(folder: Path, sources: dict[str, dict[str, str]], values: dict[str, str] | None = None) -> Spec:
    path = folder / "secrets"
    path.write_text("\n".join(f"{name}={json.dumps(value)}" for name, value in (values or VALUES).items()))
    workload: dict[str, Any] = {
        "script": "/train.py", "checkpoints": {"format": "marker"}, "estimates": {"steps": 10, "step_seconds": 1},
        "secrets": sources, "rehearsal": {"secrets": str(path)},
    }  # fmt: skip
    return example_spec(target="rehearsal", training=None, data=None, workload=workload)


@pytest.fixture
def trainer(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Account:
    """Somebody with the rights of the pods' role, who is signed in; the values lie in the account."""
    spec = job(tmp_path, SOURCES)
    signed_in(monkeypatch, world)
    site.give(spec)
    key = make_user(world, f"trainer-{tmp_path.name}", *policies.trainer(spec))
    signed_in(monkeypatch, world, key)
    return Account(world, *key)


def read(spec: Spec) -> dict[str, str]:
    sources = SecretSources(region=spec.region, secrets=spec.secrets)
    return fetch_all(sources, lambda: Own(spec.region, QUICK), lambda seconds: None)


def test_a_pod_reads_the_values_of_the_local_file_by_the_names_of_the_spec(trainer: Account, tmp_path: Path) -> None:
    assert read(job(tmp_path, SOURCES)) == VALUES


def test_what_the_spec_does_not_name_is_refused(
    world: World, trainer: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws = Account(world, *world.operator_key)
    aws.secretsmanager.create_secret(Name="team/plain-2", SecretString="x" * 8)
    aws.ssm.put_parameter(Name="/team/key/below", Value="x" * 8, Type="SecureString")
    for name in ("team/plain-2", "team/nobody"):
        assert code_of(lambda name=name: trainer.secretsmanager.get_secret_value(SecretId=name)) == (  # type: ignore[misc]
            "AccessDeniedException"
        )
    for name in ("/team/key/below", "/team/other"):
        assert code_of(lambda name=name: trainer.ssm.get_parameter(Name=name)) == "AccessDeniedException"  # type: ignore[misc]
    for call in (
        lambda: trainer.secretsmanager.put_secret_value(SecretId="team/plain", SecretString="mine"),
        lambda: trainer.secretsmanager.list_secrets(),
        lambda: trainer.ssm.get_parameters(Names=["/team/key"]),
    ):
        assert code_of(call) == "AccessDeniedException"
    with pytest.raises(SecretRefused, match="OTHER: secret team/nobody in us-east-1: AccessDeniedException"):
        read(job(tmp_path, {"OTHER": {"secret": "team/nobody"}}, {"OTHER": "never-given"}))


def test_a_secret_that_is_missing_altogether_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    signed_in(monkeypatch, world)
    spec = job(tmp_path, {"A": {"secret": "nobody"}, "B": {"parameter": "/nobody"}}, {"A": "1234", "B": "1234"})
    with pytest.raises(SecretRefused) as refused:
        read(spec)
    said = str(refused.value)
    assert "A: secret nobody in us-east-1: ResourceNotFoundException" in said
    assert "B: parameter /nobody in us-east-1: ParameterNotFound" in said


def test_a_changed_file_gives_changed_values(trainer: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {**VALUES, "PLAIN": "another one", "TOKEN": "another too", "KEY": "one more"}
    spec = job(tmp_path, SOURCES, changed)
    with monkeypatch.context() as patch:
        signed_in(patch, trainer.world)
        site.give(spec)
    assert read(spec) == changed


def test_a_file_that_lacks_a_value_gives_nothing(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    signed_in(monkeypatch, world)
    with pytest.raises(UserError, match="LATER"):
        site.give(job(tmp_path, {"PLAIN": {"secret": "first"}, "LATER": {"secret": "later"}}))
    aws = Account(world, *world.operator_key)
    assert code_of(lambda: aws.secretsmanager.describe_secret(SecretId="first")) == "ResourceNotFoundException"
