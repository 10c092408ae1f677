"""What a gang's reports together say: who is unfit, what is nobody's fault, and what is told once."""

from __future__ import annotations

import pytest

from infra.campaign import preflight
from infra.campaign.verdicts import fault_text, judge
from infra.cluster.fitness import NodeFacts
from tests.part import part
from trainer.contract import Expectation, HealthReport, Probe
from trainer.health import clocks


def report(node: str, *probes: Probe) -> HealthReport:
    return HealthReport(node=node, probes=probes)


def probe(name: str, ok: bool, seen: str = "x", looked: bool = True) -> Probe:
    return Probe(name=name, ok=ok, seen=seen, wanted="w", looked=looked)


FACTS = [part(NodeFacts, name=name, instance=f"i-{name}") for name in ("a", "b", "c")]


def test_a_fabric_failure_that_marks_every_node_replaces_the_one_with_a_bad_report() -> None:
    down = probe("fabric", False, "no route")
    seen = judge({
        "a": report("a", probe("ecc", True), down),
        "b": report("b", probe("ecc", False, "GPU 3 (0000:9b:00.0): 2 uncorrectable"), down),
        "c": report("c", probe("report", False, "exit code 137 without a report")),
    }, FACTS)  # fmt: skip
    assert [verdict["instance"] for verdict in seen.unfit] == ["i-b", "i-c"] and not seen.fabric and not seen.common
    assert "2 uncorrectable" in fault_text(seen.unfit[0], "p5") and "(profile p5)" in fault_text(seen.unfit[0], "p5")


def test_what_all_nodes_fail_alike_is_no_nodes_fault_and_dead_pods_are_not_alike() -> None:
    same = probe("version nccl", False, "2.27.7")
    both = judge({"a": report("a", same, probe("ecc", False, "GPU 1")), "b": report("b", same)}, FACTS)
    assert [one.name for one in both.common] == ["version nccl"]
    assert [verdict["node"] for verdict in both.unfit] == ["a"], "its own fault is still its own"
    dead, fit = probe("report", False, "nothing"), probe("ecc", True)
    assert len(judge({"a": report("a", dead), "b": report("b", dead), "c": report("c", fit)}, FACTS).unfit) == 2
    assert len(judge({"a": report("a", same)}, FACTS).unfit) == 1, "one node alone has nobody to be like"


def test_what_lies_between_nodes_blames_the_named_ones_and_not_the_one_that_looked() -> None:
    def between(*blamed_nodes: str) -> HealthReport:
        words = f"{len(blamed_nodes)} below another leaf"
        return report("a", probe("leaf", False, words).model_copy(update={"blamed_nodes": blamed_nodes}))

    others = {"b": report("b"), "c": report("c")}
    seen = judge({"a": between("c"), **others}, FACTS)
    assert [verdict["node"] for verdict in seen.unfit] == ["c"] and seen.fabric and not seen.common
    assert fault_text(seen.unfit[0], "p5").startswith("leaf: 1 below another leaf")
    for nobody in ((), ("c", "elsewhere")):
        seen = judge({"a": between(*nobody), **others}, FACTS)
        assert not seen.unfit and not seen.fabric and seen.failed_shared_names == {"leaf"}
    assert judge({"a": between("a", "b", "c"), **others}, FACTS).common, "what all have is no node's"


@pytest.mark.parametrize("wanted", [True, False])
def test_a_leaf_that_the_spec_wants_and_nobody_could_look_at_is_not_taken_for_given(wanted: bool) -> None:
    seen = judge({"a": report("a", probe("infiniband_fabric", False, looked=False)), "b": report("b")}, FACTS)
    expectation = part(Expectation, one_leaf=wanted, dcgm_level=None)
    assert bool(preflight._missing_diagnostics(seen, expectation)) is wanted


@pytest.mark.parametrize("peer", ["sick", "not placed"])
def test_a_node_that_its_peers_never_met_is_replaced_before_a_look_is_missed(peer: str) -> None:
    unmet = (probe("infiniband_fabric", False, looked=False), probe("fabric", False, "timed out"))
    died = {"b": report("b", probe("report", False, "OOMKilled"))} if peer == "sick" else {}
    seen = judge({"a": report("a", *unmet), **died}, FACTS, [] if died else [waiting(seen="Unschedulable")])
    assert [verdict["node"] for verdict in seen.unfit] == list(died) and bool(seen.alone) == (not died)
    assert not preflight._missing_diagnostics(seen, part(Expectation, one_leaf=True, dcgm_level=None))


