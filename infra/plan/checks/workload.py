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


def secrets_lie_where_the_pods_may_read(case: Case) -> Iterator[Draft]:
    """A secret lies in the campaign's account and region; a rehearsal has its own values."""
    spec, workload = case.spec, case.spec.workload
    if workload is None:
        return
    if spec.target == "rehearsal":
        if workload.secrets and workload.rehearsal.secrets is None:
            cure = "name a file with a line NAME=value for each of them"
            seen = ", ".join(workload.secrets)
            yield error(
                "workload.rehearsal.secrets", "the rehearsal has no values for these secrets", seen=seen, cure=cure
            )
        return
    for name, source in workload.secrets.items():
        if source.owner is not None and source.owner != (spec.region, spec.account):
            cure = f"store it in account {spec.account} in {spec.region}: the pods' role ends there"
            yield error(
                f"workload.secrets.{name}.secret", "is of another account or region", seen=source.secret, cure=cure
            )


RULES = (the_source_exists, a_script_has_a_source, secrets_lie_where_the_pods_may_read)
