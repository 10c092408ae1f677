"""Drift and plan of a stack: AWS against the state, and what `up` would do. Works on a local copy of the state: it
takes no lock, writes nothing to the bucket and touches nothing in AWS, so a living driver is not disturbed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pulumi import automation as auto
from pulumi.output import Unknown
from pulumi.runtime import rpc, settings

from infra.engine.failures import EngineFailed, OperationWatch
from infra.engine.kubernetes_state import KUBERNETES, without_resources
from infra.engine.state_copy import bare, state_copy, stored_state
from infra.session.context import Context
from infra.stack.program import program, unprotect
from infra.stack.rules.graph import UNKNOWN, Graph, GraphResource

SHORT = 90
"""Characters of a value that are shown."""
_PLANNED = ("create", "update", "delete", "replace")
_NO_RESOURCE = ("pulumi:pulumi:Stack", "bivouac:")
_NOTHING: tuple[Any, ...] = (None, "", [], {})
_QUIET_TAGS = ("aws:", "eks:", "kubernetes.io/", "k8s.io/")
_QUIET = {
    # Preflight, steward and the deadline's schedule set the size; the program ignores it too.
    "aws:eks/nodeGroup:NodeGroup": ("scalingConfig.desiredSize",),
    "aws:ec2/launchTemplate:LaunchTemplate": ("imageId", "tagSpecifications", "latestVersion", "defaultVersion"),
    # Driver and steward postpone them and switch them off; not so the deadline's.
    "aws:scheduler/schedule:Schedule::launch": ("scheduleExpression", "state"),
    "aws:scheduler/schedule:Schedule::launch-notice": ("scheduleExpression", "state"),
    "aws:scheduler/schedule:Schedule::silence": ("scheduleExpression", "state"),
    "aws:scheduler/schedule:Schedule::silence-notice": ("scheduleExpression", "state"),
}
"""Type, or type and name -> properties that are not changed by hand."""


@dataclass(frozen=True)
class PropertyDifference:
    """A difference of one property, by its dotted path."""

    path: str
    before: Any
    after: Any
    replaces: bool = False


@dataclass(frozen=True)
class Row:
    """One resource that drifted (`deleted`, `changed`) or that `up` would touch (`create`, `update`, ...)."""

    urn: str
    verb: str
    changes: tuple[PropertyDifference, ...] = ()

    @property
    def kind(self) -> str:
        """`aws:ec2/subnet:Subnet`."""
        return self.urn.split("::")[2].split("$")[-1]

    @property
    def name(self) -> str:
        return "::".join(self.urn.split("::")[3:])

    @property
    def title(self) -> str:
        """`Subnet gpu`."""
        return f"{self.kind.rpartition(':')[2]} {self.name}"

    @property
    def component(self) -> str:
        """Name of its component, `Network`; `stack` for a resource without one."""
        chain = self.urn.split("::")[2].split("$")
        return chain[-2].rpartition(":")[2] if len(chain) > 1 else "stack"


@dataclass(frozen=True)
class StackLook:
    """Drift and plan of one stack."""

    stack: str
    drifted: tuple[Row, ...] = ()
    planned: tuple[Row, ...] = ()
    broken: frozenset[str] = frozenset()
    """URNs of resources that were made but never worked; they may be made again."""
    resources: int = 0
    notes: tuple[str, ...] = field(default=())
    asked: Graph = field(default_factory=Graph, compare=False, repr=False)
    """All resources of the program, changed or not, for the rules."""


def look(
    context: Context, stack: str, settings: Mapping[str, str], *, refresh: bool = True, inner: bool = True
) -> StackLook:
    """Compare a stack with AWS and plan an `up`. Raises `EngineFailed` where AWS or the cluster does not answer.

    `refresh`: False compares the program with the state only. `inner`: False leaves out objects in the cluster, for
    callers without access to it.
    """
    document = stored_state(context.store, stack)
    previous = resources_of(document)
    unprotect(previous.values())  # a protected resource would end the plan that shows what becomes of it
    notes: list[str] = []
    graph = Graph()
    copied_state = _readable(context, document, notes, inner=inner) if document is not None else None
    with state_copy(stack, settings, copied_state, record_into(program, graph)) as copy:
        if previous and refresh:
            _run_on_copy(context, "comparing with AWS", stack, copy.stack.refresh)
        current = resources_of(copy.state())
        plan: dict[str, Row] = {}
        _run_on_copy(context, "planning", stack, copy.stack.preview, plan)
    broken = frozenset(urn for urn, resource in previous.items() if resource.get("initErrors"))
    drift = tuple(drift_between(previous, current)) if refresh else ()
    rows = list(plan.values())
    if not inner:
        drift = tuple(row for row in drift if not row.kind.startswith(KUBERNETES))
        rows = [row for row in rows if not row.kind.startswith(KUBERNETES)]
    return StackLook(stack, drift, tuple(rows), broken, len(previous), tuple(notes), graph)


def resources_of(document: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Return URN -> resource of a checkpoint file or an exported deployment."""
    deployment = document or {}
    if "checkpoint" in deployment:
        deployment = deployment["checkpoint"].get("latest") or {}
    return {resource["urn"]: resource for resource in deployment.get("resources") or () if not resource.get("delete")}


