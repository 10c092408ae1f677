"""Daly's higher-order interval against the exact optimum, and the bounds around it."""

from __future__ import annotations

import math

from hypothesis import assume, given
from hypothesis import strategies as st

from trainer.contract.cadence import MAX_OVERHEAD, MAX_WORK_AT_RISK_S, MIN_SAVES, choose, daly_period, efficiency

SAVES = st.floats(min_value=1e-3, max_value=300)
RATIOS = st.floats(min_value=1e-6, max_value=0.5)
"""Save / MTBF."""
DOWNTIMES = st.floats(min_value=0, max_value=3600)


def _exact_period(save_s: float, mtbf_s: float) -> float:
    """Golden-section search for the period of the best exact efficiency, which has one maximum."""
    low, high = save_s, save_s + 20 * math.sqrt(save_s * mtbf_s) + 20 * save_s
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(200):
        left, right = high - golden * (high - low), low + golden * (high - low)
        if efficiency(left, save_s, mtbf_s) < efficiency(right, save_s, mtbf_s):
            low = left
        else:
            high = right
    return (low + high) / 2


@given(save=SAVES, ratio=RATIOS)
def test_daly_loses_next_to_nothing_against_the_exact_optimum(save: float, ratio: float) -> None:
    mtbf = save / ratio
    best = efficiency(_exact_period(save, mtbf), save, mtbf)
    assert efficiency(daly_period(save, mtbf), save, mtbf) >= best * (1 - 1e-4)


@given(save=SAVES, ratio=st.floats(min_value=1e-6, max_value=0.02))
def test_daly_is_within_a_thousandth_of_the_exact_period(save: float, ratio: float) -> None:
    mtbf = save / ratio
    assert math.isclose(daly_period(save, mtbf), _exact_period(save, mtbf), rel_tol=1e-3)


def test_daly_beats_young_where_saving_is_dear() -> None:
    save, mtbf = 300.0, 3600.0
    young = math.sqrt(2 * mtbf * save) + save
    exact = _exact_period(save, mtbf)
    assert abs(daly_period(save, mtbf) - exact) < 10 < abs(young - exact)


@given(save=SAVES, ratio=RATIOS, downtime=DOWNTIMES, reload=DOWNTIMES)
def test_downtime_and_reload_lower_the_efficiency_and_do_not_move_its_optimum(
    save: float, ratio: float, downtime: float, reload: float
) -> None:
    mtbf = save / ratio
    periods = [daly_period(save, mtbf) * factor for factor in (0.5, 0.9, 1.0, 1.2, 2.0)]
    bare = [efficiency(period, save, mtbf) for period in periods]
    real = [efficiency(period, save, mtbf, downtime, reload) for period in periods]
    # (mu + D) in place of mu rescales all of them alike.
    assert all(0 <= x <= y * (1 + 1e-9) or y == 0 for x, y in zip(real, bare, strict=True) if y > 0)
    assume(max(real) > 1e-300)
    assert bare.index(max(bare)) == real.index(max(real))


@given(save=SAVES, mtbf=st.floats(min_value=1e-3, max_value=1e8))
def test_the_period_always_holds_the_save_and_some_work(save: float, mtbf: float) -> None:
    assert daly_period(save, mtbf) > save


@given(period=st.floats(min_value=1, max_value=1e9), save=SAVES, mtbf=st.floats(min_value=1e-3, max_value=1e9))
def test_efficiency_is_a_share_whatever_the_numbers(period: float, save: float, mtbf: float) -> None:
    assume(period > save)
    assert 0 <= efficiency(period, save, mtbf, downtime_s=mtbf, reload_s=mtbf * 1e6) <= 1


@given(
    step=st.floats(min_value=1e-3, max_value=600),
    steps=st.integers(min_value=1, max_value=10**7),
    stall=st.floats(min_value=1e-4, max_value=600),
    write=st.floats(min_value=0, max_value=3600),
    mtbf=st.floats(min_value=60, max_value=1e8),
)
def test_the_chosen_interval_respects_its_bounds(
    step: float, steps: int, stall: float, write: float, mtbf: float
) -> None:
    chosen = choose(step_s=step, steps=steps, stall_s=stall, write_s=write, mtbf_s=mtbf)
    assert 1 <= chosen.every_steps <= steps
    assert chosen.every_steps >= chosen.fewest_steps
    if chosen.fewest_steps < steps:
        assert chosen.every_steps * step >= write * (1 - 1e-9)
        assert stall <= MAX_OVERHEAD * chosen.every_steps * step * (1 + 1e-9)
    if chosen.every_steps > chosen.fewest_steps and chosen.every_steps > 1:
        assert chosen.every_steps * step <= MAX_WORK_AT_RISK_S
        assert chosen.every_steps * MIN_SAVES <= steps


def test_rarer_failures_mean_rarer_saves() -> None:
    chosen = [
        choose(step_s=1, steps=10**6, stall_s=0.5, write_s=2, mtbf_s=3600.0 * hours).every_steps
        for hours in (1, 4, 16, 64, 256, 1024)
    ]
    assert chosen == sorted(chosen) and len(set(chosen)) == len(chosen)


def test_the_reason_names_the_bound_that_decided() -> None:
    assert choose(step_s=1, steps=10**6, stall_s=0.5, write_s=2, mtbf_s=36000).bound == "daly"
    assert choose(step_s=1, steps=100, stall_s=0.1, write_s=2, mtbf_s=3.6e7).bound == "most"
    assert choose(step_s=1, steps=10**6, stall_s=5, write_s=2, mtbf_s=600).bound == "fewest"
