"""Launch insists on an image whose content is written down."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from moto import mock_aws

from infra.errors import UserError
from infra.events import Stage
from infra.lifecycle.bake import ImageManifest, manifest_key
from infra.lifecycle.launch import steward_config
from infra.store import CampaignStore
from tests.example import example_spec

IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/bivouac/trainer@sha256:" + "a" * 64


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[CampaignStore]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        s3 = boto3.client("s3", region_name="us-east-1")
        s3.create_bucket(Bucket="state")
        yield CampaignStore(s3, "state", "c", "driver")


def context(store: CampaignStore) -> Any:
    bake = {"image": IMAGE, "manifest": manifest_key("inputs"), "code": "inputs"}
    return SimpleNamespace(spec=example_spec(), plan=None, store=store, outputs={Stage.BAKE: bake})


def manifest(image: str) -> bytes:
    return (
        ImageManifest(
            image=image, inputs_digest="inputs", base="b", base_digest="d", base_packages={}, layer_packages={}
        )
        .model_dump_json()
        .encode()
    )


def test_an_image_without_its_manifest_is_refused(store: CampaignStore) -> None:
    with pytest.raises(UserError, match="no manifest"):
        steward_config(context(store))


def test_a_manifest_of_another_image_is_no_manifest(store: CampaignStore) -> None:
    store.put(manifest_key("inputs"), manifest(IMAGE.replace("a" * 64, "b" * 64)))
    with pytest.raises(UserError, match="no manifest"):
        steward_config(context(store))
