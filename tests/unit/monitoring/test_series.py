"""Series come out of the kept text as Prometheus itself reads them, with it and without."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from urllib.parse import urlencode

import pytest

from infra.errors import PermanentError, UserError
from infra.folders import tools_dir
from infra.monitoring.prometheus import PROGRAMS, over_text, range_path
from infra.monitoring.selection import full_query, select, selection
from infra.monitoring.series import MetricSeries, lines, matrix, parse

BEGIN = 1_764_187_200.0
ODD = 'a"b\\c\nd, {x="y"} =~'
ROWS = [
    MetricSeries("bivouac_loss", {"node": "n0", "attempt": "1"}, [(BEGIN + 15 * k, 4.0 - k / 8) for k in range(20)]),
    MetricSeries("bivouac_loss", {"node": ODD, "attempt": "1"}, [(BEGIN + 15 * k, 1e-9 * k) for k in range(20)]),
    MetricSeries("bivouac_loss", {"node": "n0", "attempt": "2"}, [(BEGIN + 330, 2.0), (BEGIN + 345, -1.0)]),
    MetricSeries("bivouac_attempts_total", {}, [(BEGIN + 15 * k, 1.0 + (k > 9)) for k in range(20)]),
]


def text() -> Iterator[str]:
    for name in dict.fromkeys(row.name for row in ROWS):
        yield from lines(name, [row for row in ROWS if row.name == name])


@pytest.fixture(scope="module")
def prometheus() -> Iterator[Callable[[str], tuple[int, bytes]]]:
    with over_text(text(), {name: tools_dir() / name for name in PROGRAMS}) as get:
        yield get


def known(rows: list[MetricSeries]) -> dict[tuple[str, str], list[tuple[float, float]]]:
    return {(row.name, json.dumps(dict(row.labels), sort_keys=True)): list(row.points) for row in rows}


def test_what_is_written_is_what_prometheus_has(prometheus: Callable[[str], tuple[int, bytes]]) -> None:
    """Raw samples, which no step thins: an instant query of a range selector, read by this test alone."""
    question = urlencode({"query": '{__name__=~"bivouac_.+"}[1h]', "time": BEGIN + 3000})
    code, body = prometheus(f"/api/v1/query?{question}")
    answer = json.loads(body)
    assert code == 200, body
    there = {
        (row["metric"].pop("__name__"), json.dumps(row["metric"], sort_keys=True)): [
            (at, float(value)) for at, value in row["values"]
        ]
        for row in answer["data"]["result"]
    }
    assert there == known(ROWS)


def test_kept_text_is_read_back_whole() -> None:
    assert known(parse(text())) == known(ROWS)


def test_a_number_that_is_none_and_one_without_end_come_back() -> None:
    row = MetricSeries("bivouac_loss", {"node": "n"}, [(1.0, math.inf), (2.0, -math.inf), (3.0, math.nan)])
    (there,) = parse(lines("bivouac_loss", [row]))
    assert there.points[:2] == row.points[:2] and math.isnan(there.points[2][1])


@pytest.mark.parametrize("line", ["bivouac_loss{} 1", "bivouac_loss{} 1 2", "nonsense\n", "bivouac_loss{} x 2\n"])
def test_text_that_is_cut_or_foreign_is_refused(line: str) -> None:
    with pytest.raises(ValueError):
        parse([*text(), line])


QUERIES = [
    "bivouac_loss", 'bivouac_loss{node="n0"}', 'bivouac_loss{node!="n0"}', 'bivouac_loss{node=~"n.", attempt="2",}',
    'bivouac_loss{node!~"n.*"}', 'bivouac_loss{pod=""}', 'bivouac_loss{pod!=""}', "bivouac_attempts_total{}",
    "bivouac_absent",
]  # fmt: skip


@pytest.mark.parametrize("query", QUERIES)
def test_a_plain_selection_answers_as_prometheus_does(
    query: str, prometheus: Callable[[str], tuple[int, bytes]]
) -> None:
    begin, end = BEGIN + 30, BEGIN + 285
    code, body = prometheus(range_path(query, begin, end, 15))
    assert code == 200, body
    here = known(select(selection(query), text(), begin, end, 15))
    there = known(matrix(body))
    assert here == there


def test_a_longer_step_has_the_newest_sample_of_each() -> None:
    (row, *_) = select(selection('bivouac_loss{node="n0"}'), text(), BEGIN, BEGIN + 299, 60)
    assert [at - BEGIN for at, _ in row.points] == [45, 105, 165, 225, 285]


@pytest.mark.parametrize(
    "query", ["max(bivouac_loss)", "bivouac_loss[5m]", "bivouac_loss > 2", "bivouac_loss{node=}", "a or b", ""]
)
def test_what_needs_a_prometheus_is_refused_with_a_cure(query: str) -> None:
    with pytest.raises(UserError, match="promtool"):
        selection(query)


def test_a_regular_expression_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match="regular expression"):
        select(selection('bivouac_loss{node=~"("}'), text(), BEGIN, BEGIN + 60, 15)


def test_a_short_name_is_ours_and_all_else_stays() -> None:
    assert full_query('loss{node="n0"}') == 'bivouac_loss{node="n0"}' and full_query("step") == "bivouac_step"
    for query in ("bivouac_loss", "max(loss)", "up", "rate(step[1m])"):
        assert full_query(query) == query


def test_series_that_promtool_cannot_read_are_an_error_with_its_words() -> None:
    programs = {name: tools_dir() / name for name in PROGRAMS}
    with pytest.raises(PermanentError, match="promtool"), over_text(["bivouac_loss{ 1 2\n"], programs):
        pass
