"""A certificate is compared with what AWS's own services show, on answers of the services' shapes."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from tests.aws import comparison
from tests.aws.comparison import bill, costs, disagreements, left_over

HERE = "arn:aws:ec2:us-east-1:111122223333"
DAYS = (date(2026, 11, 23), date(2026, 11, 24))


def account(**answers: Any) -> Any:
    """Operation -> its answer, or the words of its refusal; an instance `i-gone` is terminated."""

    def ask(service: str, operation: str, *words: str) -> tuple[Any, str]:
        if operation == "describe-instances":
            state = "terminated" if "i-gone" in words else "running"
            return {"Reservations": [{"Instances": [{"State": {"Name": state}}]}]}, ""
        answer = answers[operation.replace("-", "_")]
        if callable(answer):
            answer = answer(words)
        return (None, answer) if isinstance(answer, str) else (answer, "")

    return ask


def tagged(*arns: str) -> dict[str, Any]:
    return {"ResourceTagMappingList": [{"ResourceARN": arn, "Tags": []} for arn in arns]}


def test_what_stands_beside_a_clean_certificate_disagrees_but_for_ended_instances() -> None:
    ask = account(
        get_resources=tagged(f"{HERE}:instance/i-gone", f"{HERE}:volume/vol-1", f"{HERE}:instance/i-alive"),
        search="ResourceNotFoundException: no index in this region",
    )
    seen = left_over(ask, "first-contact")
    assert [len(one.shown) for one in seen] == [2, 0] and seen[0].ended == (f"{HERE}:instance/i-gone",)
    assert "could not look" in str(seen[1]) and "1 more have ended" in str(seen[0])
    clean: dict[str, Any] = {"looks": [], "kept": []}
    assert disagreements(clean, seen) == [
        f"tagging service shows {HERE}:volume/vol-1", f"tagging service shows {HERE}:instance/i-alive",
    ]  # fmt: skip
    known = {"looks": [{"found": ["vol-1"]}], "kept": ["an archive beside i-alive"]}
    assert disagreements(known, seen) == []


def test_what_is_gone_but_listed_for_a_while_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [tagged(f"{HERE}:natgateway/nat-1"), tagged()]
    paused: list[float] = []
    monkeypatch.setattr(comparison.time, "sleep", paused.append)

    def ask(*words: str) -> tuple[Any, str]:
        return (listed.pop(0), "") if words[0] == "resourcegroupstaggingapi" else ({"Resources": []}, "")

    assert [one.shown for one in left_over(ask, "first-contact", patience_s=1000.0)] == [(), ()]
    assert len(paused) == 1 and not listed


def pages(words: tuple[str, ...]) -> dict[str, Any]:
    def day(**usd: str) -> dict[str, Any]:
        groups = [{"Keys": [name], "Metrics": {"UnblendedCost": {"Amount": one}}} for name, one in usd.items()]
        return {"Groups": groups}

    assert '{"Tags": {"Key": "bivouac:campaign", "Values": ["first-contact"]}}' in words
    assert "Start=2026-11-23,End=2026-11-24" in words
    if "--next-page-token" in words:
        return {"ResultsByTime": [day(EC2="0.25")]}
    return {"ResultsByTime": [day(EC2="2.5", FSx="0.5"), day(EC2="0.25", Free="0")], "NextPageToken": "more"}


def test_the_bill_is_summed_over_days_and_pages() -> None:
    found, refused = costs(account(get_cost_and_usage=pages), "first-contact", *DAYS)
    assert found == {"EC2": Decimal("3.00"), "FSx": Decimal("0.5")} and refused == ""
    assert costs(account(get_cost_and_usage="AccessDenied"), "first-contact", *DAYS) == ({}, "AccessDenied")


@pytest.mark.parametrize(("ours", "code", "words"), [("3.40", 0, "no more than we"), ("2.70", 1, "more than we count")])
def test_a_bill_that_is_clearly_higher_than_ours_is_told(ours: str, code: int, words: str) -> None:
    seen, told = bill({"EC2": Decimal("3.00"), "FSx": Decimal("0.5")}, Decimal(ours))
    assert seen == code and words in told and "3.50 USD" in told


def test_a_bill_that_is_not_there_yet_says_when_it_will_be() -> None:
    code, told = bill({}, Decimal(3))
    assert code == 75 and "24 hours" in told and "activated" in told
