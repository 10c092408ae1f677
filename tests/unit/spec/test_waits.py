"""The table of waits beside what botocore's own waiters wait for, and at a rehearsal's time scale."""

from __future__ import annotations

import boto3
import pytest

from infra.spec import waits
from infra.spec.waits import WAITS, WaitBound


@pytest.mark.parametrize("wait", [one for one in WAITS if one.waiters], ids=lambda one: one.what)
def test_no_waiter_of_aws_waits_longer_than_we_do(wait: WaitBound) -> None:
    for waiter in wait.waiters:
        service, name = waiter.split(".")
        client = boto3.client(service, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
        config = client.get_waiter(name).config
        assert wait.seconds >= config.delay * config.max_attempts, waiter


def test_every_row_says_who_knows_it() -> None:
    assert len(WAITS) > 15
    assert all(one.takes and one.source for one in WAITS)


def test_a_scaled_rehearsal_waits_a_fraction_but_no_less_than_its_processes_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = {one.what: one.seconds for one in WAITS}
    monkeypatch.setenv(waits.TIME_SCALE, "60")
    assert waits.FILE_SYSTEM.seconds == 40 and waits.FILE_SYSTEM.timeout == "40s"
    assert waits.BUILDER_STOP.seconds == 30, "a quarter of an hour by sixty is too short for a process"
    monkeypatch.setenv(waits.TIME_SCALE, "1")
    assert {one.what: one.seconds for one in WAITS} == whole
