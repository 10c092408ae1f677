"""Loss charts: attempts over the step axis, repeated steps drawn twice, the unigram model for comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from infra.report.charts.svg import WIDTH, Scale, drawing, line, rect, tag, text, text_width, ticks
from infra.report.model import Evaluated, Losses, LossPoint, Report, TrainingCurves

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
    x_axis = Scale(0, max(point.step for point in points), LEFT, WIDTH - RIGHT)
    values += [training.unigram_loss] if training.unigram_loss is not None else []
    y_axis = _down(values, TOP, bottom)
    parts = [*_axes(x_axis, y_axis, bottom, "loss, nats per token")]
    parts += _repeated_bands(training.losses, x_axis, bottom)
    if training.unigram_loss is not None:
        y = y_axis(training.unigram_loss)
        parts.append(line(LEFT, y, WIDTH - RIGHT, y, "unigram"))
        label = f"unigram model of the data: {training.unigram_loss:.3f}"
        parts.append(text(WIDTH - RIGHT, y - 7, label, "unigramtext", "end"))
    parts += _halos(training.losses, x_axis, y_axis)
    parts += [_path(series.points, x_axis, y_axis, f"curve {colour(series.attempt)}") for series in training.losses]
    parts += _restart_lines(training.losses, x_axis, bottom)
    parts += _evaluations(training.evaluations, x_axis, y_axis)
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
    x_axis = Scale(0, max(point.step for point in points), LEFT, WIDTH - RIGHT)
    y_axis = _down([point.loss for point in points], TOP, bottom)
    parts = [*_axes(x_axis, y_axis, bottom, "log10 of the norm")]
    parts += [_path(row.points, x_axis, y_axis, f"curve {colour(row.attempt)}") for row in series]
    for alarm in report.training.alarms:
        title = tag("title", f"step {alarm.step}, {alarm.detector}: {alarm.text}")
        x = x_axis(min(alarm.step, x_axis.high))
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
        repeated_steps = [point.step for point in series.points if point.repeated]
        if repeated_steps and index:
            low_step, high_step = repeated_steps[0] - AROUND, repeated_steps[-1] + AROUND
            pictures.append(_restart(report.training, series, low_step, high_step))
    return pictures[:MOST_RESTARTS]


def _restart(training: TrainingCurves, restart: Losses, low_step: int, high_step: int) -> Markup:
    bottom = 190.0
    all_losses = [*(series for series in training.losses if series.attempt < restart.attempt), restart]
    shown_points = [(series, [p for p in series.points if low_step <= p.step <= high_step]) for series in all_losses]
    x_axis = Scale(low_step, high_step, LEFT + 12, WIDTH - RIGHT - 12)
    y_axis = _down([point.loss for _, points in shown_points for point in points], TOP + 10, bottom - 8)
    parts = [*_axes(x_axis, y_axis, bottom, "loss, nats per token", whole_steps=True)]
    repeated_steps = [point.step for point in restart.points if point.repeated]
    half = (x_axis(low_step + 1) - x_axis(low_step)) / 2
    width = x_axis(repeated_steps[-1]) - x_axis(repeated_steps[0]) + 2 * half
    parts.append(rect(x_axis(repeated_steps[0]) - half, TOP, width, bottom - TOP, "again"))
    radius = max(1.5, min(6.0, half * 0.7))
    for series, points in shown_points:
        hue = colour(series.attempt)
        parts.append(_path(points, x_axis, y_axis, f"thin {hue}"))
        ring = series.attempt != restart.attempt
        for point in points:
            title = tag("title", f"attempt {series.attempt}, step {point.step}: {point.loss!r}")
            size, kind = (radius, "ring") if ring else (radius * 0.55, "dot")
            parts.append(
                tag("circle", title, cx=x_axis(point.step), cy=y_axis(point.loss), r=size, class_=f"{kind} {hue}")
            )
    return drawing(bottom + 42, f"Losses around the restart of attempt {restart.attempt}", parts)


def _down(values: Sequence[float], top: float, bottom: float) -> Scale:
    low, high = min(values), max(values)
    margin = (high - low or 1.0) * 0.06
    return Scale(low - margin, high + margin, bottom, top)


def _axes(x_axis: Scale, y_axis: Scale, bottom: float, unit: str, *, whole_steps: bool = False) -> Iterator[Markup]:
    """Draw steps across and values down; `unit` is what the values are."""
    yield text(0, 12, unit, "axisname")
    for value in ticks(y_axis.low, y_axis.high, 7):
        yield line(LEFT, y_axis(value), WIDTH - RIGHT, y_axis(value), "grid")
        yield text(LEFT - 8, y_axis(value) + 4, f"{value:.4g}", "tick", "end")
    yield line(LEFT, bottom, WIDTH - RIGHT, bottom, "axis")
    for value in ticks(x_axis.low, x_axis.high, 10):
        if not whole_steps or value == int(value):
            yield text(x_axis(value), bottom + 18, f"{value:,.0f}", "tick", "middle")
    yield text((LEFT + WIDTH - RIGHT) / 2, bottom + 36, "step", "axisname", "middle")


def _path(points: Sequence[LossPoint], x_axis: Scale, y_axis: Scale, class_: str) -> Markup:
    places = "L".join(f"{x_axis(point.step):.1f} {y_axis(point.loss):.1f}" for point in points)
    return tag("path", d=f"M{places}", class_=class_) if places else Markup("")


def _halos(losses: Sequence[Losses], x_axis: Scale, y_axis: Scale) -> Iterator[Markup]:
    """Draw steps that were repeated later as a wide pale line beneath, on which equal values lie."""
    repeated_steps = {point.step for series in losses for point in series.points if point.repeated}
    for series in losses:
        run: list[LossPoint] = []
        for point in series.points:
            if point.step in repeated_steps and not point.repeated:
                run.append(point)
            elif run:
                yield _path(run, x_axis, y_axis, f"halo {colour(series.attempt)}")
                run = []
        yield _path(run, x_axis, y_axis, f"halo {colour(series.attempt)}")


def _repeated_bands(losses: Sequence[Losses], x_axis: Scale, bottom: float) -> Iterator[Markup]:
    for series in losses:
        repeated_steps = [point.step for point in series.points if point.repeated]
        if repeated_steps:
            title = f"steps {repeated_steps[0]} to {repeated_steps[-1]} were run again by attempt {series.attempt}"
            begin, end = x_axis(repeated_steps[0] - 0.5), x_axis(repeated_steps[-1] + 0.5)
            yield rect(begin, TOP, end - begin, bottom - TOP, "again", title)


def _restart_lines(losses: Sequence[Losses], x_axis: Scale, bottom: float) -> Iterator[Markup]:
    last_end, lane = 0.0, 0
    crowd = len(losses) > MOST_SENTENCES
    for series in losses[1:]:
        if not series.points:
            continue
        x = x_axis(series.points[0].step - 1)
        label = f"attempt {series.attempt} resumes from step {series.points[0].step - 1:,}"
        title = tag("title", label)
        if crowd:
            yield tag("line", title, x1=x, y1=bottom - 12, x2=x, y2=bottom, class_="tickmark")
            continue
        yield tag("line", title, x1=x, y1=TOP, x2=x, y2=bottom, class_=f"restart {colour(series.attempt)}")
        lane = lane + 1 if x < last_end + 8 else 0
        right = x + 8 + text_width(label) < WIDTH - RIGHT
        last_end = x + 8 + text_width(label) if right else x
        if lane < MOST_LANES:
            place, anchor = (x + 8, "start") if right else (x - 8, "end")
            yield text(place, TOP + 66 + 17 * lane, label, f"restarttext {colour(series.attempt)}", anchor)


def _evaluations(rows: Sequence[Evaluated], x_axis: Scale, y_axis: Scale) -> Iterator[Markup]:
    """Label values from last to first as far as they fit; every value is in its title."""
    free, sparse = WIDTH, len(rows) <= MOST_CIRCLES
    for row in sorted(rows, key=lambda item: item.step, reverse=True):
        x, y = x_axis(row.step), y_axis(row.loss)
        title = tag("title", f"held-out loss at step {row.step}, attempt {row.attempt}: {row.loss!r}")
        yield tag(
            "circle", title, cx=x, cy=y, r=5.0 if sparse else 2.2, class_="evaluation" if sparse else "evaluation small"
        )
        label = f"{row.loss:.3f}"
        width = text_width(label) + (8 if sparse else 60)
        middle = min(x, WIDTH - width / 2)
        if middle + width / 2 <= free:
            yield text(middle, y - 11, label, "evaluationtext", "middle")
            free = middle - width / 2
