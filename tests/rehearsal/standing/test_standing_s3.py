"""The way to an S3 that stands, with the login of a Secret."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any

import yaml
from lightkube.resources.core_v1 import Secret

from infra.cluster.standing.connection import LOGIN_KEYS
from infra.rehearsal.aws.world import World
from infra.spec.standing import StandingCluster
from infra.standing import look
from tests.root import ROOT

SPEC: dict[str, Any] = yaml.safe_load((ROOT / "tests/unit/standing/standing.yaml").read_text())


def holding(login: dict[str, str]) -> Any:
    """A cluster that has one Secret."""
    data = {key: base64.b64encode(value.encode()).decode() for key, value in login.items()}
    return SimpleNamespace(get=lambda kind, name: Secret(data=data))


def test_a_bucket_is_read_with_the_secrets_login_and_a_missing_one_is_told(world: World, aws: Any) -> None:
    keys = aws.session.get_credentials()
    login = dict(zip(LOGIN_KEYS, (keys.access_key, keys.secret_key), strict=True))
    aws.s3.create_bucket(Bucket="standing-training")
    s3 = {"endpoint": world.endpoint_url, "secret": "s3-login"}

    def answer(bucket: str, login: dict[str, str]) -> str:
        cluster = StandingCluster.model_validate(SPEC["cluster"] | {"s3": {**s3, "bucket": bucket}})
        return look._bucket(holding(login), cluster)

    assert answer("standing-training", login) == ""
    assert "NoSuchBucket" in answer("standing-nothing", login)
    assert answer("standing-training", {}) == ("Secret s3-login has no AWS_ACCESS_KEY_ID and no AWS_SECRET_ACCESS_KEY")
