"""`bivouac init`: writes a first spec, with comments, that passes `bivouac check`."""

from __future__ import annotations

import getpass
import math
import re
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import typer
from jinja2 import Environment, StrictUndefined
from rich.console import Console

from infra.cli.prepare.check import show
from infra.cli.prepare.checked import Checked, checked
from infra.cli.prepare.script import Script, look_at
from infra.cli.prepare.trial import Measured, measure
from infra.console.plain_console import say
from infra.console.progress import Progress
from infra.console.terminal import has_terminal
from infra.errors import UserError
from infra.plan import catalogue
from infra.plan.checks import Finding, Level, failed
from infra.plan.plan import make_plan
from infra.spec.campaign import MAX_NAME

SEQUENCES_PER_RANK = 8
"""Sequences per rank and step, a multiple of the micro batch."""
_UNKNOWN_BUDGET, _UNKNOWN_DEADLINE = "9000000", "30d"
_ROOM = 1.5
"""Deadline / planned time: nodes die, and capacity may come late."""


@dataclass(frozen=True)
class Answers:
    """Inputs of a first spec; the fields are the options of `bivouac init`."""

    name: str
    target: str = "rehearsal"
    owner: str = ""
    purpose: str = ""
    account: str = ""
    region: str = "us-east-1"
    zone: str = ""
    instance_type: str = ""
    nodes: int = 0
    capacity: str = "on-demand"
    reservation: str = ""
    block_fee: str = ""
    block_hourly: str = ""
    budget: str = ""
    deadline: str = ""
    email: str = ""
    api_cidr: str = ""
    data: str = ""
    pattern: str = "**/*"
    steps: int = 0
    script: Script | None = None
    """A job of one's own; None: the built-in trainer."""
    measured: Measured | None = None
    """What its trial has shown."""

    def with_defaults(self) -> Answers:
        """Return the answers with defaults for those left out."""
        is_rehearsal = self.target == "rehearsal"
        owner = self.owner or re.sub(r"[^a-z0-9-]", "-", getpass.getuser().lower())
        return replace(
            self, owner=owner,
            purpose=self.purpose or ("see a campaign before paying for one" if is_rehearsal else "a first campaign"),
            account=self.account or ("123456789012" if is_rehearsal else ""), zone=self.zone or f"{self.region}a",
            instance_type=self.instance_type or ("p5.4xlarge" if is_rehearsal else "p5.48xlarge"),
            nodes=self.nodes or (1 if self.script is not None and self.script.launcher == "none" else 2),
            data=self.data or ("python:stdlib" if is_rehearsal else ""),
            steps=self.steps or (self.script.steps if self.script else 0) or (110 if is_rehearsal else 2000),
        )  # fmt: skip


def text_of(answers: Answers) -> str:
    """Return the YAML of a spec; a missing budget or deadline is so large that it limits nothing."""
    script, trial = answers.script, answers.measured
    types = {item.name: item for item in catalogue.instance_types()}
    ranks = answers.nodes * (types[answers.instance_type].accelerators if answers.instance_type in types else 1)
    template = files("infra.cli.prepare").joinpath("spec.yaml.j2").read_text()
    facts = asdict(answers) | {
        "warmup": max(1, answers.steps // 10), "global_batch": ranks * SEQUENCES_PER_RANK,
        "micro_batch": SEQUENCES_PER_RANK, "budget": answers.budget or _UNKNOWN_BUDGET,
        "deadline": answers.deadline or _UNKNOWN_DEADLINE,
        "progress": ""
        if script is None or script.pattern is None
        else "'{}'".format(script.pattern.replace("'", "''")),
        "step_seconds": round(trial.step_seconds, 4) if trial and trial.step_seconds else None,
        "checkpoint_gib": round(trial.checkpoint_gib, 6) or 1e-6 if trial and trial.checkpoint_gib else None,
    }  # fmt: skip
    return Environment(undefined=StrictUndefined, keep_trailing_newline=True).from_string(template).render(facts)


def first_spec(answers: Answers) -> tuple[str, Checked]:
    """Return a spec's text and its findings; a missing budget or deadline follows from its plan."""
    answers = answers.with_defaults()
    text = text_of(answers)
    check = _check_text(text)
    if (answers.budget and answers.deadline) or check.spec is None or check.facts is None or failed(check.findings):
        return text, check
    if not answers.deadline:
        clock = float(make_plan(check.spec, check.facts).totals.clock.value)
        answers = replace(answers, deadline=f"{math.ceil(clock * _ROOM / 3600)}h")
        check = _check_text(text_of(answers))
    if not answers.budget and check.spec is not None and check.facts is not None:
        usd = make_plan(check.spec, check.facts).totals.usd_at_deadline.value
        answers = replace(answers, budget=str(math.ceil(usd / 10) * 10))
    text = text_of(answers)
    return text, _check_text(text)


class SpecQuestion(NamedTuple):
    """An answer that a campaign on AWS needs, and that has no default or one worth a look."""

    option: str
    field: str
    """Field of the spec that the answer becomes."""
    text: str
    example: str
    """Stands for the answer while others are judged."""
    default: str | None = None


QUESTIONS = (
    SpecQuestion("account", "account", "AWS account (12 digits)", "123456789012"),
    SpecQuestion("zone", "zone", "Availability zone", "", "{region}a"),
    SpecQuestion("instance_type", "nodes.instance_type", "Instance type of the GPU nodes", "", "p5.48xlarge"),
    SpecQuestion("email", "money.alarm_email", "Email address for alarms of the budget", "a@example.com"),
    SpecQuestion(
        "api_cidr", "network.api_allowed_cidrs",
        "Range that you come from, as 203.0.113.7/32 (see https://checkip.amazonaws.com)", "203.0.113.7/32",
    ),
    SpecQuestion("data", "data", "Where the text lies (folder, file or s3://bucket/prefix)", "s3://bucket/prefix"),
)  # fmt: skip


def ask_answers(answers: Answers, console: Console) -> Answers:
    """Return the answers with those of a person at the terminal, each judged when it is given and asked again until it
    fits."""
    for question in QUESTIONS:
        if getattr(answers, question.option) or (question.option == "data" and answers.script is not None):
            continue
        default = question.default and question.default.format(region=answers.region)
        while True:
            reply = replace(answers, **{question.option: typer.prompt(question.text, default=default).strip()})
            problems = problems_of(reply, question)
            for problem in problems:
                say(console, f"{problem.message}; seen: {problem.seen}; cure: {problem.cure}")
            if not problems:
                answers = reply
                break
    return answers


def problems_of(answers: Answers, question: SpecQuestion) -> list[Finding]:
    """Return the errors that `bivouac check` finds in one answer; examples stand for those that are not given yet."""
    examples: dict[str, Any] = {item.option: item.example for item in QUESTIONS if not getattr(answers, item.option)}
    findings = _check_text(text_of(replace(answers, **examples).with_defaults())).findings
    return [
        finding
        for finding in findings
        if finding.level is Level.ERROR and f"{finding.field}.".startswith(f"{question.field}.")
    ]


def slug(name: str) -> str:
    """Return the nearest name that a campaign may have: small letters, digits and dashes, from a letter on."""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower())
    return re.sub(r"^[^a-z]+", "", words)[:MAX_NAME].strip("-") or "campaign"


