"""The certificate against what AWS itself still shows: the tagging service, Resource Explorer, and Cost Explorer.

`python -m tests.aws.comparison REPORT` asks Cost Explorer again later: AWS's bill is up to a day behind.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

TAG = "bivouac:campaign"
LISTED_S = 900.0
"""Time for which gone resources are still listed with their tags."""
MORE_THAN_PLANNED = Decimal("1.25")
"""AWS's bill by the tag, over our own account of it, from which on the two disagree."""
Ask = Callable[..., tuple[Any, str]]
"""Words of `aws` -> its answer, or None and why there is none."""
_ENDED = ("shutting-down", "terminated")


@dataclass(frozen=True)
class Seen:
    """What one service shows of a campaign."""

    service: str
    shown: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    """Shown by their tags, but ended by the word of their own service."""
    could_not_look: str = ""

    def __str__(self) -> str:
        if self.could_not_look:
            return f"{self.service}: could not look: {self.could_not_look}"
        ended = f" ({len(self.ended)} more have ended and are listed for a while)" if self.ended else ""
        return f"{self.service}: {', '.join(self.shown) or 'nothing of the campaign'}{ended}"


def left_over(ask: Ask, campaign: str, patience_s: float = 0.0) -> tuple[Seen, Seen]:
    """Return what the tagging service and Resource Explorer show of a campaign after its teardown. Both list what is
    gone for a while: so they are asked until they show nothing, or `patience_s` is over."""
    until = time.monotonic() + patience_s
    while True:
        tagged = _seen("tagging service", ask, campaign, _by_tag)
        found = _seen("Resource Explorer", ask, campaign, _by_search)
        if not (tagged.shown or found.shown) or time.monotonic() >= until:
            return tagged, found
        time.sleep(5.0)


def disagreements(certificate: dict[str, Any], seen: tuple[Seen, ...]) -> list[str]:
    """Return what AWS shows though the certificate neither found nor kept it."""
    text = json.dumps([certificate["looks"], certificate["kept"], certificate.get("suspects", ())])
    return [f"{one.service} shows {arn}" for one in seen for arn in one.shown if arn.rpartition("/")[2] not in text]


def costs(ask: Ask, campaign: str, begin: date, end: date) -> tuple[dict[str, Decimal], str]:
    """Return USD by service that Cost Explorer counts for the campaign's tag, or why it does not say. A question costs
    0.01 USD."""
    found = dict[str, Decimal]()
    page: tuple[str, ...] = ()
    tagged = {"Tags": {"Key": TAG, "Values": [campaign]}}
    while True:
        told, refused = ask(
            "ce", "get-cost-and-usage", "--granularity", "DAILY", "--metrics", "UnblendedCost",
            "--time-period", f"Start={begin},End={end}", "--filter", json.dumps(tagged),
            "--group-by", "Type=DIMENSION,Key=SERVICE", *page,
        )  # fmt: skip
        if told is None:
            return {}, refused
        for day in told.get("ResultsByTime", ()):
            for group in day["Groups"]:
                usd = Decimal(group["Metrics"]["UnblendedCost"]["Amount"])
                found[group["Keys"][0]] = found.get(group["Keys"][0], Decimal(0)) + usd
        if not told.get("NextPageToken"):
            return {service: usd for service, usd in found.items() if usd}, ""
        page = ("--next-page-token", told["NextPageToken"])


def bill(found: dict[str, Decimal], ours: Decimal) -> tuple[int, str]:
    """Compare AWS's bill with ours. Exit code 0; 1 if AWS counts clearly more; 75 if it has nothing yet."""
    if not found:
        return 75, (
            "Cost Explorer has nothing of the campaign yet: it is up to 24 hours behind, and counts only what was used "
            f"after the tag {TAG} was activated in the account's bills"
        )
    lines = [f"  {usd:8.2f} USD  {service}" for service, usd in sorted(found.items(), key=lambda row: -row[1])]
    total = sum(found.values())
    word = "more than we count" if total > ours * MORE_THAN_PLANNED else "no more than we count"
    lines.append(f"  {total:8.2f} USD  by Cost Explorer, {word}: {ours:.2f} USD in the campaign's report")
    return int(total > ours * MORE_THAN_PLANNED), "\n".join(lines)


def _seen(service: str, ask: Ask, campaign: str, look: Callable[[Ask, str], tuple[list[str] | None, str]]) -> Seen:
    arns, refused = look(ask, campaign)
    if arns is None:
        return Seen(service, could_not_look=refused)
    ended = tuple(arn for arn in arns if _has_ended(ask, arn))
    return Seen(service, tuple(arn for arn in arns if arn not in ended), ended)


def _by_tag(ask: Ask, campaign: str) -> tuple[list[str] | None, str]:
    told, refused = ask("resourcegroupstaggingapi", "get-resources", "--tag-filters", f"Key={TAG},Values={campaign}")
    return None if told is None else [one["ResourceARN"] for one in told["ResourceTagMappingList"]], refused


def _by_search(ask: Ask, campaign: str) -> tuple[list[str] | None, str]:
    told, refused = ask("resource-explorer-2", "search", "--query-string", f"tag:{TAG}={campaign}")
    return None if told is None else [resource["Arn"] for resource in told["Resources"]], refused


def _has_ended(ask: Ask, arn: str) -> bool:
    """EC2 shows the tags of an instance for an hour after its end."""
    kind, _, instance = arn.rpartition(":")[2].partition("/")
    if kind != "instance":
        return False
    told, refused = ask("ec2", "describe-instances", "--instance-ids", instance)
    if told is None:
        return "InvalidInstanceID.NotFound" in refused
    return all(instance["State"]["Name"] in _ENDED for group in told["Reservations"] for instance in group["Instances"])


def _plain(region: str) -> Ask:
    def ask(*words: str) -> tuple[Any, str]:
        done = subprocess.run(["aws", "--region", region, *words, "--output", "json"], capture_output=True, text=True)
        return (None, done.stderr.strip()) if done.returncode else (json.loads(done.stdout or "{}"), "")

    return ask


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Compare a campaign's report with Cost Explorer; asking costs 0.01 USD."
    )
    parser.add_argument("report", type=Path, help="results/ACCOUNT-REGION/NAME/report.json")
    parser.add_argument("--region", default="us-east-1")
    options = parser.parse_args()
    report = json.loads(options.report.read_text())
    begin, end = (datetime.fromisoformat(report[name]).date() for name in ("begun_at", "made_at"))
    # The end is exclusive.
    found, refused = costs(_plain(options.region), report["campaign"], begin, end + timedelta(days=1))
    code, words = (1, refused) if refused else bill(found, Decimal(str(report["money"]["total_usd"])))
    print(words)
    return code


if __name__ == "__main__":
    sys.exit(main())
