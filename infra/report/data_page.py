"""The page about a prepared data set: contents, lengths of documents, dropped documents with reasons."""

from __future__ import annotations

import json
from collections.abc import Iterator

from markupsafe import Markup

from infra.console.words import size
from infra.data.dataset import DataSet
from infra.report.charts.svg import WIDTH, drawing, line, rect, text
from infra.report.page import new_environment
from trainer.contract import DATA_SUMMARY_NAME

_HEIGHT, _FLOOR, _TOP = 212.0, 170.0, 32.0


def data_page(data: DataSet) -> str:
    """Return one self-contained HTML file."""
    environment = new_environment()
    environment.filters |= {"size": size, "count": lambda number: f"{number:,}"}
    style, _, _ = environment.loader.get_source(environment, "style.css")  # type: ignore[union-attr]
    summary = json.loads((data.folder / DATA_SUMMARY_NAME).read_bytes())
    manifest = data.manifest
    dropped_documents: dict[str, int] = {}
    for source in manifest.sources:
        for reason, count in source.dropped.items():
            dropped_documents[reason] = dropped_documents.get(reason, 0) + count
    return environment.get_template("data.html.j2").render(
        style=Markup(style),
        manifest=manifest,
        digest=data.digest,
        summary=summary,
        dropped=sorted(dropped_documents.items(), key=lambda row: -row[1]),
        histogram=histogram(summary["lengths"]),
        stored=manifest.token_bytes * (manifest.train_tokens + manifest.validation_tokens),
        parameters=manifest.parameters.model_dump(mode="json"),
    )


def histogram(lengths: list[int]) -> Markup:
    """Draw documents by length in tokens; each column's range is twice the one before."""
    nonempty = [index for index, count in enumerate(lengths) if count]
    if not nonempty:
        return Markup("")
    columns = range(nonempty[0], nonempty[-1] + 1)
    return drawing(_HEIGHT, "Documents by length in tokens", list(_columns(lengths, columns)))


def _columns(lengths: list[int], columns: range) -> Iterator[Markup]:
    width, highest = min(120.0, WIDTH / len(columns)), max(lengths)
    yield line(0, _FLOOR, width * len(columns), _FLOOR, "axis")
    yield text(0, 12, "documents", "axisname")
    yield text(width * len(columns) / 2, _FLOOR + 36, "tokens of a document, from", "axisname", "middle")
    for place, index in enumerate(columns):
        count = lengths[index]
        tall, x = (_FLOOR - _TOP) * count / highest, place * width
        title = f"{2**index:,} to {2 ** (index + 1) - 1:,} tokens: {count:,} documents"
        yield rect(x + 2, _FLOOR - tall, width - 4, tall, "cause useful", title)
        yield text(x + width / 2, _FLOOR - tall - 5, f"{count:,}" if count else "", "label", "middle")
        yield text(x + width / 2, _FLOOR + 18, _short(2**index), "label", "middle")


def _short(number: int) -> str:
    for unit, name in ((2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki")):
        if number >= unit:
            return f"{number // unit} {name}"
    return str(number)
