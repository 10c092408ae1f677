"""Rules about a job of one's own."""

from __future__ import annotations

from collections.abc import Iterator

from infra.plan.checks.finding import Case, Draft, error


def the_source_exists(case: Case) -> Iterator[Draft]:
    """The job's code is there before anything is paid for."""
    looked, workload = case.facts.data, case.spec.workload
    if workload is None or workload.source is None:
        return
    if not looked.folder:
        cure = "give a folder, as a path from where the command is run"
        yield error("workload.source", "there is no such folder", seen=looked.location, cure=cure)
    elif not looked.matches:
        cure = "give its path below the source"
        yield error("workload.script", "the source has no such file", seen=workload.script, cure=cure)


def a_script_has_a_source(case: Case) -> Iterator[Draft]:
    """A script that no source holds must be in the image, under an absolute path."""
    workload = case.spec.workload
    if workload is not None and workload.source is None and workload.script and not workload.script.startswith("/"):
        cure = "name the folder with the script in workload.source, or give the script's absolute path in the image"
        yield error("workload.script", "is in no source", seen=workload.script, cure=cure)


RULES = (the_source_exists, a_script_has_a_source)
