"""Faults asked for at the emulated AWS's own door, as every client meets them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, HTTPClientError, ResponseStreamingError

from infra.rehearsal.aws.world import World
from tests.rehearsal.aws_account import Account, make_user, until

pytestmark = pytest.mark.usefixtures("answers_as_modelled")

ONCE = Config(retries={"total_max_attempts": 1}, response_checksum_validation="when_required")


def ask(world: World, **asked: Any) -> dict[str, Any]:
    body = json.dumps(asked).encode()
    with urllib.request.urlopen(f"{world.endpoint_url}/_site/faults", data=body) as answer:
        return dict(json.loads(answer.read()))


@pytest.fixture()
def s3(world: World) -> Iterator[Any]:
    key, secret = world.operator_key
    client = boto3.client("s3", "us-east-1", None, True, None, world.endpoint_url, key, secret, config=ONCE)
    client.create_bucket(Bucket="faults")
    yield client
    ask(world, clear=True)
    for item in client.list_objects_v2(Bucket="faults").get("Contents", ()):
        client.delete_object(Bucket="faults", Key=item["Key"])
    client.delete_bucket(Bucket="faults")


def there(s3: Any, key: str) -> bool:
    return key in [item["Key"] for item in s3.list_objects_v2(Bucket="faults").get("Contents", ())]


def test_a_refused_call_does_nothing_and_the_next_one_passes(world: World, s3: Any) -> None:
    ask(world, add=[{"service": "s3", "action": "PutObject", "code": "SlowDown", "status": 503}])
    with pytest.raises(ClientError) as error:
        s3.put_object(Bucket="faults", Key="a", Body=b"1")
    assert error.value.response["Error"]["Code"] == "SlowDown" and not there(s3, "a")
    s3.put_object(Bucket="faults", Key="a", Body=b"1")
    assert there(s3, "a") and ask(world)["rules"][0]["hits"] == 1


@pytest.mark.parametrize("effect", ["refuse-after", "drop-after"])
def test_a_lost_answer_is_of_a_call_that_was_done(world: World, s3: Any, effect: str) -> None:
    ask(world, add=[{"action": "PutObject", "path": "/faults/lost", "effect": effect}])
    with pytest.raises((ClientError, ConnectionClosedError)):
        s3.put_object(Bucket="faults", Key="lost", Body=b"1")
    assert there(s3, "lost")


def test_a_dropped_call_is_not_done(world: World, s3: Any) -> None:
    ask(world, add=[{"action": "PutObject", "effect": "drop"}])
    with pytest.raises((ConnectionClosedError, HTTPClientError)):
        s3.put_object(Bucket="faults", Key="dropped", Body=b"1")
    assert not there(s3, "dropped")


def test_a_truncated_body_is_shorter_than_it_says(world: World, s3: Any) -> None:
    s3.put_object(Bucket="faults", Key="long", Body=b"x" * 1000)
    ask(world, add=[{"action": "GetObject", "path": "/faults/long", "effect": "truncate", "keep_bytes": 400}])
    with pytest.raises(ResponseStreamingError):
        s3.get_object(Bucket="faults", Key="long")["Body"].read()
    assert len(s3.get_object(Bucket="faults", Key="long")["Body"].read()) == 1000


def test_a_listing_that_lags_shows_what_was_and_then_what_is(world: World, s3: Any) -> None:
    lag = {"service": "s3", "action": "ListObjectsV2", "effect": "stale", "times": None}
    s3.put_object(Bucket="faults", Key="old", Body=b"1")
    ask(world, add=[lag | {"lag_s": 60.0}])
    assert there(s3, "old") and not there(s3, "new")
    s3.put_object(Bucket="faults", Key="new", Body=b"1")
    s3.delete_object(Bucket="faults", Key="old")
    assert not there(s3, "new"), "the listing is of before"
    assert there(s3, "old"), "what is gone is still shown"
    assert s3.list_objects_v2(Bucket="faults", Prefix="other").get("KeyCount") == 0, "another question, another answer"
    ask(world, clear=True)
    ask(world, add=[lag | {"lag_s": 0.2}])
    until(lambda: there(s3, "new") and not there(s3, "old"))


def test_rules_choose_by_caller_skip_and_share(world: World, s3: Any) -> None:
    everything = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    other = Account(world, *make_user(world, "other", everything))
    ask(world, add=[{"service": "sts", "caller": "*:user/other", "code": "Throttling", "skip": 1, "times": None}])
    other.sts.get_caller_identity()
    with pytest.raises(ClientError):
        other.sts.get_caller_identity()
    boto3.client(
        "sts",
        "us-east-1",
        endpoint_url=world.endpoint_url,
        aws_access_key_id=world.operator_key[0],
        aws_secret_access_key=world.operator_key[1],
    ).get_caller_identity()
    ask(world, clear=True)
    ask(world, add=[{"service": "s3", "action": "ListBuckets", "times": None, "share": 0.5, "seed": 3}])
    outcomes = []
    for _ in range(20):
        try:
            s3.list_buckets()
            outcomes.append(True)
        except ClientError:
            outcomes.append(False)
    assert 4 <= sum(outcomes) <= 16


def test_a_rule_that_is_none_is_refused_with_the_fields_there_are(world: World) -> None:
    body = json.dumps({"add": [{"servise": "s3"}]}).encode()
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"{world.endpoint_url}/_site/faults", data=body)
    assert "servise" in error.value.read().decode()
