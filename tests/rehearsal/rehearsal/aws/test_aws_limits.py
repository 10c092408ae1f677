"""What a strict site decides without a request: its seed's delays and pages, limits on requests, and its setting."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from infra.rehearsal.aws.gateway import service_model
from infra.rehearsal.aws.strict import settings
from infra.rehearsal.aws.strict.buckets import CallRates
from infra.rehearsal.aws.strict.document import read
from infra.rehearsal.aws.strict.pages import Pages, paging
from infra.rehearsal.aws.strict.settings import SOFT, Delay, Strictness
from infra.rehearsal.aws.world import Call, World


def test_a_first_page_may_be_empty() -> None:
    operation: Any = service_model("logs").operation_model("DescribeLogGroups")
    how, pages = paging("logs", operation), Pages(Strictness)
    assert how is not None
    whole = json.dumps({"logGroups": [{"logGroupName": str(number)} for number in range(9)]}).encode()
    firsts = [json.loads(pages.first_page(how, operation, {}, read(whole, operation))) for _ in range(50)]
    empty = [one for one in firsts if not one["logGroups"]]
    assert 2 < len(empty) < 25 and all(one["nextToken"] for one in firsts)
    rest, seen = empty[0], list[str]()
    while token := rest.get("nextToken"):
        rest = json.loads(pages.next(how, operation, {"nextToken": token}) or b"")
        seen += [group["logGroupName"] for group in rest["logGroups"]]
    assert seen == [str(number) for number in range(9)]


def world(strictness: Strictness) -> World:
    return World(work=Path(), tools=Path(), endpoint_url="", strictness=strictness)


def call(service: str, action: str) -> Call:
    return Call(service, action, "AKIA")


def test_a_bucket_refuses_a_burst_and_fills_again() -> None:
    now = [0.0]
    buckets = CallRates(world(Strictness()), lambda: now[0])
    codes = [fault.code if (fault := buckets.hook(call("ec2", "RunInstances"))) else "" for _ in range(8)]
    assert codes[0] == "" and codes[6:] == ["RequestLimitExceeded"] * 2
    now[0] += 1.0
    assert buckets.hook(call("ec2", "RunInstances")) is None
    other = [buckets.hook(call("ec2", "DescribeVpcs")) for _ in range(90)]
    assert sum(one is not None for one in other) <= 3, "each operation has a bucket of its own"


def test_a_caller_who_polls_without_a_pause_is_throttled_and_one_who_waits_is_not() -> None:
    now = [0.0]
    buckets = CallRates(world(Strictness()), lambda: now[0])

    def refused(pause_s: float) -> int:
        found = 0
        for _ in range(400):
            now[0] += pause_s
            fault = buckets.hook(call("tagging", "GetResources"))
            found += fault is not None and "limit" in fault.message
        return found

    assert refused(0.01) > 100
    now[0] += 60
    assert refused(0.2) == 0


def test_chance_refuses_some_requests_never_two_in_a_row_and_the_seed_says_which() -> None:
    def struck(seed: int) -> list[int]:
        buckets = CallRates(world(Strictness(seed=seed)))
        return [n for n in range(4000) if buckets.hook(call("s3", "PutObject"))]

    first = struck(1)
    assert 5 < len(first) < 60 and first == struck(1) != struck(2)
    assert all(b - a > 1 for a, b in itertools.pairwise(first))


def test_a_soft_world_has_none_of_it() -> None:
    assert not SOFT.on and Delay(1.0, 2.0).draw(SOFT, "x") == 0.0
    buckets = CallRates(world(SOFT))
    assert not any(buckets.hook(call("ec2", "RunInstances")) for _ in range(500))


def test_delays_are_the_seeds_whatever_the_order() -> None:
    drawn = {n: Delay(0.1, 0.9).draw(Strictness(seed=3), "known", n) for n in range(50)}
    again = {n: Delay(0.1, 0.9).draw(Strictness(seed=3), "known", n) for n in reversed(range(50))}
    assert drawn == again and len(set(drawn.values())) == 50
    assert all(0.1 <= one <= 0.9 for one in drawn.values())
    assert Delay(0.1, 0.9).draw(Strictness(seed=4), "known", 1) != drawn[1]


def test_a_site_is_strict_unless_its_first_campaign_says_otherwise(tmp_path: Path) -> None:
    assert settings.read(tmp_path) == Strictness(level="strict", seed=1)
    settings.write(tmp_path, SOFT)
    settings.write(tmp_path, Strictness(seed=9))
    assert settings.read(tmp_path) == SOFT
