"""The local file with a rehearsal's secrets: what is read of it, and what an error may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra import target
from infra.errors import UserError
from infra.rehearsal.site import handle
from infra.rehearsal.site import secrets as site_secrets
from infra.rehearsal.site.secrets import _texts_by_place, sources, values
from infra.spec.campaign import Spec
from infra.spec.secrets import SecretSource
from tests.example import example_spec

VALUE = "hunter22"


def spec(path: Path | None, **sources: dict[str, str]) -> Spec:
    workload: dict[str, Any] = {
        "script": "/train.py", "checkpoints": {"format": "marker"}, "estimates": {"steps": 10, "step_seconds": 1},
        "secrets": sources, "rehearsal": {} if path is None else {"secrets": str(path)},
    }  # fmt: skip
    return example_spec(target="rehearsal", training=None, data=None, workload=workload)


def test_a_line_is_a_name_and_a_value(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.write_text(
        f'# ours\n\nTOKEN={VALUE}=x\n  SPACED = {VALUE}  \nKEY="first {VALUE}\\nsecond"\nOTHER=not asked for\n'
    )
    asked = spec(path, TOKEN={"secret": "a"}, SPACED={"parameter": "/b"}, KEY={"secret": "c"})
    assert values(asked) == {"TOKEN": f"{VALUE}=x", "SPACED": VALUE, "KEY": f"first {VALUE}\nsecond"}
    assert values(example_spec()) == {} and values(spec(None)) == {}


@pytest.mark.parametrize(
    ("text", "seen", "cure"),
    [
        (None, "FileNotFoundError", "NAME=value for each of TOKEN, KEY"),
        (f"TOKEN={VALUE}", "KEY", "add a line"),
        (f"TOKEN={VALUE}\n{VALUE}", "line 2", "NAME=value"),
        (f'TOKEN="{VALUE}', "line 1", "JSON string"),
        (b"TOKEN=\xff\xfe", "UnicodeDecodeError", "write it"),
    ],
)
def test_a_file_that_lacks_something_is_refused_without_what_it_holds(
    text: str | bytes | None, seen: str, cure: str, tmp_path: Path
) -> None:
    path = tmp_path / "secrets"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as refused:
        values(spec(path, TOKEN={"secret": "a"}, KEY={"secret": "c"}))
    assert seen in str(refused.value.seen) and cure in str(refused.value.cure)
    assert VALUE not in str(refused.value)


def test_the_login_of_a_registry_has_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.write_text('workload.pull_secret={"username": "ada", "password": "x=y"}\nTOKEN=hunter22')
    asked = spec(path, TOKEN={"secret": "a"})
    assert asked.workload is not None
    login = {"image": "nvcr.io/team/job:v1", "pull_secret": SecretSource(secret="bivouac_pull")}
    asked = asked.model_copy(update={"workload": asked.workload.model_copy(update=login)})
    assert values(asked) == {"TOKEN": "hunter22", "workload.pull_secret": '{"username": "ada", "password": "x=y"}'}
    assert sources(asked)["workload.pull_secret"].secret == "bivouac_pull"


def test_without_a_file_the_variables_are_named() -> None:
    with pytest.raises(UserError) as refused:
        values(spec(None, TOKEN={"secret": "a"}))
    assert refused.value.seen == "TOKEN" and "workload.rehearsal.secrets" in str(refused.value.cure)


def test_values_with_keys_are_members_of_one_secret() -> None:
    sources = spec(None, A={"secret": "s", "key": "a"}, B={"secret": "s", "key": "b"}, C={"parameter": "/s"}).secrets
    texts = {source.place: text for source, text in _texts_by_place(sources, {"A": "1", "B": "2", "C": "3"})}
    assert texts == {"secret s": '{"a": "1", "b": "2"}', "parameter /s": "3"}
    mixed = spec(None, A={"secret": "s", "key": "a"}, B={"secret": "s"}).secrets
    with pytest.raises(UserError, match="read whole and by key"):
        _texts_by_place(mixed, {"A": "1", "B": "2"})


def test_a_secret_of_the_real_account_is_rehearsed_under_its_name() -> None:
    arn = "arn:aws:secretsmanager:eu-west-1:999999999999:secret:team/token-AbC123"
    (source,) = spec(None, A={"secret": arn, "key": "a"}).secrets.values()
    assert (source.secret, source.key) == ("team/token", "a")


def test_a_missing_value_is_refused_before_a_site_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BIVOUAC_SITE", raising=False)
    monkeypatch.setenv("BIVOUAC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(handle, "ensure", lambda *_: pytest.fail("a site is started"))
    with pytest.raises(UserError, match="cannot be read"):
        target.enter_for(spec(tmp_path / "nothing", TOKEN={"secret": "a"}), lambda said: None)


def test_inside_its_site_a_command_gives_the_values_to_the_account_and_never_on_aws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    targets = list[str]()
    monkeypatch.setattr(site_secrets, "give", lambda one: targets.append(one.target))
    job = spec(None, TOKEN={"secret": "a"})
    on_aws = job.model_copy(update={"target": "aws"})
    monkeypatch.delenv("BIVOUAC_SITE", raising=False)
    target.give_inputs(job)
    assert targets == []
    monkeypatch.setenv("BIVOUAC_SITE", "default")
    target.enter_for(job, lambda said: None)
    target.give_inputs(job)
    target.give_inputs(on_aws)
    assert targets == ["rehearsal", "rehearsal"]
