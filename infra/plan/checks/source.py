"""Rules about the job's code: all that would stop its packing, before anything is made."""

from __future__ import annotations

from collections.abc import Iterator

from infra.console.words import size
from infra.plan.checks.finding import Case, Draft, error, info, warning

_LISTED = 5
_WORTH_A_WORD = 1024
"""Bytes below which nobody has forgotten data or packages."""


def source_packing(case: Case) -> Iterator[Draft]:
    """Git reads the source, its submodules are there, and it holds only files, not too large, and links inside."""
    if (looked := case.facts.source) is not None:
        for draft, problems in ((error, looked.refused), (warning, looked.doubtful)):
            for why in problems:
                yield draft("workload.source", why.what, seen=why.seen, cure=why.cure)


def packed_programs(case: Case) -> Iterator[Draft]:
    """Programs and requirements that the spec names are in the source, and git does not ignore them."""
    workload, looked = case.spec.workload, case.facts.source
    if workload is None or looked is None or looked.refused:
        return
    fields = {name: f"workload.{section}.command" for section, name in workload.named_programs}
    for name in looked.absent:
        field = fields.get(name) or ("workload.script" if name == workload.script else "workload.requirements")
        cure = "give its path below the source, and take it out of .gitignore"
        yield error(field, "is not in the packed source", seen=name, cure=cure)


def ignored_files(case: Case) -> Iterator[Draft]:
    """Prepared data and installed packages are often ignored by git; the job does not have them."""
    workload, looked = case.spec.workload, case.facts.source
    if workload is None or looked is None or not any(one.size_bytes >= _WORTH_A_WORD for one in looked.left_out):
        return
    parts = [f"{one.path} {'' if one.whole else 'at least '}{size(one.size_bytes)}" for one in looked.left_out]
    rest = sum(one.size_bytes for one in looked.left_out[_LISTED:])
    more = f", {len(parts) - _LISTED} more with {size(rest)}" if parts[_LISTED:] else ""
    words = " ".join((*workload.args, *workload.command, *workload.env.values()))
    draft = warning if any(one.path in words for one in looked.left_out) else info
    cure = "data come by workload.mounts, packages by workload.requirements; git add --force takes a file along"
    seen = ", ".join(parts[:_LISTED]) + more
    yield draft("workload.source", "git ignores these, so the job does not have them", seen=seen, cure=cure)
