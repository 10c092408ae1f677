"""The timeline: one row per stage, one per attempt, one for the paid time of GPU nodes."""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from infra.console.words import clock
from infra.report.charts.svg import WIDTH, Scale, drawing, line, rect, tag, text, text_width, time_label, time_ticks
from infra.report.model import AttemptTime, Mark, Report, StageRun

LEFT, RIGHT, ROW, BAR, LANE = 124.0, 24.0, 27.0, 15.0, 18.0
MOST_ROWS, MOST_WORDS, MOST_LANES = 12, 5, 4
"""With more attempts all share a row; with more interruptions only numbers are shown, in so many lanes."""
_ENDINGS = {"finished": "", "failed": ", failed", "cut off": ", its driver went away", "running": ", still running"}


def timeline(report: Report) -> Markup:
    stages = {row.stage: [run for run in report.stages if run.stage == row.stage] for row in report.stages}
    end = max([row.ended_s for row in report.stages] + [row.ended_s for row in report.attempts] + [1.0])
    x_axis = Scale(0, end, LEFT, WIDTH - RIGHT)
    marks = _marks_of(report)
    lanes = _lanes(marks, x_axis)
    top = LANE * (min(max(lanes, default=-1) + 1, MOST_LANES)) + 8
    one_row = len(report.attempts) > MOST_ROWS
    bottom = top + ROW * (len(stages) + (1 if one_row else len(report.attempts)) + bool(report.gpu_up))
    parts = [*_axis(x_axis, end, top, bottom)]
    y = top
    for index, (stage, runs) in enumerate(stages.items()):
        parts += [_band(index, y), text(LEFT - 12, y + 18, stage, "row", "end"), *_stage(runs, x_axis, y)]
        y += ROW
        if stage == "supervise":
            for row in report.attempts:
                parts += _attempt(row, report, x_axis, y, with_label=not one_row)
                if not one_row:
                    parts.append(text(LEFT - 12, y + 18, f"attempt {row.attempt}", "row sub", "end"))
                    y += ROW
            if one_row:
                parts.append(text(LEFT - 12, y + 18, f"{len(report.attempts)} attempts", "row sub", "end"))
                y += ROW
    if report.gpu_up:
        parts.append(text(LEFT - 12, y + 18, "GPU nodes paid", "row sub", "end"))
        for begin, stop in report.gpu_up:
            title = f"GPU nodes paid for {clock(stop - begin)}"
            parts.append(rect(x_axis(begin), y + 12, x_axis(stop) - x_axis(begin), 5, "gpu", title))
    for mark, lane in zip(marks, lanes, strict=True):
        parts += _mark(mark, x_axis(mark.at_s), LANE * min(lane, MOST_LANES), bottom, with_label=lane < MOST_LANES)
    label = (
        f"Timeline: {len(stages)} stages, {len(report.attempts)} attempts, {len(report.interruptions)} interruptions"
    )
    return drawing(bottom + 42, f"{label} in {clock(end)}", parts)


def _marks_of(report: Report) -> list[Mark]:
    """Return the interruptions as marks with numbers, and with words if they are few."""
    sparse = len(report.interruptions) <= MOST_WORDS
    return [
        Mark(at_s=row.at_s, kind=row.cause.split()[0], label=f"{row.number} {row.cause}" if sparse else str(row.number))
        for row in report.interruptions
    ]


def _band(index: int, y: float) -> Markup:
    return rect(0, y, WIDTH, ROW, "band" if index % 2 == 0 else "band none")


def _axis(x_axis: Scale, end: float, top: float, bottom: float) -> Iterator[Markup]:
    for value in time_ticks(end):
        yield line(x_axis(value), top, x_axis(value), bottom, "grid")
        yield text(x_axis(value), bottom + 18, time_label(value, end), "tick", "middle")
    yield text((LEFT + WIDTH - RIGHT) / 2, bottom + 36, "time since the first stage began", "axisname", "middle")


