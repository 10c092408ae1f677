"""The built-in trainer's section of a spec, which a workload's spec lacks."""

from __future__ import annotations

from infra.spec.campaign import Spec, Training


def training_of(spec: Spec) -> Training:
    assert spec.training is not None
    return spec.training
