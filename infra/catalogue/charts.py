"""EKS add-ons and Helm charts, with their pins."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from infra.catalogue.reading import read


class Addon(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    version: str | None
    """None: EKS's default for the cluster's Kubernetes version."""
    stage: Literal["before-nodes", "after-nodes"]
    """`after-nodes`: an add-on that has pods to schedule before it is ACTIVE."""


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
    values: dict[str, Any] = {}


@cache
def addons() -> tuple[Addon, ...]:
    return tuple(Addon(name=name, **row) for name, row in read("charts")["addons"].items())


@cache
def charts() -> tuple[Chart, ...]:
    return tuple(Chart.model_validate({"name": name, **row}) for name, row in read("charts")["charts"].items())
