"""A benchmark fails where the medians differ by more than the runs do, and a wide spread decides nothing."""

from __future__ import annotations

import pytest

from tests.bench.parts.verdict import Verdict, judge, spread


@pytest.mark.parametrize(
    ("ours", "peer", "at_least", "outcome"),
    [
        ((1.0, 1.01, 0.99), (1.0, 1.0, 1.0), False, "kept"),
        ((1.3, 1.31, 1.29), (1.0, 1.0, 1.0), False, "missed"),
        # 1.25 is above 1.2, and the runs lie 0.1 to either side
        ((1.15, 1.25, 1.35), (1.0, 1.0, 1.0), False, "undecided"),
        # of ours nothing varies, of the peer half as much as 1.2 x 0.05
        ((1.25, 1.25, 1.25), (0.95, 1.0, 1.05), False, "undecided"),
        ((1.1, 1.1, 1.1), (1.0, 1.0, 1.0), True, "missed"),
        ((1.4, 1.4, 1.4), (1.0, 1.0, 1.0), True, "kept"),
        # a spread of 0.7 beside a limit of 1.2 clears nobody either
        ((0.3, 1.0, 1.7), (1.0, 1.0, 1.0), False, "undecided"),
    ],
)
def test_the_outcome_weighs_the_gap_between_medians_against_the_spread(
    ours: tuple[float, ...], peer: tuple[float, ...], at_least: bool, outcome: str
) -> None:
    assert Verdict("save", ours, 1.2, "copy", peer, at_least=at_least).outcome == outcome


def test_a_limit_without_a_peer_is_one_in_the_figures_own_unit() -> None:
    assert [Verdict("help", runs, 0.4).outcome for runs in ((0.3, 0.31), (0.5, 0.51), (0.38, 0.48))] == [
        "kept", "missed", "undecided",
    ]  # fmt: skip


def test_an_outlier_among_many_runs_does_not_widen_the_spread() -> None:
    # quartiles of 1, 2, 3, 4, 5 are 2 and 4; with 100 in place of 5 they are the same
    assert spread([1, 2, 3, 4, 5]) == spread([1, 2, 3, 4, 100]) == 1
    assert spread([1.0]) == 0 and spread([1.0, 2.0]) == 0.5


def test_a_verdict_prints_limit_peer_and_spread_and_only_a_miss_fails(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = Verdict("save", (1.0, 1.1, 0.9), 1.2, "bare copy", (1.0, 1.0, 1.0))
    assert judge(verdict) == 0
    line = capsys.readouterr().out.splitlines()[0]
    assert "1 s (0.9 to 1.1, 3 runs, spread 0.1)" in line and "bare copy 1 s" in line
    assert line.endswith("1 of it; limit at most 1.2: kept")
    missed, chance = Verdict("help", (0.5, 0.5), 0.4), Verdict("help", (0.3, 0.6), 0.4)
    assert (judge(verdict, missed), judge(verdict, chance)) == (1, 0)
