"""The nodes and ranks of a gang as a grid: one mark for each rank, or for each node of a large gang."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.text import Text

from infra.record.payloads.attempts import short
from trainer.contract import Phase

MOST_NODES = 32
"""Nodes of which each rank has a mark."""
_MOST_TROUBLES = 4


class NodeMark(NamedTuple):
    sign: str
    word: str
    style: str = ""


_WELL = NodeMark("■", "trains", "green")
_SILENT = NodeMark("?", "silent", "bold yellow")
_SICK = NodeMark("!", "not well", "bold red")
_OF_PHASE = {
    Phase.STARTING: NodeMark("s", "starts", "cyan"),
    Phase.RESTORING: NodeMark("r", "restores", "cyan"),
    Phase.SAVING: NodeMark("w", "saves", "blue"),
    Phase.EVALUATING: NodeMark("e", "evaluates", "blue"),
    Phase.FINISHING: NodeMark("f", "finishes", "blue"),
}
_OF_POD = {
    "Pending": NodeMark(".", "not started"),
    "Failed": NodeMark("x", "failed", "bold red"),
    "Missing": NodeMark("-", "missing", "bold red"),
    "Succeeded": NodeMark("d", "done", "green"),
}


def grid(live: Mapping[str, Any], ranks_per_node: int) -> Iterator[Text]:
    """Yield the grid, its legend, and those nodes, pods and ranks that are not well. `live`: the steward's figures;
    what they do not tell of a rank is taken from its pod."""
    pods: Sequence[Mapping[str, Any]] = sorted(live.get("pods") or (), key=place_of)
    cells, unit, gap = [_marks(pod, ranks_per_node) for pod in pods], "rank", " " if ranks_per_node > 1 else ""
    if len(pods) > MOST_NODES:
        cells, unit, gap = [[_SICK] if _SICK in cell else cell[:1] for cell in cells], "node", ""
    if cells:
        yield Text(gap).join(Text.assemble(*((mark.sign, mark.style) for mark in cell)) for cell in cells)
        legend = Text(", ").join(
            Text.assemble((mark.sign, mark.style), f" {mark.word}")
            for mark in dict.fromkeys(mark for cell in cells for mark in cell)
        )
        yield Text(f"each {unit}: ", "dim").append_text(legend)
    troubles = [*pod_troubles(pods), *node_troubles(live.get("nodes") or ())]
    yield from (Text(trouble, "yellow") for trouble in troubles[:_MOST_TROUBLES])
    if len(troubles) > _MOST_TROUBLES:
        yield Text(f"and {len(troubles) - _MOST_TROUBLES} more, see `bivouac status`", "yellow")


def place_of(pod: Mapping[str, Any]) -> int:
    rank = pod.get("node_rank")
    return int(pod.get("index", 0) if rank is None else rank)


def _marks(pod: Mapping[str, Any], ranks_per_node: int) -> list[NodeMark]:
    first_rank, sick_ranks = place_of(pod) * ranks_per_node, pod.get("ranks") or {}
    mark = mark_of(pod)
    return [_SICK if str(first_rank + number) in sick_ranks else mark for number in range(ranks_per_node)]


def mark_of(pod: Mapping[str, Any]) -> NodeMark:
    if pod.get("phase") != "Running":
        return _OF_POD.get(str(pod.get("phase")), _SILENT)
    if pod.get("silent_s"):
        return _SILENT
    phase = pod.get("trainer_phase")
    if phase is None:  # a steward of an earlier version
        return _WELL if pod.get("step") else _OF_PHASE[Phase.STARTING]
    return _OF_PHASE.get(phase, _WELL)


def pod_troubles(pods: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for pod in pods:
        name = short(pod.get("node") or pod.get("name"))
        if silent_s := pod.get("silent_s"):
            yield f"{name} silent for {silent_s} s"
        if pod.get("phase") in ("Failed", "Missing"):
            yield f"{name} {str(pod['phase']).lower()} at step {pod.get('step')}"
        for rank, word in (pod.get("ranks") or {}).items():
            yield f"rank {rank} on {name}: {word}"


def node_troubles(nodes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for node in nodes:
        ready = {True: "", False: "not Ready", None: "Ready is not known"}[node.get("ready")]
        state = str(node.get("instance_state") or "unknown")
        words = [ready, "quarantined" if node.get("quarantined") else "", str(node.get("unfit") or "")]
        words += [f"its instance is {state}"] if state in ("impaired", "gone") else []
        if text := ", ".join(filter(None, words)):
            yield f"{short(node.get('name'))}: {text}"
