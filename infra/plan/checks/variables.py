"""Rules about the variables that a job's words and values name."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from infra.plan.checks.finding import Case, Draft, error
from infra.spec.workload.variables import (
    CONTAINER_VARIABLES,
    ELSEWHERE,
    JOB_VARIABLES,
    JUDGING_VARIABLES,
    NODE_VARIABLES,
    OURS,
    script_references,
)
from infra.spec.workload.workload import Workload
from trainer.contract.variables import references, shell_script, unreadable

_JUDGING = ("evaluate.command", "export.command")


def known_variables(case: Case) -> Iterator[Draft]:
    """Each variable that the job's words and values name is one that it will have: another one would be empty."""
    if (workload := case.spec.workload) is None:
        return
    job_variables = {*JOB_VARIABLES, *CONTAINER_VARIABLES, *workload.secrets, *workload.nccl, *workload.env}
    job_variables |= set(workload.rehearsal.env)
    on_node_0 = ("command", "args", "rehearsal.args") if workload.launcher == "mpirun" else ()
    for field, text, by_shell in _texts(workload):
        field_names = (job_variables | JUDGING_VARIABLES if field in _JUDGING else job_variables) - (
            NODE_VARIABLES if field in on_node_0 else set()
        )
        if not by_shell and (beginning := unreadable(text)):
            cure = (
                "write ${NAME}, ${NAME:-text} or ${NAME:+text}; $$ is a dollar; a shell's own go into [bash, -c, ...]"
            )
            yield error(f"workload.{field}", "names no variable, and no shell reads it", seen=beginning, cure=cure)
        # A shell has variables of its own, so only a wrong name of ours can be told.
        for name, is_optional in script_references(text) if by_shell else references(text):
            if name not in field_names and not (is_optional and not name.startswith(OURS) and name not in ELSEWHERE):
                yield _variable_error(field, name, field_names)
    references_of = {
        name: {reference for reference, _ in references(text)} - {name}
        for name, text in (workload.nccl | workload.env).items()
    }
    try:
        TopologicalSorter(references_of).prepare()
    except CycleError as circle:
        names = circle.args[1]
        field, cure = f"workload.env.{names[0]}", "spell one of them out"
        yield error(field, "names itself by others", seen=" <- ".join(names), cure=cure)


def _texts(workload: Workload) -> Iterator[tuple[str, str, bool]]:
    """Yield (field, text, whether a shell reads it as its script)."""
    sections = {"nccl": workload.nccl, "env": workload.env, "rehearsal.env": workload.rehearsal.env}
    for section, values in sections.items():
        yield from ((f"{section}.{name}", text, False) for name, text in values.items())
    command, small = workload.command, workload.rehearsal.args or ()
    rows = [("command", (), command), ("args", command, workload.args), ("rehearsal.args", command, small)]
    judging = {"evaluate": workload.evaluate, "export": workload.export}
    rows += [(f"{name}.command", (), section.command) for name, section in judging.items() if section is not None]
    for field, prefix, words in rows:
        script = shell_script((*prefix, *words))
        yield from ((field, word, position == script) for position, word in enumerate(words, len(prefix)))


def _variable_error(field: str, name: str, names: set[str]) -> Draft:
    if name in ELSEWHERE:
        cure = "leave it out: the program reads it where it is"
        return error(f"workload.{field}", ELSEWHERE[name], seen=f"${name}", cure=cure)
    if name.startswith(OURS):
        cure = "write one of " + ", ".join(sorted(candidate for candidate in names if candidate.startswith(OURS)))
    else:
        suggestion = "".join(
            f"did you mean {candidate}? " for candidate in difflib.get_close_matches(name, sorted(names), 1)
        )
        cure = f"{suggestion}$${name} is the text itself, ${{{name}:-}} a variable that the image may have; known are"
        cure += f" those of the job and of the spec, and {', '.join(CONTAINER_VARIABLES)}"
    return error(f"workload.{field}", "no such variable is known, so it would be empty", seen=f"${name}", cure=cure)
