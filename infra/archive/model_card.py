"""The model card beside the exported model: data, code, quality and cost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from infra.archive.manifest import RECORD
from trainer.contract import Manifest

_UNSTATED = "not stated in the data's manifest"


def model_card(golden: Manifest, loss: float, data: dict[str, Any], records: Mapping[str, bytes]) -> str:
    """Return Markdown with the header of model hubs. `records`: name below the archive -> content."""
    spec, live, site = (_json(records, name) for name in ("spec.json", "live.json", "site.json"))
    licence = _licence(data)
    sections = [
        "\n".join(_head(licence)),
        f"# {golden.campaign}, step {golden.step:,}",
        str(spec.get("purpose", "")).strip(),
        _table(dict(_facts(golden, loss, data, spec, live, bool(site), licence))),
        "## Load it",
        "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        'model = AutoModelForCausalLM.from_pretrained(".")\ntokenizer = AutoTokenizer.from_pretrained(".")\n```',
        f"{_weights(spec)} "
        "Documents end with the tokenizer's end token, and generation may begin with it. "
        f"{_tuning_text(data)} No filtering of its output was done.",
        "## Data",
        _sources(data),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _weights(spec: dict[str, Any]) -> str:
    lora = ((spec.get("training") or {}).get("model") or {}).get("lora")
    if lora is None:
        return "The weights are those of the sharded checkpoint beside this folder, tensor by tensor and bit for bit."
    return (
        f"Adapters of rank {lora.get('rank')} were trained (LoRA), and here they are added to the weights that the "
        "training began with. `adapter/` has them alone, for `peft`."
    )


def _tuning_text(data: dict[str, Any]) -> str:
    if data.get("parameters", {}).get("chat") is None:
        return "No instruction tuning was done."
    return "It was fine-tuned on prompts and responses; the tokenizer has the chat template."


def job_card(
    golden: Manifest,
    records: Mapping[str, bytes],
    *,
    metrics: Mapping[str, float],
    export_metrics: Mapping[str, float] | None,
    tolerance: float | None,
    export: str,
) -> str:
    """Return Markdown about a workload's checkpoint, with what its own evaluation has shown."""
    spec, live, site = (_json(records, name) for name in ("spec.json", "live.json", "site.json"))
    sections = [
        f"# {golden.campaign}, step {golden.step:,}",
        str(spec.get("purpose", "")).strip(),
        _table(dict(_of_job(golden, spec, live, bool(site)))),
        "## Evaluation by the job's own command" if metrics else "",
        _metrics(metrics, export_metrics),
        f"The export is within the relative tolerance {tolerance:g}." if tolerance is not None else "",
        f"What the job has exported lies in `{export}/`, each file with its digest in the manifest." if export else "",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _metrics(metrics: Mapping[str, float], export_metrics: Mapping[str, float] | None) -> str:
    if not metrics:
        return ""
    head = ["metric", "checkpoint", *(["export"] if export_metrics is not None else [])]
    rows = [
        [name, repr(value), *([repr(export_metrics[name])] if export_metrics else [])]
        for name, value in metrics.items()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def _of_job(golden: Manifest, spec: dict[str, Any], live: dict[str, Any], rehearsal: bool) -> Iterator[tuple[str, str]]:
    yield "trained by", str(spec.get("owner", "unknown"))
    if golden.tokens:
        yield "tokens seen", f"{golden.tokens:,}"
    if golden.loss is not None:
        yield "loss in training", f"{golden.loss!r}, at this step"
    yield from _machines(golden, spec, live, rehearsal)


def _machines(
    golden: Manifest, spec: dict[str, Any], live: dict[str, Any], rehearsal: bool
) -> Iterator[tuple[str, str]]:
    nodes = spec.get("nodes", {})
    yield "trained on", f"{golden.world_size} ranks, {nodes.get('count')} x {nodes.get('instance_type')}"
    if rehearsal:
        yield "but really", "on one machine without GPU: a rehearsal, whose cost is what AWS would have billed"
    spent_usd = live.get("spent_usd")
    yield "cost", "not known" if spent_usd is None else f"{float(spent_usd):.2f} USD when the archive was written"
    yield "code", golden.code_digest or "no digest recorded"
    yield "image", golden.image_digest or "no digest recorded"
    yield "configuration", golden.config_digest


def _head(licence: str) -> Iterator[str]:
    yield "---"
    yield "library_name: transformers"
    yield "pipeline_tag: text-generation"
    if licence != _UNSTATED:
        yield f"license: other\nlicense_name: {json.dumps(licence)}"
    yield "---"


def _facts(
    golden: Manifest,
    loss: float,
    data: dict[str, Any],
    spec: dict[str, Any],
    live: dict[str, Any],
    rehearsal: bool,
    licence: str,
) -> Iterator[tuple[str, str]]:
    yield "trained by", str(spec.get("owner", "unknown"))
    yield "tokens seen", f"{golden.tokens:,}"
    if golden.loss is not None:
        yield "loss in training", f"{golden.loss!r} nats per token, at this step"
    yield "held-out loss", f"{loss!r} nats per token, of the model read back from the archive"
    if (unigram := data.get("unigram_loss")) is not None:
        yield "held-out loss without context", f"{unigram!r} (unigram distribution of the training part)"
    yield from _machines(golden, spec, live, rehearsal)
    yield "data", golden.data_digest
    yield "licence of the data", licence


def _licence(data: dict[str, Any]) -> str:
    licences = dict.fromkeys(source.get("licence") for source in data.get("sources", ()))
    return ", ".join(licence for licence in licences if licence) or _UNSTATED


def _sources(data: dict[str, Any]) -> str:
    sources = data.get("sources") or [{"name": data.get("source"), "pattern": data.get("pattern")}]
    lines = [
        f"- {source.get('name')}: "
        + ", ".join(f"{key} {source[key]}" for key in ("location", "pattern", "licence", "origin") if source.get(key))
        for source in sources
    ]
    counts = f"{data.get('documents', 0):,} documents, {data.get('held_out_documents', 0):,} of them held out; "
    tokens = f"{data.get('train_tokens', 0):,} training and {data.get('validation_tokens', 0):,} held-out tokens."
    return "\n".join([counts + tokens, "", *lines])


def _table(facts: dict[str, str]) -> str:
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in facts.items())])


def _json(records: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """Return a record; empty if it is no JSON object, so that the card states what is known."""
    try:
        content = json.loads(records.get(f"{RECORD}/{name}", b"{}"))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
