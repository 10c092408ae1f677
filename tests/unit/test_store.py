"""Events and leases on S3's conditional writes (moto in process; the same calls go to AWS)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import boto3
import pytest
from moto import mock_aws

from infra.errors import LeaseHeld, LeaseLost, UserError
from infra.events import Kind, Stage
from infra.identity import Holder
from infra.store import CampaignStore

TTL = timedelta(seconds=30)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="state")
        yield client


def holder(pid: int, **changes: Any) -> Holder:
    base = Holder.this_process().model_dump()
    return Holder.model_validate(base | {"pid": pid, "host": "elsewhere", "boot_id": "another"} | changes)


def test_events_of_two_writers_fold_into_one_state(s3: Any) -> None:
    one, two = CampaignStore(s3, "state", "c", "driver"), CampaignStore(s3, "state", "c", "steward")
    one.append(Kind.STAGE_STARTED, stage=Stage.PROVISION)
    two.append(Kind.ATTEMPT_LAUNCHED, attempt=1, jobset="c-a1", committed_step=-1)
    one.append(Kind.STAGE_FINISHED, stage=Stage.PROVISION, seconds=1.0, outputs={"x": 1})
    two.append(Kind.ATTEMPT_ENDED, attempt=1, failure="node", detail="", step=7, committed_at_end=5)
    state = CampaignStore(s3, "state", "c", "reader").state()
    assert state.finished_stages == {Stage.PROVISION: {"x": 1}}
    assert state.attempts[0]["failure"] == "node" and state.attempts[0]["committed_step"] == -1


def test_a_writer_that_comes_back_never_overwrites_its_events(s3: Any) -> None:
    CampaignStore(s3, "state", "c", "driver").append(Kind.DECISION, action="a", why="")
    CampaignStore(s3, "state", "c", "driver").append(Kind.DECISION, action="b", why="")
    events = CampaignStore(s3, "state", "c", "reader").events()
    assert [event.data["action"] for event in events] == ["a", "b"]


def test_a_stage_begun_again_is_no_longer_finished(s3: Any) -> None:
    store = CampaignStore(s3, "state", "c", "driver")
    store.append(Kind.STAGE_FINISHED, stage=Stage.CERTIFY, seconds=1.0, outputs={})
    store.append(Kind.STAGE_STARTED, stage=Stage.CERTIFY)
    assert Stage.CERTIFY not in store.state().finished_stages


def test_a_second_driver_is_refused_with_the_name_of_the_first(s3: Any) -> None:
    store = CampaignStore(s3, "state", "c", "w")
    first = store.lease("driver", TTL, holder(1, user="ada"))
    first.acquire()
    with pytest.raises(LeaseHeld, match="ada@elsewhere"):
        store.lease("driver", TTL, holder(2)).acquire()
    first.release()
    assert store.lease("driver", TTL, holder(2)).acquire() is None


def test_the_lease_of_a_process_that_is_provably_gone_is_taken_over_at_once(s3: Any) -> None:
    store = CampaignStore(s3, "state", "c", "w")
    gone = Holder.this_process().model_copy(update={"start_ticks": 1})
    dead = store.lease("driver", TTL, gone)
    dead._write(released=False)
    assert store.lease("driver", TTL, holder(2)).acquire() == gone


def test_a_holder_that_was_overtaken_touches_nothing_more(s3: Any) -> None:
    store = CampaignStore(s3, "state", "c", "w")
    slow = store.lease("driver", timedelta(seconds=0.3), holder(1))
    slow._write(released=False)
    slow.check()
    deadline = time.monotonic() + 5
    other = store.lease("driver", TTL, holder(2))
    while True:
        try:
            other.acquire()
            break
        except LeaseHeld:
            assert time.monotonic() < deadline, "the lease ran out and yet could not be taken"
    with pytest.raises(LeaseLost):
        slow.check()
    with pytest.raises(LeaseHeld):
        slow._write(released=False)


def test_another_spec_under_a_name_in_use_is_refused_by_the_fields_that_differ(s3: Any) -> None:
    store = CampaignStore(s3, "state", "c", "w")
    store.claim_spec('{"campaign": "c", "money": 1}')
    store.claim_spec('{"campaign": "c", "money": 1}')
    with pytest.raises(UserError, match="money"):
        store.claim_spec('{"campaign": "c", "money": 2}')