def drift_between(previous: Mapping[str, Mapping[str, Any]], current: Mapping[str, Mapping[str, Any]]) -> Iterator[Row]:
    """Yield what was deleted or changed by hand. Only inputs count: AWS itself changes outputs."""
    for urn, old in previous.items():
        if not old.get("custom") or old["type"].startswith("pulumi:"):
            continue
        if urn not in current:
            yield Row(urn, "deleted")
            continue
        quiet = (*_QUIET.get(old["type"], ()), *_QUIET.get("::".join((old["type"], urn.rpartition("::")[2])), ()))
        changes = tuple(_changes(quiet, bare(old.get("inputs") or {}), bare(current[urn].get("inputs") or {})))
        if changes:
            yield Row(urn, "changed", changes)


def _changes(quiet: Sequence[str], old: Any, new: Any, path: str = "") -> Iterator[PropertyDifference]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            inner = f"{path}.{key}" if path else str(key)
            if not silent(quiet, inner, key):
                yield from _changes(quiet, old.get(key), new.get(key), inner)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (left, right) in enumerate(zip(old, new, strict=True)):
            yield from _changes(quiet, left, right, f"{path}[{number}]")
    elif as_document(old) != as_document(new) and not (old in _NOTHING and new in _NOTHING):
        yield PropertyDifference(path, old, new)


