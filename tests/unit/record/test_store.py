"""Events and leases on S3's conditional writes (moto in process; the same calls go to AWS)."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from infra.errors import LeaseHeld, LeaseLost, UserError
from infra.record.events import Stage
from infra.record.holder import Holder
from infra.record.payloads.attempts import AttemptEnded, AttemptLaunched, AttemptRunning
from infra.record.payloads.outputs import ProvisionOutput
from infra.record.payloads.stages import Decision, StageFinished, StageStarted
from infra.record.payloads.training import FileSystemReplaced
from infra.record.store import CampaignStore, live_figures

TTL = timedelta(seconds=30)


@pytest.fixture
def s3(state_s3: Any) -> Any:
    return state_s3


def holder(pid: int, **changes: Any) -> Holder:
    base = Holder.this_process().model_dump()
    return Holder.model_validate(base | {"pid": pid, "host": "elsewhere", "boot_id": "another"} | changes)


def test_events_of_two_writers_fold_into_one_state(s3: Any) -> None:
    one, two = CampaignStore(s3, "state", "c", "driver"), CampaignStore(s3, "state", "c", "steward")
    one.append(StageStarted(stage=Stage.PROVISION))
    two.append(AttemptLaunched(attempt=1, jobset="c-a1", committed_step=-1))
    one.append(StageFinished(stage=Stage.PROVISION, seconds=1.0, outputs={"x": 1}))
    two.append(AttemptEnded(attempt=1, failure="node", detail="", step=7, committed_at_end=5))
    state = CampaignStore(s3, "state", "c", "reader").state()
    assert state.finished_stages == {Stage.PROVISION: ProvisionOutput.model_validate({"x": 1})}
    assert state.attempts[0].failure == "node" and state.attempts[0].launched.committed_step == -1


def test_the_file_systems_id_is_that_of_the_newest_one(s3: Any) -> None:
    store = CampaignStore(s3, "state", "c", "driver")
    assert store.state().file_system is None
    for id in ("fs-1", None, "fs-2"):
        store.append(StageFinished(stage=Stage.PROVISION, outputs={"outputs": {"file_system_id": id}}))
        assert store.state().file_system == id
    store.append(StageFinished(stage=Stage.LAUNCH))
    assert store.state().file_system == "fs-2"
    store.append(FileSystemReplaced(id="fs-3"))
    assert store.state().file_system == "fs-3"
    store.append(FileSystemReplaced())
    assert store.state().file_system is None, "an older driver did not say which"


def test_the_order_of_an_attempts_pods_is_told_once_it_trains(s3: Any) -> None:
    store = CampaignStore(s3, "state", "c", "steward")
    for attempt in (1, 2):
        store.append(AttemptLaunched(attempt=attempt, jobset=f"c-a{attempt}", committed_step=-1))
    store.append(AttemptRunning(attempt=1, step=1, nodes=["a", "b", "c"]))
    store.append(AttemptRunning(attempt=2, step=1, nodes=["a", "b", "c"], node_ranks=[2, 0, None]))
    state = store.state()
    assert [state.node_rank(2, index) for index in range(4)] == [2, 0, 2, 3], "an agent that never answered has no rank"
    assert state.node_rank(1, 2) == 2 and state.node_rank(7, 1) == 1


def test_a_writer_that_comes_back_never_overwrites_its_events(s3: Any) -> None:
    CampaignStore(s3, "state", "c", "driver").append(Decision(action="a", why=""))
    CampaignStore(s3, "state", "c", "driver").append(Decision(action="b", why=""))
    events = CampaignStore(s3, "state", "c", "reader").events()
    assert [event.data["action"] for event in events] == ["a", "b"]


def test_an_event_of_a_later_versions_kind_is_passed_over(s3: Any) -> None:
    store = CampaignStore(s3, "state", "c", "driver")
    store.append(Decision(action="a", why=""))
    later = {"at": "2126-11-23T10:00:00Z", "writer": "newer", "sequence": 0, "kind": "of.tomorrow", "data": {"x": 1}}
    store.put("campaigns/c/events/newer/000000.json", json.dumps(later).encode())
    store.put("campaigns/c/events/newer/000001.json", json.dumps(later | {"kind": "abandoned", "sequence": 1}).encode())
    assert [event.kind for event in store.events()] == ["decision", "abandoned"] and store.state().abandoned


def test_a_stage_begun_again_is_no_longer_finished(s3: Any) -> None:
    store = CampaignStore(s3, "state", "c", "driver")
    store.append(StageFinished(stage=Stage.CERTIFY, seconds=1.0, outputs={}))
    store.append(StageStarted(stage=Stage.CERTIFY))
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
    dead._write(is_release=False)
    assert store.lease("driver", TTL, holder(2)).acquire() == gone


def test_a_holder_that_was_overtaken_touches_nothing_more(s3: Any) -> None:
    store = CampaignStore(s3, "state", "c", "w")
    slow = store.lease("driver", timedelta(seconds=3), holder(1))
    slow._write(is_release=False)
    slow.check()
    deadline = time.monotonic() + 30
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
        slow._write(is_release=False)


def test_a_lease_that_was_not_renewed_in_time_is_told_once(s3: Any) -> None:
    """The thread that renews finds it lost before anybody asks: the reason is not wrapped into itself."""
    lease = CampaignStore(s3, "state", "late", "w").lease("driver", timedelta(seconds=0.3), holder(1))
    lease._renewed = 0.0
    lease._renew()
    with pytest.raises(LeaseLost) as lost:
        lease.check()
    assert str(lost.value).count("; seen: ") == 1 and "not renewed in time" in str(lost.value.seen)


def lose_all_answers(s3: Any) -> None:
    """The next PUT is carried out, and none of its tries is ever answered."""
    lost: list[int] = []

    def unheard(**_: Any) -> None:
        if not lost:
            lost.append(1)
            raise ReadTimeoutError(endpoint_url="https://s3")

    s3.meta.events.register_first("after-call.s3.PutObject", unheard)


def test_a_renewal_that_landed_unheard_is_no_other_driver(s3: Any) -> None:
    store = CampaignStore(s3, "state", "unheard", "w")
    lease = store.lease("driver", TTL, holder(1))
    lease._write(is_release=False)
    lose_all_answers(s3)
    with pytest.raises(ReadTimeoutError):
        lease._write(is_release=False)
    lease._write(is_release=False)
    lease.check()
    with pytest.raises(LeaseHeld, match="elsewhere"):
        store.lease("driver", TTL, holder(2))._write(is_release=False)
    lease._write(is_release=False)


def test_a_lease_whose_last_renewal_landed_unheard_is_given_back_all_the_same(s3: Any) -> None:
    store = CampaignStore(s3, "state", "back", "w")
    lease = store.lease("driver", TTL, holder(1))
    lease._write(is_release=False)
    lose_all_answers(s3)
    with pytest.raises(ReadTimeoutError):
        lease._write(is_release=False)
    lease.release()
    assert store.lease("driver", TTL, holder(2)).acquire() is None, "nobody has to wait for it"


def test_a_lease_that_was_given_back_or_taken_is_not_renewed_from_the_past(s3: Any) -> None:
    store = CampaignStore(s3, "state", "past", "w")
    lease = store.lease("driver", TTL, holder(1))
    lease._write(is_release=False)
    late = store.lease("driver", TTL, holder(1))
    late._etag = lease._etag
    lease.release()
    with pytest.raises(LeaseHeld):
        late._write(is_release=False)


@pytest.mark.parametrize(("later", "taken"), [(timedelta(0), False), (TTL * 2, True)])
def test_the_age_of_a_lease_is_judged_by_the_clock_of_s3_alone(s3: Any, later: timedelta, taken: bool) -> None:
    first = CampaignStore(s3, "state", "c", "w").lease("driver", TTL, holder(1))
    first._write(is_release=False)
    record = first.current()
    assert record is not None
    # The holder's clock is a day behind or ahead; S3 says how late it is.
    wrong = record[0].renewed_at + (timedelta(days=1) if taken else timedelta(days=-1))
    body = record[0].model_copy(update={"renewed_at": wrong}).model_dump_json().encode()
    s3.put_object(Bucket="state", Key=first.key, Body=body)

    def say_date(parsed: dict[str, Any], **_: Any) -> None:
        date = format_datetime(datetime.now(UTC) + later, usegmt=True)
        parsed["ResponseMetadata"]["HTTPHeaders"]["date"] = date

    s3.meta.events.register("after-call.s3.GetObject", say_date)
    second = CampaignStore(s3, "state", "c", "w").lease("driver", TTL, holder(2))
    if taken:
        assert second.acquire() == holder(1)
        second.release()
    else:
        with pytest.raises(LeaseHeld):
            second.acquire()


def test_another_spec_under_a_name_in_use_is_refused_by_the_fields_that_differ(s3: Any) -> None:
    store = CampaignStore(s3, "state", "c", "w")
    store.claim_spec('{"campaign": "c", "money": 1}')
    store.claim_spec('{"campaign": "c", "money": 1}')
    with pytest.raises(UserError, match="money") as refused:
        store.claim_spec('{"campaign": "c", "money": 2}')
    assert "never freed" in str(refused.value.cure)


def lose_one_answer(s3: Any) -> list[int]:
    """The next PUT reaches S3, its answer is lost, and the client sends it again, as botocore does by itself."""
    status_codes: list[int] = []

    def answer_lost(response: Any, **_: Any) -> float | None:
        if not status_codes:
            status_codes.append(response[0].status_code)
            return 0.0
        return None

    s3.meta.events.register_first("needs-retry.s3.PutObject", answer_lost)
    return status_codes


def test_an_event_whose_answer_was_lost_is_written_once(s3: Any) -> None:
    store = CampaignStore(s3, "state", "c", "driver")
    lost = lose_one_answer(s3)
    written = store.append(Decision(action="a", why=""))
    assert lost == [200], "the first PUT was to be done before its answer was lost"
    assert CampaignStore(s3, "state", "c", "reader").events() == (written,)


def test_a_key_that_holds_other_bytes_is_not_ours(s3: Any) -> None:
    store = CampaignStore(s3, "state", "c", "driver")
    lost = lose_one_answer(s3)
    assert store.put_if_absent("key", b"one") and lost
    assert not store.put_if_absent("key", b"two") and store.get("key") == b"one"


class Refusing:
    """S3 that answers each conditional write with an error. `after`: so many, then it takes them."""

    def __init__(self, s3: Any, code: str, status: int, after: int = 99) -> None:
        self.s3, self.left, self.tries = s3, after, 0
        self.answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}

    def put_object(self, **wanted: Any) -> Any:
        self.tries += 1
        if self.tries <= self.left:
            raise ClientError(self.answer, "PutObject")  # type: ignore[arg-type]
        return self.s3.put_object(**wanted)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.s3, name)


@pytest.mark.parametrize(
    ("code", "status", "after", "tries"),
    [
        ("AccessDenied", 403, 99, 1),
        ("ConditionalRequestConflict", 409, 99, 5),
        ("ConditionalRequestConflict", 409, 5, 5),
        ("ConditionalRequestConflict", 409, 4, 5),
        ("ConditionalRequestConflict", 409, 1, 2),
    ],
)
def test_a_write_that_another_one_is_in_the_way_of_is_tried_five_times(
    s3: Any, monkeypatch: pytest.MonkeyPatch, code: str, status: int, after: int, tries: int
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("infra.record.store.time.sleep", pauses.append)
    refusing = Refusing(s3, code, status, after)
    store = CampaignStore(refusing, "state", "c", "w")
    if after >= tries:
        with pytest.raises(ClientError, match=code):
            store.put_if_absent("key", b"x")
    else:
        assert store.put_if_absent("key", b"x") and store.get("key") == b"x"
    assert refusing.tries == tries and pauses == [0.2] * (tries - 1)


def test_where_there_is_no_bucket_there_is_no_record(s3: Any) -> None:
    store = CampaignStore(s3, "none", "c", "w")
    assert store.events() == () and store.keys("") == [] and store.folders("pods/") == []


def test_folders_are_named_without_what_is_below_them(s3: Any) -> None:
    store = CampaignStore(s3, "state", "c", "w")
    for name in ("pods/a/1", "pods/a/2", "pods/b/c/3", "pods/file", "other/x"):
        store.put_json(name, {})
    assert store.folders("pods/") == ["a", "b"] and store.has("pods/file") and not store.has("pods/a")
    assert store.keys("pods/b") == ["campaigns/c/pods/b/c/3"]


def test_the_same_spec_in_other_bytes_is_the_same_spec(s3: Any) -> None:
    store = CampaignStore(s3, "state", "c", "w")
    store.claim_spec('{"a": 1, "b": 2}')
    store.claim_spec('{"b":2,"a":1}')
    with pytest.raises(UserError, match="differing sections: b;"):
        store.claim_spec('{"a": 1, "b": 3}')


def test_live_figures_are_read_as_they_were_written_or_not_at_all(s3: Any) -> None:
    store = CampaignStore(s3, "state", "c", "w")
    assert live_figures(store) is None and store.unread_objects() == {}
    figures = {
        "at": "2026-11-22T12:00:00+00:00", "attempt": 2, "step": 5, "steps": 9, "loss": None, "committed_step": 3,
        "spent_usd": 1.5, "usd_per_hour": 12.0, "why": "", "more": [1],
    }  # fmt: skip
    store.put_json("live.json", figures)
    assert live_figures(store) == figures
    store.put_json("live.json", figures | {"spent_usd": None})
    assert live_figures(store) is None and list(store.unread_objects()) == ["campaigns/c/live.json"]
