"""Loss charts: attempts over the step axis, repeated steps drawn twice, the unigram model for comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from infra.report.charts.svg import WIDTH, Scale, drawing, line, rect, tag, text, text_width, ticks
from infra.report.model import Evaluated, Losses, LossPoint, Report, Training

LEFT, RIGHT, TOP = 46.0, 20.0, 24.0
MOST_RESTARTS = 4
MOST_LANES = 9
MOST_CIRCLES = 24
MOST_SENTENCES = 6
"""With more restarts each is a tick on the axis, and its sentence the tick's title."""
AROUND = 5
"""Steps shown before and after the repeated ones."""


def colour(attempt: int) -> str:
    return f"run{(attempt - 1) % 5 + 1}"


def loss_curve(report: Report) -> Markup:
    """Return the chart; empty if nothing was trained."""
    training = report.training
    points = [point for series in training.losses for point in series.points]
    if not points:
        return Markup("")
    bottom = 340.0
    values = [point.loss for point in points] + [row.loss for row in training.evaluations]
    across = Scale(0, max(point.step for point in points), LEFT, WIDTH - RIGHT)
    values += [training.unigram_loss] if training.unigram_loss is not None else []
    down = _down(values, TOP, bottom)
    parts = [*_axes(across, down, bottom, "loss, nats per token")]
    parts += _repeated_bands(training.losses, across, bottom)
    if training.unigram_loss is not None:
        y = down(training.unigram_loss)
        parts.append(line(LEFT, y, WIDTH - RIGHT, y, "unigram"))
        label = f"unigram model of the data: {training.unigram_loss:.3f}"
        parts.append(text(WIDTH - RIGHT, y - 7, label, "unigramtext", "end"))
    parts += _halos(training.losses, across, down)
    parts += [_path(series.points, across, down, f"curve {colour(series.attempt)}") for series in training.losses]
    parts += _restart_lines(training.losses, across, bottom)
    parts += _evaluations(training.evaluations, across, down)
    return drawing(bottom + 42, "Training loss over steps, by attempt", parts)


def norm_curve(report: Report) -> Markup:
    """Return the chart of the gradients' norms, in powers of ten; empty if none was logged."""
    series = [
        row.model_copy(update={"points": tuple(p.model_copy(update={"loss": math.log10(p.loss)}) for p in positive)})
        for row in report.training.norms
        if (positive := [point for point in row.points if point.loss > 0])
    ]
    points = [point for row in series for point in row.points]
    if not points:
        return Markup("")
    bottom = 190.0
    across = Scale(0, max(point.step for point in points), LEFT, WIDTH - RIGHT)
    down = _down([point.loss for point in points], TOP, bottom)
    parts = [*_axes(across, down, bottom, "log10 of the norm")]
    parts += [_path(row.points, across, down, f"curve {colour(row.attempt)}") for row in series]
    for alarm in report.training.alarms:
        title = tag("title", f"step {alarm.step}, {alarm.detector}: {alarm.text}")
        x = across(min(alarm.step, across.high))
        parts.append(tag("line", title, x1=x, y1=bottom - 12, x2=x, y2=bottom, class_="tickmark"))
    return drawing(bottom + 42, "Norm of the gradients over steps, as a power of ten", parts)


def restarts(report: Report) -> list[Markup]:
    """Return a close-up of each restart with repeated steps: the earlier run as rings, the later as dots.

    Empty if the series is thinned, since points would be missing.
    """
    pictures: list[Markup] = []
    if any(len(series.points) < series.steps for series in report.training.losses):
        return pictures
    for index, series in enumerate(report.training.losses):
        again = [point.step for point in series.points if point.repeated]
        if again and index:
            first, last = again[0] - AROUND, again[-1] + AROUND
            pictures.append(_restart(report.training, series, first, last))
    return pictures[:MOST_RESTARTS]


def _restart(training: Training, later: Losses, first: int, last: int) -> Markup:
    bottom = 190.0
    earlier = [series for series in training.losses if series.attempt < later.attempt]
    shown = [(series, [p for p in series.points if first <= p.step <= last]) for series in (*earlier, later)]
    across = Scale(first, last, LEFT + 12, WIDTH - RIGHT - 12)
    down = _down([point.loss for _, points in shown for point in points], TOP + 10, bottom - 8)
    parts = [*_axes(across, down, bottom, "loss, nats per token", whole=True)]
    again = [point.step for point in later.points if point.repeated]
    half = (across(first + 1) - across(first)) / 2
    width = across(again[-1]) - across(again[0]) + 2 * half
    parts.append(rect(across(again[0]) - half, TOP, width, bottom - TOP, "again"))
    radius = max(1.5, min(6.0, half * 0.7))
    for series, points in shown:
        mine = colour(series.attempt)
        parts.append(_path(points, across, down, f"thin {mine}"))
        ring = series.attempt != later.attempt
        for point in points:
            title = tag("title", f"attempt {series.attempt}, step {point.step}: {point.loss!r}")
            size, kind = (radius, "ring") if ring else (radius * 0.55, "dot")
            parts.append(
                tag("circle", title, cx=across(point.step), cy=down(point.loss), r=size, class_=f"{kind} {mine}")
            )
    return drawing(bottom + 42, f"Losses around the restart of attempt {later.attempt}", parts)


