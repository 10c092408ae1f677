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
    if (source := case.facts.source) is not None:
        for draft, problems in ((error, source.refused), (warning, source.doubtful)):
            for problem in problems:
                yield draft("workload.source", problem.what, seen=problem.seen, cure=problem.cure)


def packed_programs(case: Case) -> Iterator[Draft]:
    """Programs and requirements that the spec names are in the source, and git does not ignore them."""
    job, source = case.job, case.facts.source
    if source is None or source.refused:
        return
    fields = {name: f"workload.{section}.command" for section, name in job.named_programs}
    for name in source.absent:
        field = fields.get(name) or ("workload.script" if name == job.script else "workload.requirements")
        cure = "give its path below the source, and take it out of .gitignore"
        yield error(field, "is not in the packed source", seen=name, cure=cure)


def ignored_files(case: Case) -> Iterator[Draft]:
    """Prepared data and installed packages are often ignored by git; the job does not have them."""
    job, source = case.job, case.facts.source
    if source is None or not any(path.size_bytes >= _WORTH_A_WORD for path in source.left_out):
        return
    parts = [f"{path.path} {'' if path.whole else 'at least '}{size(path.size_bytes)}" for path in source.left_out]
    remainder_bytes = sum(path.size_bytes for path in source.left_out[_LISTED:])
    remainder = f", {len(parts) - _LISTED} more with {size(remainder_bytes)}" if parts[_LISTED:] else ""
    words = " ".join((*job.args, *job.command, *job.env.values()))
    draft = warning if any(path.path in words for path in source.left_out) else info
    cure = "data come by workload.mounts, packages by workload.requirements; git add --force takes a file along"
    detail = ", ".join(parts[:_LISTED]) + remainder
    yield draft("workload.source", "git ignores these, so the job does not have them", seen=detail, cure=cure)
