"""EKS add-ons, Helm charts and operators without a chart, with their pins."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from infra.plan.catalogue.reading import read


class Addon(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    versions: dict[str, str] = {}
    """Kubernetes version -> build; one that is not here takes EKS's default for it."""
    source: str | None = None
    """Where the builds were read."""
    stage: Literal["before-nodes", "after-nodes"]
    """`after-nodes`: an add-on that has pods to schedule before it is ACTIVE."""
    option: str | None = None
    """As for a chart."""


class Chart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Of the release; the node side of a rehearsal knows releases by it."""
    chart: str
    repository: str | None = None
    version: str
    namespace: str
    wanted_for: Literal["all", "nvidia", "neuron", "efa"] = Field(alias="for")
    """On which nodes the chart makes sense: any, those with NVIDIA GPUs or Neuron devices, those with EFA."""
    option: str | None = None
    """Field of the spec's section `addons` that asks for it, by being true or (`field=value`) by its value; None: the
    campaign cannot do without it."""
    source: str | None = None
    """Where the version was read, where that is not the file's own source."""
    images: dict[str, str]
    """Value that names an image or a registry, as a dotted path -> what follows the mirror's name there."""
    values: dict[str, Any] = {}

    def mirrored(self, mirror: str | None) -> dict[str, Any]:
        """The values, with every image taken from `mirror`; None leaves the images where the chart has them."""
        values = copy.deepcopy(self.values)
        for path, name in self.images.items() if mirror is not None else ():
            *sections, last = path.split(".")
            section = values
            for one in sections:
                section = section.setdefault(one, {})
            section[last] = f"{mirror}/{name}" if name else mirror
        return values


class Operator(BaseModel):
    """A controller of which no chart is published: the campaign's program makes its objects."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    image: str
    """Without a registry: Docker Hub's, or the mirror's."""
    version: str
    """Of the project, and the image's tag."""
    option: str | None = None
    """As for a chart."""
    source: str
    """Where version, image and the API's schema were read."""

    def reference(self, mirror: str | None) -> str:
        """What a pod names; Docker Hub where there is no mirror."""
        return f"{mirror or 'docker.io'}/{self.image}:{self.version}"


def asked_for(option: str | None, section: object) -> bool:
    """Whether the spec's section `addons` asks for what has this `option`."""
    if option is None:
        return True
    field, equals, value = option.partition("=")
    wanted = getattr(section, field)
    return bool(wanted == value) if equals else bool(wanted)


@cache
def addons() -> tuple[Addon, ...]:
    return tuple(Addon(name=name, **row) for name, row in read("charts")["addons"].items())


@cache
def charts() -> tuple[Chart, ...]:
    return tuple(Chart.model_validate({"name": name, **row}) for name, row in read("charts")["charts"].items())


@cache
def operators() -> dict[str, Operator]:
    """By name."""
    return {name: Operator(name=name, **row) for name, row in read("charts")["operators"].items()}