def init_command(
    path: Path, name: str, script: Path | None, run: bool | None, try_seconds: int, console: Console, **options: Any
) -> int:
    """Write a spec. Exit code 0, or 64 when the answers make no campaign; then nothing is written. Never overwrites a
    file. `run`: measure the script here, in at most `try_seconds`. `options`: other fields of `Answers`."""
    if path.exists():  # before anything is asked
        raise UserError("there is a file already", seen=str(path), cure="name another, or remove it")
    answers = Answers(name=slug(name or path.stem), script=None if script is None else look_at(script), **options)
    if answers.name != (name or path.stem):
        console.print(f"note: the campaign is called {answers.name}: a name has small letters, digits and dashes")
    if answers.target == "aws" and has_terminal():
        answers = ask_answers(answers, console)
    if script is not None and run is None and has_terminal():
        run = typer.confirm(f"Run a few steps of {script} here, at most {try_seconds} s, to measure them?")
    text, check = first_spec(answers)
    if run and script is not None and check.spec is not None and check.facts is not None and not failed(check.findings):
        progress = Progress(console)
        with progress.stage("try", f"one rank on this machine, at most {try_seconds} s"):
            trial = measure(check.spec, make_plan(check.spec, check.facts), try_seconds, progress.step)
        answers = replace(answers, measured=trial, steps=answers.steps or (trial.steps if trial.whole else 0))
        text, check = first_spec(answers)
    show(path, check.findings, False, console)
    if failed(check.findings):
        console.print(f"nothing was written: give the options again, corrected, and {path} is made")
        return UserError.exit_code
    with path.open("x") as file:
        file.write(text)
    for note in _notes(answers):
        say(console, f"note: {note}")
    say(console, f"written: {path}; next: bivouac plan {path}")
    return 0


def _notes(answers: Answers) -> Iterator[str]:
    """Yield what only a person can see to, in a script of one's own."""
    script, trial = answers.script, answers.measured
    if script is None:
        return
    if script.absent:
        yield f"it imports what this machine lacks: {', '.join(script.absent)}; name it in requirements.txt"
    if script.needs_cuda and trial is None:
        yield "it insists on CUDA, and a rehearsal has none: let it ask torch.cuda.is_available()"
    if not script.knows_folder and not script.folder_option:
        yield "let it write checkpoints into $BIVOUAC_CHECKPOINTS, and go on from $BIVOUAC_RESUME_FROM if that is set"
    if script.progress_why.startswith("NOT FOUND"):
        yield "no printed step was found in it: see workload.progress"
    if trial is not None and trial.step_seconds is None:
        yield "no step was seen in the trial: its time is a guess, and workload.progress may not fit"
    if trial is not None and trial.unsealed:
        yield f"{trial.unsealed} files lay in its folder, and none was a finished checkpoint: see checkpoints.format"


def _check_text(text: str) -> Checked:
    with tempfile.TemporaryDirectory(prefix="bivouac-init-") as folder:
        path = Path(folder) / "campaign.yaml"
        path.write_text(text)
        return checked(path)
