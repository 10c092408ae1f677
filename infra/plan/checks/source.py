"""Rules about the job's code: all that would stop its packing, before anything is made."""

from __future__ import annotations

from collections.abc import Iterator

from infra.console.words import size
from infra.plan.checks.finding import Case, Draft, error, info, warning
from infra.plan.facts import LeftOut

_LISTED = 5
_WORTH_A_WORD = 1024
"""Bytes below which nobody has forgotten data or packages."""


def the_source_can_be_packed(case: Case) -> Iterator[Draft]:
    """Git reads the source, its submodules are there, and it holds only files and links inside, not too large."""
    if (looked := case.facts.source) is not None:
        for why in looked.refused:
            yield error("workload.source", why.what, seen=why.seen, cure=why.cure)


def links_show_something(case: Case) -> Iterator[Draft]:
    """What a link in the source shows is in the pod too."""
    if (looked := case.facts.source) is not None:
        for why in looked.doubtful:
            yield warning("workload.source", why.what, seen=why.seen, cure=why.cure)


def what_the_job_starts_is_packed(case: Case) -> Iterator[Draft]:
    """Programs that the spec names are not among the files that git ignores."""
    workload, looked = case.spec.workload, case.facts.source
    if workload is None or looked is None:
        return
    for name in looked.not_packed:
        field = next((f"workload.{section}.command" for section, word in workload.named_programs if word == name), None)
        cure = "take it out of .gitignore, or git add --force it"
        yield error(field or "workload.script", "is left out of the packed source", seen=name, cure=cure)


def requirements_are_in_the_source(case: Case) -> Iterator[Draft]:
    """The file that names the job's packages is there, and git does not ignore it."""
    workload, looked = case.spec.workload, case.facts.source
    if workload is not None and workload.requirements is not None and looked is not None and not looked.requirements:
        cure = "give its path below the source, and let git track it"
        yield error(
            "workload.requirements", "the packed source has no such file", seen=workload.requirements, cure=cure
        )


def what_is_left_out_is_said(case: Case) -> Iterator[Draft]:
    """Prepared data and installed packages are often ignored by git; the job does not have them."""
    workload, looked = case.spec.workload, case.facts.source
    if workload is None or looked is None or not any(one.size_bytes >= _WORTH_A_WORD for one in looked.left_out):
        return
    seen = ", ".join(map(_words, looked.left_out[:_LISTED]))
    if rest := looked.left_out[_LISTED:]:
        seen += f", {len(rest)} more with {size(sum(one.size_bytes for one in rest))}"
    words = " ".join((*workload.args, *workload.command, *workload.env.values()))
    draft = warning if any(one.path in words for one in looked.left_out) else info
    cure = "data come by workload.mounts, packages by workload.requirements; git add --force takes a file along"
    yield draft("workload.source", "git ignores these, so the job does not have them", seen=seen, cure=cure)


def _words(one: LeftOut) -> str:
    return f"{one.path} {'' if one.whole else 'at least '}{size(one.size_bytes)}"


RULES = (
    the_source_can_be_packed,
    links_show_something,
    what_the_job_starts_is_packed,
    requirements_are_in_the_source,
    what_is_left_out_is_said,
)