def _stage(runs: list[StageRun], x_axis: Scale, y: float) -> Iterator[Markup]:
    for run in runs:
        kind = {"failed": "failed", "cut off": "cut", "running": "open"}.get(run.ending, "")
        title = f"{run.stage}: {clock(run.seconds)}{_ENDINGS[run.ending]}"
        width = x_axis(run.ended_s) - x_axis(run.begun_s)
        yield rect(x_axis(run.begun_s), y + 6, width, BAR, f"stage {run.stage} {kind}".strip(), title, 2.0)
    yield _label(clock(sum(run.seconds for run in runs)), x_axis(runs[0].begun_s), x_axis(runs[-1].ended_s), y)


def _attempt(row: AttemptTime, report: Report, x_axis: Scale, y: float, *, with_label: bool) -> Iterator[Markup]:
    """Draw startup, repeated steps, new steps, and after a failure the time to the next launch."""
    start_end = row.first_step_s if row.first_step_s is not None else row.ended_s
    redo_end = row.redone_s if row.redone_s is not None else start_end
    steps_end = row.last_step_s if row.last_step_s is not None else start_end
    end = row.next_launch_s if row.next_launch_s is not None else row.ended_s
    for begin, stop, cause, work in (
        (row.launched_s, start_end, "startup", "startup and restore"),
        (start_end, redo_end, "redo", f"{row.repeated} steps run again"),
        (redo_end, steps_end, "useful", f"{row.steps - row.repeated} new steps, to step {row.last_step:,}"),
        (steps_end, end, "replace", "detect and replace") if row.failure else (steps_end, end, "saving", "last save"),
    ):
        if stop > begin:
            title = f"attempt {row.attempt}, {work}: {clock(stop - begin)}"
            yield rect(x_axis(begin), y + 6, x_axis(stop) - x_axis(begin), BAR, f"cause {cause}", title)
    for mark in report.marks:
        if mark.kind == "refused" and row.launched_s <= mark.at_s <= end:
            x, middle = x_axis(mark.at_s), y + 6 + BAR / 2
            diamond = f"M{x:.1f} {middle - 6:.1f}l6 6l-6 6l-6 -6z"
            yield tag("path", tag("title", mark.label), d=diamond, class_="diamond")
    if with_label:
        steps_text = f"steps {row.from_step + 1:,} to {row.last_step:,}" if row.steps else "no step"
        yield _label(steps_text, x_axis(row.launched_s), x_axis(end), y)


def _label(content: str, begin: float, end: float, y: float) -> Markup:
    """Place the label beside the bar if there is room, else at its end."""
    if end + 6 + text_width(content) <= WIDTH:
        return text(end + 6, y + 18, content, "value")
    if begin - 6 - text_width(content) >= LEFT:
        return text(begin - 6, y + 18, content, "value", "end")
    return text(end - 7, y + 18, content, "value inside", "end")


def _lanes(marks: list[Mark], x_axis: Scale) -> list[int]:
    """Return for each mark the lowest lane in which its label touches no other."""
    lane_ends: list[float] = []
    lanes = []
    for mark in marks:
        begin = _label_begin(mark, x_axis(mark.at_s))
        lane = next((index for index, end in enumerate(lane_ends) if end + 4 < begin), len(lane_ends))
        end = begin + text_width(mark.label) + 8
        lane_ends[lane:] = [end, *lane_ends[lane + 1 :]]
        lanes.append(lane)
    return lanes


def _label_begin(mark: Mark, x: float) -> float:
    return min(x + 4, WIDTH - text_width(mark.label) - 4)


def _mark(mark: Mark, x: float, y: float, bottom: float, *, with_label: bool) -> Iterator[Markup]:
    begin = _label_begin(mark, x)
    kind = "quiet" if mark.kind in ("driver",) else "loud"
    yield line(x, y + 8 if begin > x else y + 17, x, bottom, f"mark {kind}")
    if with_label:
        yield text(begin, y + 13, mark.label, f"marktext {kind}")
