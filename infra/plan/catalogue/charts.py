"""Pinned EKS add-ons, Helm charts, and operators without a chart."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any, Literal

from pydantic import Field

from infra.plan.catalogue.reading import read
from trainer.contract.frozen import Frozen


class Addon(Frozen):
    name: str
    versions: dict[str, str] = {}
    """Kubernetes version -> build; other versions get EKS's default build."""
    source: str | None = None
    """URL from which the builds were read."""
    stage: Literal["before-nodes", "after-nodes"]
    """`after-nodes`: the add-on has pods that must be scheduled before it is ACTIVE."""
    option: str | None = None
    """See `Chart.option`."""


class Chart(Frozen):
    name: str
    """Name of the Helm release, by which the node side of a rehearsal identifies it."""
    chart: str
    repository: str | None = None
    version: str
    namespace: str
    wanted_for: Literal["all", "nvidia", "neuron", "efa"] = Field(alias="for")
    """Nodes that need the chart: all, those with NVIDIA GPUs, Neuron devices or EFA."""
    option: str | None = None
    """Field of the spec's section `addons` that selects the chart, by being true or (`field=value`) by its value; None:
    the campaign always has it."""
    awaited: bool = True
    """The campaign needs its pods. False: it goes on without them, and the steward tells what it misses."""
    source: str | None = None
    """URL from which the version was read, if it is not the file's own source."""
    images: dict[str, str]
    """Dotted path of a value that names an image or a registry -> its name below the mirror."""
    values: dict[str, Any] = {}

    def values_from(self, mirror: str | None) -> dict[str, Any]:
        """Return the values with every image taken from `mirror`; None keeps the chart's own registries."""
        values = copy.deepcopy(self.values)
        for path, name in self.images.items() if mirror is not None else ():
            *sections, key = path.split(".")
            section = values
            for section_name in sections:
                section = section.setdefault(section_name, {})
            section[key] = f"{mirror}/{name}" if name else mirror
        return values


class Operator(Frozen):
    """A controller without a published chart; the campaign's Pulumi program creates its objects."""

    name: str
    image: str
    """Without a registry, which is Docker Hub or the mirror."""
    version: str
    """Version of the project, and tag of the image."""
    option: str | None = None
    """See `Chart.option`."""
    source: str
    """URL from which version, image and the API's schema were read."""

    def reference(self, mirror: str | None) -> str:
        """Return the image reference for a pod; without a mirror it is on Docker Hub."""
        return f"{mirror or 'docker.io'}/{self.image}:{self.version}"


def asked_for(option: str | None, section: object) -> bool:
    """Return True if the spec's section `addons` selects this `option`; None is always selected."""
    if option is None:
        return True
    field, equals, value = option.partition("=")
    setting = getattr(section, field)
    return bool(setting == value) if equals else bool(setting)


@cache
def addons() -> tuple[Addon, ...]:
    return tuple(Addon(name=name, **row) for name, row in read("charts")["addons"].items())


@cache
def charts() -> tuple[Chart, ...]:
    return tuple(Chart.model_validate({"name": name, **row}) for name, row in read("charts")["charts"].items())


@cache
def operators() -> dict[str, Operator]:
    return {name: Operator(name=name, **row) for name, row in read("charts")["operators"].items()}
