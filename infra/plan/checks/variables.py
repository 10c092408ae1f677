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
    known = {*JOB_VARIABLES, *CONTAINER_VARIABLES, *workload.secrets, *workload.nccl, *workload.env}
    known |= set(workload.rehearsal.env)
    on_node_0 = ("command", "args", "rehearsal.args") if workload.launcher == "mpirun" else ()
    for field, text, by_shell in _texts(workload):
        here = (known | JUDGING_VARIABLES if field in _JUDGING else known) - (
            NODE_VARIABLES if field in on_node_0 else set()
        )
        if not by_shell and (beginning := unreadable(text)):
            cure = (
                "write ${NAME}, ${NAME:-text} or ${NAME:+text}; $$ is a dollar; a shell's own go into [bash, -c, ...]"
            )
            yield error(f"workload.{field}", "names no variable, and no shell reads it", seen=beginning, cure=cure)
        # A shell has variables of its own, so only a wrong name of ours can be told.
        for name, is_optional in script_references(text) if by_shell else references(text):
            if name not in here and not (is_optional and not name.startswith(OURS) and name not in ELSEWHERE):
                yield _refused(field, name, here)
    named = {
        name: {one for one, _ in references(text)} - {name} for name, text in (workload.nccl | workload.env).items()
    }
    try:
        TopologicalSorter(named).prepare()
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
    for field, before, words in rows:
        script = shell_script((*before, *words))
        yield from ((field, word, at == script) for at, word in enumerate(words, len(before)))


def _refused(field: str, name: str, known: set[str]) -> Draft:
    if name in ELSEWHERE:
        return error(
            f"workload.{field}", ELSEWHERE[name], seen=f"${name}", cure="leave it out: the program reads it where it is"
        )
    if name.startswith(OURS):
        cure = "write one of " + ", ".join(sorted(one for one in known if one.startswith(OURS)))
    else:
        near = "".join(f"did you mean {one}? " for one in difflib.get_close_matches(name, sorted(known), 1))
        cure = (
            f"{near}$${name} is the text itself, ${{{name}:-}} a variable that the image may have; known are those of"
        )
        cure += f" the job and of the spec, and {', '.join(CONTAINER_VARIABLES)}"
    return error(f"workload.{field}", "no such variable is known, so it would be empty", seen=f"${name}", cure=cure)
