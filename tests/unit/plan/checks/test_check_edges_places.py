"""Where each rule about account, network, nodes and storage begins to speak: what just passes, what just does not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from infra.plan.checks import capacity, check, failed, placement, services, shape_findings, storage
from infra.plan.checks.finding import Case, Level, error, one_line
from infra.plan.facts import Facts
from infra.spec.campaign import MAX_NAME, SpecError, load
from tests.tables import Table
from tests.unit.plan.checks.edges import cases, environment, levels, of, of_instance, told, unknown
from tests.unit.plan.checks.refused import DRIVER, FRESH, PRIVATE

TABLE = Table(__file__)


@pytest.fixture
def case(spec_file: Callable[..., Any]) -> Callable[..., Case]:
    return cases(spec_file)


# Names and places


def test_each_name_is_told_from_the_first_character_beyond_its_services_limit(case: Callable[..., Case]) -> None:
    """By AWS's and Kubernetes' documentation: EKS names 100, node groups 63, roles and schedules 64, host names 63."""
    limits = {
        "EKS cluster's": 100, "node group's": 63, "IAM role's": 64, "schedule's": 64, "placement group's": 255,
        "pod's host name's": 63,
    }  # fmt: skip
    base, first = case(), dict[str, int]()
    for length in range(MAX_NAME, 256):
        made = Case(base.spec.model_copy(update={"campaign": "c" * length}), base.facts, FRESH)
        drafts = list(placement.aws_name_length(made))
        assert ("is too long" in [draft.message for draft in drafts]) == (length > MAX_NAME)
        for draft in drafts:
            kind = next((kind for kind in limits if f"makes a {kind}" in draft.message), "")
            if kind and kind not in first:
                first[kind] = max(len(draft.seen) for draft in drafts if kind in draft.message)
                assert "name by 1" in draft.cure
    assert first == {kind: limit + 1 for kind, limit in limits.items()}
    assert list(placement.aws_name_length(base)) == []


@pytest.mark.parametrize(
    ("region", "zone", "fields"),
    [
        ("eu-north-1", "eu-north-1c", []),
        ("us-east", "us-east-1a", ["region"]), ("us-east-1", "us-east-1aa", ["zone"]),
        ("us-east-1", "us-east-1", ["zone"]), ("us-east-1", "us-east-2a", ["zone"]),
    ],
)  # fmt: skip
def test_a_zone_is_its_region_and_one_letter(
    case: Callable[..., Case], region: str, zone: str, fields: list[str]
) -> None:
    rule = placement.zone_in_region
    assert [field for _, field in told(rule, case({"region": region, "zone": zone}))] == fields
    assert told(rule, case({"second_zone": "us-east-1b"})) == []
    assert told(rule, case({"second_zone": "us-east-2b"})) == told(rule, case({"second_zone": "us-east-1a"}))


@pytest.mark.parametrize(
    ("cidr", "wrong"),
    [
        ("10.42.0.0/16", 0), ("10.42.0.0/20", 0), ("10.42.0.0/15", 1), ("10.42.0.0/21", 1), ("172.16.0.0/16", 0),
        ("172.20.0.0/16", 1), ("172.20.16.0/20", 1), ("172.21.0.0/16", 0), ("11.0.0.0/16", 1), ("10.42.0.1/16", 1),
        ("8.8.0.0/15", 2),
    ],
)  # fmt: skip
def test_a_network_is_private_of_a_size_that_can_be_cut_and_not_the_services(
    case: Callable[..., Case], cidr: str, wrong: int
) -> None:
    made = case()
    network = made.spec.network.model_copy(update={"cidr": cidr})
    made = Case(made.spec.model_copy(update={"network": network}), made.facts, FRESH)
    assert levels(placement.network_range, made) == ["error"] * wrong


def test_support_of_a_version_ends_on_a_day(case: Callable[..., Case]) -> None:
    """Its last day is still supported; 60 days before, or the deadline where that is longer, it is told."""

    def supported(until: date | None, today: date, deadline: str = "4h") -> list[str]:
        def bend(facts: Facts) -> Facts:
            support = facts.kubernetes.model_copy(update={"standard_until": {"1.36": until}, "as_of": date(2026, 8, 1)})
            return facts.model_copy(update={"kubernetes": support})

        made = case({"money.deadline": deadline}, facts=bend, today=today)
        return levels(placement.kubernetes_support, made)

    end = date(2026, 10, 1)
    assert supported(end, date(2026, 8, 2)) == []
    assert supported(end, date(2026, 8, 3)) == supported(end, end) == ["warning"]
    assert supported(end, date(2026, 10, 2)) == ["error"]
    assert supported(end, date(2026, 7, 3), "2160h") == [] and supported(end, date(2026, 7, 4), "2160h") == ["warning"]
    # 14 months of 30 days after 1 August 2026
    assert supported(None, date(2027, 9, 25)) == [] and supported(None, date(2027, 9, 26)) == ["info"]


def test_zones_account_and_base_are_told_only_where_they_were_looked_up(case: Callable[..., Case]) -> None:
    made = case(facts=of(zones=None, account=None, base=None, sold=None, reservation=None, quotas=()))
    for rule in (
        placement.usable_zones, placement.credentials_account, placement.base_image,
        capacity.zone_offers, capacity.reservation_room, capacity.service_quotas,
    ):  # fmt: skip
        assert told(rule, made) == []
    assert told(placement.credentials_account, case(facts=of(account="123456789012"))) == []


# Storage


@pytest.mark.parametrize(
    ("capacity_gib", "efa", "tier", "cure"),
    [
        (1200, False, 125, None), (2400, False, 125, None), (4800, False, 125, None), (1199, False, 125, "1200"),
        (1201, False, 125, "2400"), (3600, False, 125, "4800"), (4801, False, 125, "7200"),
        (38400, True, 125, None), (19200, True, 125, "38400"), (19200, True, 250, None), (9600, True, 250, "19200"),
        (9600, True, 500, None), (4800, True, 500, "9600"), (4800, True, 1000, None), (2400, True, 1000, "4800"),
    ],
)  # fmt: skip
def test_a_file_system_comes_in_steps(
    case: Callable[..., Case], capacity_gib: int, efa: bool, tier: int, cure: str | None
) -> None:
    shared = {"capacity_gib": capacity_gib, "efa": efa, "throughput_mbs_per_tib": tier}
    drafts = list(storage.lustre_capacity(case({"storage.shared": shared})))
    assert [draft.cure for draft in drafts] == ([f"write {cure}"] if cure else [])
    scratch = {**shared, "deployment": "SCRATCH_2", "throughput_mbs_per_tib": None, "capacity_gib": 2400}
    assert told(storage.lustre_capacity, case({"storage.shared": scratch})) == []


def test_throughput_and_metadata_are_sold_in_tiers(case: Callable[..., Case]) -> None:
    def wrong(rule: Any, **shared: Any) -> list[str]:
        return [draft.cure for draft in rule(case({"storage.shared": {"capacity_gib": 2400, **shared}}))]

    tier, iops = storage.lustre_throughput, storage.lustre_metadata
    assert not any(wrong(tier, throughput_mbs_per_tib=each) for each in (125, 250, 500, 1000))
    assert all(wrong(tier, throughput_mbs_per_tib=each) for each in (124, 126, 200, 2000))
    scratch = {"deployment": "SCRATCH_2"}
    assert not wrong(tier, **scratch) and not wrong(tier, **scratch, throughput_mbs_per_tib=200)
    assert wrong(tier, **scratch, throughput_mbs_per_tib=250)
    sold = (1500, 3000, 6000, 12000, 24000, 180000, 192000)
    assert all("or expect more" in " ".join(wrong(iops, metadata_iops=each)) for each in sold)
    for each, cure in ((1501, 3000), (1, 1500), (6001, 12000), (12001, 24000), (204000, 192000)):
        assert wrong(iops, metadata_iops=each) == [f"write {cure}, or automatic"]
    assert wrong(iops) == wrong(iops, metadata_iops="automatic") == []
    assert len(wrong(iops, **scratch, metadata_iops=1500)) == 1


def test_efa_reaches_the_file_system_from_so_many_nodes(case: Callable[..., Case]) -> None:
    rule, efa = storage.lustre_efa, {"storage.shared.efa": True, "nodes.instance_type": "p5.48xlarge"}
    assert levels(rule, case({**efa, "nodes.count": 1023})) == []  # and a spare one: 1,024
    assert levels(rule, case({**efa, "nodes.count": 1024})) == ["error"]
    assert levels(rule, case({"nodes.count": 1024})) == []
    assert levels(rule, case(efa, facts=of_instance(efa_interfaces=0))) == ["error"]
    assert levels(rule, case(efa, facts=of_instance(efa_interfaces=1))) == []
    assert levels(rule, case(efa, facts=unknown)) == []
    scratch = {"storage.shared": {"efa": True, "deployment": "SCRATCH_2", "throughput_mbs_per_tib": None}}
    assert levels(rule, case({**efa, **scratch}, facts=unknown)) == ["error"]


@pytest.mark.parametrize(("disks", "wrong"), [(3, ["error"]), (4, []), (8, [])])
def test_mirrored_disks_are_four(case: Callable[..., Case], disks: int, wrong: list[str]) -> None:
    rule, mirrored = storage.local_disk_layout, {"storage.local.layout": "RAID10"}
    assert levels(rule, case(mirrored, facts=of_instance(nvme_count=disks))) == wrong
    assert levels(rule, case(facts=of_instance(nvme_count=disks))) == levels(rule, case(mirrored, facts=unknown)) == []


# The ground


def test_a_private_door_needs_a_driver_inside(case: Callable[..., Case]) -> None:
    rule, outside = services.private_endpoint_access, environment(driver_outside=True)
    assert levels(rule, case(PRIVATE, facts=outside)) == ["error"]
    assert levels(rule, case({**PRIVATE, "network.driver_vpc": DRIVER}, facts=outside)) == []
    assert (
        levels(rule, case(PRIVATE, facts=environment(driver_outside=False))) == levels(rule, case(facts=outside)) == []
    )


@TABLE.cases
def test_an_archive_is_kept_for_whole_days(case: Callable[..., Case], kept: dict[str, str], wrong: list[str]) -> None:
    drafts = list(services.archive_retention(case({"storage.archive": kept})))
    assert [draft.cure for draft in drafts if draft.level is Level.ERROR] == wrong
    locked = [draft for draft in drafts if draft.level is Level.WARNING]
    assert len(locked) == ("lock_for" in kept)


def test_claims_need_a_kubernetes_and_nodes_that_know_them(case: Callable[..., Case]) -> None:
    rule, dra = services.efa_driver, {"addons.efa": "dra"}
    for version, known, count in (("1.35", True, 0), ("1.34", True, 1), ("1.34", False, 2), ("1.36", False, 1)):
        assert levels(rule, case({**dra, "kubernetes": version}, facts=environment(claims=known))) == ["error"] * count
    assert levels(rule, case({"kubernetes": "1.30"}, facts=environment(claims=False))) == []


def test_images_come_from_the_regions_own_registry(case: Callable[..., Case]) -> None:
    closed, here = {"network.egress": "endpoints"}, "123456789012.dkr.ecr.us-east-1.amazonaws.com/mirror"
    mirror, base, public = "addons.image_mirror", "image.base", environment(public_registries=True)

    def fields(changes: dict[str, Any], facts: Any = public) -> list[tuple[str, str]]:
        return told(services.image_registry, case(changes, facts=facts))

    assert fields({**closed, mirror: here}) == fields({}) == fields(closed, environment(public_registries=False)) == []
    assert fields(closed) == [("warning", "image_mirror")]
    assert fields({**closed, mirror: here.replace("us-east-1", "eu-west-1")}) == [("error", "image_mirror")]
    for image, wrong in (
        ("team/base:1", False), ("base:1", False), (f"{here}/base:1", False), ("nvcr.io/base:1", True),
        ("localhost:5000/base:1", True),
    ):  # fmt: skip
        assert fields({**closed, mirror: here, base: image}) == ([("error", "base")] if wrong else [])


def test_a_key_is_this_accounts_in_this_region(case: Callable[..., Case]) -> None:
    rule = services.encryption_key
    for key, wrong in (
        ("arn:aws:kms:us-east-1:123456789012:key/1", 0), ("arn:aws:kms:eu-west-1:123456789012:key/1", 1),
        ("arn:aws:kms:us-east-1:999999999999:key/1", 1),
    ):  # fmt: skip
        made = case({"encryption.customer_key": True, "encryption.key_arn": key})
        assert levels(rule, made) == ["error"] * wrong
    scratch = {"storage.shared": {"deployment": "SCRATCH_2", "throughput_mbs_per_tib": None}}
    assert levels(rule, case(scratch)) == []
    assert levels(rule, case({**scratch, "encryption.customer_key": True})) == ["error"]


def test_networks_that_meet_do_not_overlap(case: Callable[..., Case]) -> None:
    rule = services.endpoint_ranges  # ours is 10.42.0.0/16
    for cidr, wrong in (("10.43.0.0/16", 0), ("10.42.255.0/24", 1), ("10.0.0.0/8", 1), ("ten", 1)):
        made = case({**PRIVATE, "network.driver_vpc": {**DRIVER, "cidr": cidr}})
        assert levels(rule, made) == ["error"] * wrong
    allowed = {"network.api_allowed_cidrs": ["203.0.113.0/24", "ten", "203.0.113.9/24"]}
    assert [draft.seen for draft in rule(case(allowed))] == ["ten", "203.0.113.9/24"]


# What is told


def test_what_was_seen_is_one_line_of_a_bearable_length() -> None:
    assert one_line("a\nb\tc") == "a?b?c" and one_line("  ") == one_line("") == "nothing" and one_line(False) == "False"
    assert one_line("x" * 400) == "x" * 400
    long = one_line("x" * 401)
    assert len(long) == 400 and long == "x" * 397 + "..."
    assert error("f", "m", seen=7, cure="c").seen == "7"


def test_numbers_beyond_arithmetic_are_told_and_hide_nothing(
    spec_file: Any, case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    def overflows(_: Case) -> Any:
        raise OverflowError

    file = spec_file({"zone": "us-west-2a"})
    monkeypatch.setattr("infra.plan.checks.RULES", (overflows, placement.zone_in_region))
    found = check(file, case().facts, FRESH)
    assert {one.rule for one in found} == {"overflows", "zone-in-region"} and failed(found)
    assert not failed(tuple(one.model_copy(update={"level": Level.WARNING}) for one in found)) and not failed(())
    assert failed((found[0].model_copy(update={"level": Level.INFO}), found[1]))


def test_a_file_that_is_no_spec_is_told_by_its_lines(spec_file: Any) -> None:
    path = spec_file().path
    path.write_text(path.read_text().replace("count: 2", "count: none").replace("owner: newcomer", ""))
    with pytest.raises(SpecError) as refusal:
        load(path)
    found = shape_findings(refusal.value)
    lines = path.read_text().splitlines()
    placed = {one.field: lines[one.line - 1].strip() for one in found if one.field == "nodes.count"}
    assert placed == {"nodes.count": "count: none"} and failed(found)
    assert all(one.line >= 1 and one.level is Level.ERROR and one.rule == "shape" for one in found)