def as_document(value: Any) -> Any:
    """Return a JSON text as its document: order and spaces mean nothing."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        with suppress(ValueError):
            return json.loads(value)
    return value


def silent(quiet: Sequence[str], path: str, key: str = "") -> bool:
    """Return whether a difference here was not made by hand."""
    if key.startswith("__") or path.startswith("tagsAll"):
        return True
    if path.startswith("tags.") and key.startswith(_QUIET_TAGS):
        return True
    return any(path == prefix or path.startswith((f"{prefix}.", f"{prefix}[")) for prefix in quiet)


def _readable(context: Context, document: dict[str, Any], notes: list[str], *, inner: bool) -> dict[str, Any]:
    """Return the state without objects of a cluster that is gone or not to be asked: it would refuse."""
    resources = resources_of(document)
    objects = {urn for urn, resource in resources.items() if resource["type"].startswith(KUBERNETES)}
    if not objects:
        return document
    if not inner:
        notes.append(f"{len(objects)} objects in the cluster were not looked at")
        return _without_urns(document, objects)
    eks = context.account.client("eks")
    try:
        eks.describe_cluster(name=context.names.cluster)
    except eks.exceptions.ResourceNotFoundException:
        notes.append(f"the cluster is gone, and {len(objects)} Kubernetes objects with it")
        return _without_urns(document, objects)
    return document


def _without_urns(document: dict[str, Any], urns: set[str]) -> dict[str, Any]:
    latest = without_resources(document["checkpoint"]["latest"], urns)
    return {**document, "checkpoint": {**document["checkpoint"], "latest": latest}}


def _run_on_copy(context: Context, verb: str, stack: str, act: Any, plan: dict[str, Row] | None = None) -> None:
    """Run one operation on the copy and put planned rows into `plan`."""
    watch = OperationWatch()
    context.progress.step(f"{verb}: {stack}")

    def on_event(event: auto.EngineEvent) -> None:
        if plan is not None and event.resource_pre_event is not None:
            row = _planned_row(event.resource_pre_event.metadata)
            if row is not None:
                plan[row.urn] = row
        if watch.hear(event) and (text := watch.sentence(verb)):
            context.progress.step(text)

    try:
        act(on_event=on_event, on_output=lambda _: None)
    except auto.CommandError as error:
        raise EngineFailed(verb, stack, watch.failures, str(error)[-800:]) from error


def _planned_row(metadata: Any) -> Row | None:
    operation = str(getattr(metadata.op, "value", metadata.op))
    if operation not in _PLANNED or metadata.type.startswith(_NO_RESOURCE):
        return None
    old = bare(metadata.old.inputs or {}) if metadata.old else {}
    new = bare(metadata.new.inputs or {}) if metadata.new else {}
    changes = []
    for path, difference in (metadata.detailed_diff or {}).items():
        kind = str(getattr(difference.diff_kind, "value", difference.diff_kind))
        changes.append(PropertyDifference(path, at_path(old, path), at_path(new, path), kind.endswith("replace")))
    if not changes:
        keys = set(metadata.keys or ())
        names = [*(metadata.diffs or ())] or sorted(keys)
        changes = [PropertyDifference(name, old.get(name), new.get(name), name in keys) for name in names]
    return Row(metadata.urn, operation, tuple(changes))


def short(value: Any) -> str:
    if value is None:
        return "nothing"
    if value == UNKNOWN:
        return "known once made"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= SHORT else f"{text[: SHORT - 1]}…"


def at_path(value: Any, path: str) -> Any:
    """Return the value at `a.b[0].c`, None if there is none."""
    for key in path.replace('["', ".").replace('"]', "").replace("[", ".").replace("]", "").split("."):
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


def record_into(program: Callable[[], None], graph: Graph) -> Callable[[], None]:
    """Return the program; `graph` is filled while the engine runs it. The engine's requests do not change."""

    def run() -> None:
        settings.SETTINGS.monitor = _Listener(settings.SETTINGS.monitor, graph)
        program()

    return run


class _Listener:
    """Proxy of the engine's monitor that records resources."""

    def __init__(self, monitor: Any, graph: Graph) -> None:
        self._monitor, self._graph = monitor, graph

    def __getattr__(self, name: str) -> Any:
        return getattr(self._monitor, name)

    def RegisterResource(self, request: Any, *arguments: Any, **keywords: Any) -> Any:
        response = self._monitor.RegisterResource(request, *arguments, **keywords)
        self._graph.add(resource_of(request, response.urn))
        return response


def _plain(value: Any) -> Any:
    """Return the value with the engine's UNKNOWN instead of an object that equals no other."""
    if isinstance(value, Unknown):
        return UNKNOWN
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list) else value


def resource_of(request: Any, urn: str) -> GraphResource:
    return GraphResource(
        urn=urn,
        type=request.type,
        name=request.name,
        inputs=_plain(rpc.deserialize_properties(request.object, keep_unknowns=True)),
        refers={name: frozenset(dependency.urns) for name, dependency in request.propertyDependencies.items()},
        depends=frozenset(request.dependencies),
        provider=request.provider or request.providers.get(request.type.partition(":")[0], ""),
        deleted_with=request.deletedWith,
    )
