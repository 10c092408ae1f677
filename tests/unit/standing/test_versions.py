"""What was deleted from a bucket that keeps versions is billed until they go, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from infra.record.events import CampaignState, Stage
from infra.spec.campaign import SpecFile
from infra.standing.belongings import Tenant
from infra.standing.certificate import look
from infra.standing.ending import end
from tests.worlds.s3 import Time
from tests.worlds.tenant import BUCKET, CAMPAIGN, TenantApi, rack, tenant

CARRIED = f"bivouac/campaigns/{CAMPAIGN}/carried/step-00000020/shard"
STATE = CampaignState(begun_with=Stage.CHECK)


@pytest.fixture
def s3() -> Iterator[Any]:
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket=BUCKET)
        client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        client.put_object(Bucket=BUCKET, Key=CARRIED, Body=b"weights")
        yield client


@pytest.fixture
def campaign(s3: Any, standing: Callable[..., SpecFile]) -> Iterator[Tenant]:
    api = TenantApi(rack("rack-1"))
    yield tenant(api, s3, standing().spec, Time())
    api.stop()


def test_the_end_removes_what_a_bucket_keeps_of_copies_for_people(campaign: Tenant, s3: Any) -> None:
    end(campaign, STATE)
    assert s3.list_object_versions(Bucket=BUCKET, Prefix=CARRIED).get("Versions") is None
    assert look(campaign, STATE, "id", {}, "ada").clean


def test_a_version_that_is_left_is_found_though_no_object_is(campaign: Tenant, s3: Any) -> None:
    s3.delete_object(Bucket=BUCKET, Key=CARRIED)
    certificate = look(campaign, STATE, "id", {}, "ada")
    assert not certificate.clean and certificate.found == (
        f"versions below s3://{BUCKET}/bivouac/campaigns/{CAMPAIGN}/carried/ 1 versions",
    )


def test_a_login_that_sees_no_versions_ends_the_campaign_and_leaves_them_to_a_person(
    campaign: Tenant, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = s3.get_paginator

    def refuse(name: str) -> Any:
        if name == "list_object_versions":
            answer = {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
            raise ClientError(answer, "ListObjectVersions")  # type: ignore[arg-type]
        return ask(name)

    monkeypatch.setattr(s3, "get_paginator", refuse)
    end(campaign, STATE)
    certificate = look(campaign, STATE, "id", {}, "ada")
    assert certificate.clean and "list-object-versions" in certificate.suspects[0]
