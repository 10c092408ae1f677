"""A prefix of a bucket through an outage and through a refusal."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from trainer.buckets.prefix import Prefix


class Weather:
    """A client that answers only after some errors."""

    def __init__(self, real: Any, errors: list[Exception]) -> None:
        self.real, self.errors, self.exceptions = real, errors, real.exceptions

    def get_object(self, **where: Any) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return self.real.get_object(**where)


def refusal(code: str, status: int) -> ClientError:
    told = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(told, "GetObject")  # type: ignore[arg-type]


def test_an_outage_is_waited_out_and_a_refusal_is_not(
    moto_server: str, moto_s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_server)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it keeps the credentials of whoever came first
    moto_s3.create_bucket(Bucket="outages")
    url = "s3://outages/prefix"
    slept: list[float] = []
    place = Prefix(url, sleep=slept.append)
    place.put("a", b"content")
    away = [refusal("SlowDown", 503), EndpointConnectionError(endpoint_url="s3")]
    vars(place)["_s3"] = Weather(moto_s3, [*away])
    found = place.get("a")
    assert found is not None and found[0] == b"content" and slept == [1.0, 2.0]

    vars(place)["_s3"] = Weather(moto_s3, [refusal("AccessDenied", 403)])
    with pytest.raises(PermissionError, match="AccessDenied"):
        place.get("a")
    assert len(slept) == 2

    hurried = Prefix(url, patience_s=0, sleep=slept.append)
    vars(hurried)["_s3"] = Weather(moto_s3, [*away])
    with pytest.raises(OSError, match="SlowDown"):
        hurried.get("a")