def waiting(name: str = "start", seen: str = "ImagePullBackOff: 403 Forbidden") -> Probe:
    return probe(name, False, seen)


@pytest.mark.parametrize("bad", [1, 2, 4])
def test_pods_that_do_not_start_blame_their_node_only_where_it_is_the_only_one(bad: int) -> None:
    met = probe("fabric", False, "the others did not come")
    reports = {f"node-{n}": report(f"node-{n}", waiting() if n < bad else met) for n in range(4)}
    seen = judge(reports, FACTS)
    assert [one["node"] for one in seen.unfit] == (["node-0"] if bad == 1 else [])
    assert len(seen.stuck) == (0 if bad == 1 else bad) and (seen.alone is not None) == (bad == 1)
    assert all(one.seen.startswith("node-") and "403" in one.seen for one in seen.stuck)


def test_a_pod_that_hangs_and_one_that_no_node_took_count_as_those_that_did_not_start() -> None:
    fit = report("a", probe("ecc", True))
    hangs = report("b", waiting("answer", "still runs"))
    assert [one["node"] for one in judge({"a": fit, "b": hangs}, FACTS).unfit] == ["b"]
    nowhere = waiting(seen="Unschedulable: Insufficient vpc.amazonaws.com/efa")
    both = judge({"a": fit, "b": hangs}, FACTS, [nowhere])
    assert not both.unfit and len(both.stuck) == 2
    lone = judge({"a": fit}, FACTS, [nowhere])
    assert not lone.unfit and not lone.stuck and lone.alone == nowhere, "no node is its"


def test_nobody_is_blamed_where_no_pod_reports_or_the_gang_never_started() -> None:
    dead = probe("report", False, "exit code 1 without a report; ModuleNotFoundError")
    mixed = {"a": report("a", dead), "b": report("b", waiting()), "c": report("c", dead)}
    seen = judge(mixed, FACTS)
    assert not seen.unfit and len(seen.stuck) == 3 and seen.alone is None
    single = judge({"a": report("a", waiting())}, FACTS)
    assert not single.unfit and len(single.stuck) == 1
    assert len(judge({"a": report("a", dead)}, FACTS).unfit) == 1


def test_what_could_not_be_seen_is_told_once_and_replaces_nobody() -> None:
    blind = probe("xid", False, "not permitted", looked=False)
    seen = judge({"a": report("a", blind), "b": report("b", blind)}, FACTS)
    assert not seen.unfit and [one.name for one in seen.blind] == ["xid"]


def test_of_eight_nodes_whose_first_has_a_wrong_clock_only_that_one_is_replaced() -> None:
    """AWS's `Date` counts whole seconds, so that it cannot see 0.6 s, and all others differ from the first."""
    names = [f"node-{number}" for number in range(8)]
    mine, measured = [0.6, *[0.0] * 7], [0.0, *(-0.6 + number / 1000 for number in range(7))]
    seen = judge({
        name: report(name, clocks.date_probe(100.3 + off, 100.35 + off, 100.0, 0.1),
                     clocks.skew_probe(me, lambda: names, measured, 0.1))
        for me, (name, off) in enumerate(zip(names, mine, strict=True))
    }, FACTS)  # fmt: skip
    assert [verdict["node"] for verdict in seen.unfit] == ["node-0"] and not seen.common
    assert "+0.597, wanted within 0.1 of the gang's median" in fault_text(seen.unfit[0], "p5")


@pytest.mark.parametrize("off", [[0.0, -0.6], [0.0, 0.0, 0.6, 0.6], [0.0, 0.4, 0.8]])
def test_where_no_majority_of_the_clocks_agrees_nobody_is_blamed_and_both_ends_are_named(off: list[float]) -> None:
    names = ["a", "b", "c", "d"][: len(off)]
    seen = judge(
        {name: report(name, clocks.skew_probe(me, lambda: names, off, 0.1)) for me, name in enumerate(names)}, FACTS
    )
    (told,) = seen.blind
    assert not seen.unfit and f"{names[off.index(max(off))]} is " in told.seen and "ahead of" in told.seen, told
