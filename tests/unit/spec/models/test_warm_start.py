"""Weights to start from: a link of the file system, or an upload beside the data, under a path that ranks are told."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.campaign import provision
from infra.data import source
from infra.plan.checks import check, failed
from infra.plan.job_config import train_config
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.spec.campaign import SpecError
from tests.worlds.progress import SilentProgress


def refused(file: Any) -> list[str]:
    facts = survey(file.spec)
    found = check(file, facts, facts.prices.as_of)
    return [one.message for one in found if failed((one,)) and one.field == "training.init_from"]


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    (folder := tmp_path / "llama").mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


class Account:
    """An account that notes what is uploaded."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def client(self, service: str) -> Any:
        return SimpleNamespace(upload_file=lambda path, bucket, key: self.keys.append(key))


def test_a_prefix_is_a_link_and_a_folder_is_none(spec_file: Any, llama: Path) -> None:
    in_s3 = spec_file({"training.model": "debug", "training.init_from": "s3://bucket/llama"}).spec
    assert in_s3.links == {"init-from": "s3://bucket/llama"}
    assert spec_file({"training.model": "debug", "training.init_from": str(llama)}).spec.links == {}


def test_a_folder_is_uploaded_beside_the_data_where_the_ranks_look(
    spec_file: Any, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_file({"training.model": "debug", "training.init_from": str(llama)}).spec
    monkeypatch.setattr(provision.dataset, "upload", lambda *_: None)
    account = Account()
    context: Any = SimpleNamespace(
        account=account, buckets=SimpleNamespace(data="data"), progress=SilentProgress(), spec=spec
    )
    data: Any = SimpleNamespace(folder=llama, digest="d" * 64)
    provision.upload(context, data)
    weights = provision._weights_of(spec)
    assert account.keys == [
        f"datasets/{'d' * 64}/{weights.removeprefix('/data/')}/{path.name}" for path in sorted(llama.iterdir())
    ]

    config = train_config(spec, make_plan(spec, survey(spec)), "d" * 64, init_from=weights)
    assert config.init_from == weights
    (llama / "model.safetensors").write_bytes(b"other weights")
    assert provision._weights_of(spec) != weights, "campaigns with the same data share its folder"
    assert len(source.weight_files(str(llama))) == 2


def test_what_is_not_there_is_found_before_anything_is_paid(spec_file: Any, llama: Path) -> None:
    def said(place: str) -> list[str]:
        return refused(spec_file({"training.model": "debug", "training.init_from": place}))

    assert said(str(llama)) == []
    assert said(str(llama / "none")) == ["there is no such folder"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training.init_from": "s3://bucket/x"}, "the small decoder starts from no weights"),
        ({"training.model": "debug", "training.init_from": "https://hub/x"}, "neither s3://bucket/prefix nor a folder"),
    ],
)
def test_what_cannot_be_is_refused_in_words(changes: dict[str, Any], said: str, spec_file: Any) -> None:
    with pytest.raises(SpecError) as error:
        spec_file(changes)
    assert said in str(error.value)
