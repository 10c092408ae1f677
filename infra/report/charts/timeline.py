"""The timeline: one row per stage, one per attempt, one for the paid time of GPU nodes."""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from infra.console.words import clock
from infra.report.charts.svg import WIDTH, Scale, drawing, line, rect, tag, text, text_width, time_label, time_ticks
from infra.report.model import AttemptTime, Mark, Report, StageTime

LEFT, RIGHT, ROW, BAR, LANE = 124.0, 24.0, 27.0, 15.0, 18.0
MOST_ROWS, MOST_WORDS, MOST_LANES = 12, 5, 4
"""With more attempts all share a row; with more interruptions only numbers are shown, in so many lanes."""
_ENDINGS = {"finished": "", "failed": ", failed", "cut off": ", its driver went away", "running": ", still running"}


def timeline(report: Report) -> Markup:
    stages = {row.stage: [other for other in report.stages if other.stage == row.stage] for row in report.stages}
    end = max([row.ended_s for row in report.stages] + [row.ended_s for row in report.attempts] + [1.0])
    across = Scale(0, end, LEFT, WIDTH - RIGHT)
    marks = _numbered(report)
    lanes = _lanes(marks, across)
    top = LANE * (min(max(lanes, default=-1) + 1, MOST_LANES)) + 8
    packed = len(report.attempts) > MOST_ROWS
    bottom = top + ROW * (len(stages) + (1 if packed else len(report.attempts)) + bool(report.gpu_up))
    parts = [*_axis(across, end, top, bottom)]
    y = top
    for index, (stage, runs) in enumerate(stages.items()):
        parts += [_band(index, y), text(LEFT - 12, y + 18, stage, "row", "end"), *_stage(runs, across, y)]
        y += ROW
        if stage == "supervise":
            for row in report.attempts:
                parts += _attempt(row, report, across, y, told=not packed)
                if not packed:
                    parts.append(text(LEFT - 12, y + 18, f"attempt {row.attempt}", "row sub", "end"))
                    y += ROW
            if packed:
                parts.append(text(LEFT - 12, y + 18, f"{len(report.attempts)} attempts", "row sub", "end"))
                y += ROW
    if report.gpu_up:
        parts.append(text(LEFT - 12, y + 18, "GPU nodes paid", "row sub", "end"))
        for begin, until in report.gpu_up:
            title = f"GPU nodes paid for {clock(until - begin)}"
            parts.append(rect(across(begin), y + 12, across(until) - across(begin), 5, "gpu", title))
    for mark, lane in zip(marks, lanes, strict=True):
        parts += _mark(mark, across(mark.at_s), LANE * min(lane, MOST_LANES), bottom, told=lane < MOST_LANES)
    label = (
        f"Timeline: {len(stages)} stages, {len(report.attempts)} attempts, {len(report.interruptions)} interruptions"
    )
    return drawing(bottom + 42, f"{label} in {clock(end)}", parts)


def _numbered(report: Report) -> list[Mark]:
    """Return the interruptions as marks with numbers, and with words if they are few."""
    few = len(report.interruptions) <= MOST_WORDS
    return [
        Mark(at_s=row.at_s, kind=row.cause.split()[0], label=f"{row.number} {row.cause}" if few else str(row.number))
        for row in report.interruptions
    ]


def _band(index: int, y: float) -> Markup:
    return rect(0, y, WIDTH, ROW, "band" if index % 2 == 0 else "band none")


def _axis(across: Scale, end: float, top: float, bottom: float) -> Iterator[Markup]:
    for value in time_ticks(end):
        yield line(across(value), top, across(value), bottom, "grid")
        yield text(across(value), bottom + 18, time_label(value, end), "tick", "middle")
    yield text((LEFT + WIDTH - RIGHT) / 2, bottom + 36, "time since the first stage began", "axisname", "middle")


def _stage(runs: list[StageTime], across: Scale, y: float) -> Iterator[Markup]:
    for run in runs:
        kind = {"failed": "failed", "cut off": "cut", "running": "open"}.get(run.ending, "")
        title = f"{run.stage}: {clock(run.seconds)}{_ENDINGS[run.ending]}"
        width = across(run.ended_s) - across(run.begun_s)
        yield rect(across(run.begun_s), y + 6, width, BAR, f"stage {run.stage} {kind}".strip(), title, 2.0)
    yield _label(clock(sum(run.seconds for run in runs)), across(runs[0].begun_s), across(runs[-1].ended_s), y)


def _attempt(row: AttemptTime, report: Report, across: Scale, y: float, *, told: bool) -> Iterator[Markup]:
    """Draw startup, repeated steps, new steps, and after a failure the time to the next launch."""
    first = row.first_step_s if row.first_step_s is not None else row.ended_s
    again = row.redone_s if row.redone_s is not None else first
    last = row.last_step_s if row.last_step_s is not None else first
    over = row.next_launch_s if row.next_launch_s is not None else row.ended_s
    for begin, until, cause, what in (
        (row.launched_s, first, "startup", "startup and restore"),
        (first, again, "redo", f"{row.repeated} steps run again"),
        (again, last, "useful", f"{row.steps - row.repeated} new steps, to step {row.last_step:,}"),
        (last, over, "replace", "detect and replace") if row.failure else (last, over, "saving", "last save"),
    ):
        if until > begin:
            title = f"attempt {row.attempt}, {what}: {clock(until - begin)}"
            yield rect(across(begin), y + 6, across(until) - across(begin), BAR, f"cause {cause}", title)
    for mark in report.marks:
        if mark.kind == "refused" and row.launched_s <= mark.at_s <= over:
            x, middle = across(mark.at_s), y + 6 + BAR / 2
            diamond = f"M{x:.1f} {middle - 6:.1f}l6 6l-6 6l-6 -6z"
            yield tag("path", tag("title", mark.label), d=diamond, class_="diamond")
    if told:
        reached = f"steps {row.from_step + 1:,} to {row.last_step:,}" if row.steps else "no step"
        yield _label(reached, across(row.launched_s), across(over), y)


def _label(content: str, begin: float, end: float, y: float) -> Markup:
    """Place the label beside the bar if there is room, else at its end."""
    if end + 6 + text_width(content) <= WIDTH:
        return text(end + 6, y + 18, content, "value")
    if begin - 6 - text_width(content) >= LEFT:
        return text(begin - 6, y + 18, content, "value", "end")
    return text(end - 7, y + 18, content, "value inside", "end")


def _lanes(marks: list[Mark], across: Scale) -> list[int]:
    """Return for each mark the lowest lane in which its label touches no other."""
    taken: list[float] = []
    found = []
    for mark in marks:
        begin = _label_begin(mark, across(mark.at_s))
        lane = next((index for index, until in enumerate(taken) if until + 4 < begin), len(taken))
        until = begin + text_width(mark.label) + 8
        taken[lane:] = [until, *taken[lane + 1 :]]
        found.append(lane)
    return found


def _label_begin(mark: Mark, x: float) -> float:
    return min(x + 4, WIDTH - text_width(mark.label) - 4)


def _mark(mark: Mark, x: float, y: float, bottom: float, *, told: bool) -> Iterator[Markup]:
    begin = _label_begin(mark, x)
    kind = "quiet" if mark.kind in ("driver",) else "loud"
    yield line(x, y + 8 if begin > x else y + 17, x, bottom, f"mark {kind}")
    if told:
        yield text(begin, y + 13, mark.label, f"marktext {kind}")
