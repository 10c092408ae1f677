"""Rules about the settings of NCCL, of its plugin for EFA and of libfabric, in a job's `nccl` and `env`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from infra.plan.checks.finding import Case, Draft, error, warning
from infra.tables import table

_VARIABLES: dict[str, Any] = table("infra.plan.checks", "nccl")
DOCUMENTED = frozenset(f"{part['begin']}{name}" for part in _VARIABLES["documented"] for name in part["names"].split())


def documented_nccl_settings(case: Case) -> Iterator[Draft]:
    """Each name of `nccl` stands in a document: NCCL and libfabric pass over a misspelt one without a word."""
    for name in sorted(set(case.job.nccl) - DOCUMENTED):
        nearest = difflib.get_close_matches(name, DOCUMENTED, n=1)
        cure = f"write {nearest[0]}" if nearest else "see NVIDIA's and AWS's lists"
        cure += "; one that no document names goes into workload.env"
        yield error(f"workload.nccl.{name}", "no document names this variable", seen=name, cure=cure)


def efa_safe_settings(case: Case) -> Iterator[Draft]:
    """No variable of NCCL or libfabric works against EFA's plugin: refused in `nccl`, warned of in `env`."""
    job, instance = case.job, case.facts.instance
    if instance is None or not instance.efa_interfaces:
        return
    cure = "leave it out, and read in NCCL's log (NCCL_DEBUG=INFO) that it says `Selected provider is efa`"
    for section, settings in (("nccl", job.nccl), ("env", job.env)):
        against = error if section == "nccl" else warning
        for name in sorted(settings):
            field, harm = f"workload.{section}.{name}", _VARIABLES["against_efa"].get(name)
            if harm is not None:
                yield against(field, harm, seen=settings[name], cure=cure)
            elif name in _VARIABLES["better_left"]:
                yield warning(field, _VARIABLES["better_left"][name], seen=settings[name], cure="leave it out")