def _down(values: Sequence[float], top: float, bottom: float) -> Scale:
    low, high = min(values), max(values)
    margin = (high - low or 1.0) * 0.06
    return Scale(low - margin, high + margin, bottom, top)


def _axes(across: Scale, down: Scale, bottom: float, unit: str, *, whole: bool = False) -> Iterator[Markup]:
    """Draw steps across and values down; `unit` is what the values are."""
    yield text(0, 12, unit, "axisname")
    for value in ticks(down.low, down.high, 7):
        yield line(LEFT, down(value), WIDTH - RIGHT, down(value), "grid")
        yield text(LEFT - 8, down(value) + 4, f"{value:.4g}", "tick", "end")
    yield line(LEFT, bottom, WIDTH - RIGHT, bottom, "axis")
    for value in ticks(across.low, across.high, 10):
        if not whole or value == int(value):
            yield text(across(value), bottom + 18, f"{value:,.0f}", "tick", "middle")
    yield text((LEFT + WIDTH - RIGHT) / 2, bottom + 36, "step", "axisname", "middle")


def _path(points: Sequence[LossPoint], across: Scale, down: Scale, class_: str) -> Markup:
    places = "L".join(f"{across(point.step):.1f} {down(point.loss):.1f}" for point in points)
    return tag("path", d=f"M{places}", class_=class_) if places else Markup("")


def _halos(losses: Sequence[Losses], across: Scale, down: Scale) -> Iterator[Markup]:
    """Draw steps that were repeated later as a wide pale line beneath, on which equal values lie."""
    again = {point.step for series in losses for point in series.points if point.repeated}
    for series in losses:
        run: list[LossPoint] = []
        for point in series.points:
            if point.step in again and not point.repeated:
                run.append(point)
            elif run:
                yield _path(run, across, down, f"halo {colour(series.attempt)}")
                run = []
        yield _path(run, across, down, f"halo {colour(series.attempt)}")


def _repeated_bands(losses: Sequence[Losses], across: Scale, bottom: float) -> Iterator[Markup]:
    for series in losses:
        again = [point.step for point in series.points if point.repeated]
        if again:
            title = f"steps {again[0]} to {again[-1]} were run again by attempt {series.attempt}"
            begin, end = across(again[0] - 0.5), across(again[-1] + 0.5)
            yield rect(begin, TOP, end - begin, bottom - TOP, "again", title)


def _restart_lines(losses: Sequence[Losses], across: Scale, bottom: float) -> Iterator[Markup]:
    last_end, lane = 0.0, 0
    many = len(losses) > MOST_SENTENCES
    for series in losses[1:]:
        if not series.points:
            continue
        x = across(series.points[0].step - 1)
        label = f"attempt {series.attempt} resumes from step {series.points[0].step - 1:,}"
        title = tag("title", label)
        if many:
            yield tag("line", title, x1=x, y1=bottom - 12, x2=x, y2=bottom, class_="tickmark")
            continue
        yield tag("line", title, x1=x, y1=TOP, x2=x, y2=bottom, class_=f"restart {colour(series.attempt)}")
        lane = lane + 1 if x < last_end + 8 else 0
        right = x + 8 + text_width(label) < WIDTH - RIGHT
        last_end = x + 8 + text_width(label) if right else x
        if lane < MOST_LANES:
            place, anchor = (x + 8, "start") if right else (x - 8, "end")
            yield text(place, TOP + 66 + 17 * lane, label, f"restarttext {colour(series.attempt)}", anchor)


def _evaluations(rows: Sequence[Evaluated], across: Scale, down: Scale) -> Iterator[Markup]:
    """Label values from last to first as far as they fit; every value is in its title."""
    free, few = WIDTH, len(rows) <= MOST_CIRCLES
    for row in sorted(rows, key=lambda item: item.step, reverse=True):
        x, y = across(row.step), down(row.loss)
        title = tag("title", f"held-out loss at step {row.step}, attempt {row.attempt}: {row.loss!r}")
        yield tag(
            "circle", title, cx=x, cy=y, r=5.0 if few else 2.2, class_="evaluation" if few else "evaluation small"
        )
        label = f"{row.loss:.3f}"
        width = text_width(label) + (8 if few else 60)
        middle = min(x, WIDTH - width / 2)
        if middle + width / 2 <= free:
            yield text(middle, y - 11, label, "evaluationtext", "middle")
            free = middle - width / 2
