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

from jinja2 import Environment, StrictUndefined
from rich.console import Console

from infra.cli.prepare.check import show
from infra.cli.prepare.checked import Checked, checked
from infra.cli.prepare.script import Script
from infra.cli.prepare.trial import Measured, measure
from infra.console.progress import Progress
from infra.errors import UserError
from infra.plan import catalogue
from infra.plan.checks import failed
from infra.plan.plan import make_plan

SEQUENCES_PER_RANK = 8
"""Sequences per rank and step, a multiple of the micro batch."""
_UNKNOWN_BUDGET, _UNKNOWN_DEADLINE = "9000000", "30d"
_ROOM = 1.5
"""Deadline / planned time: nodes die, and capacity may come late."""


@dataclass(frozen=True)
class Model:
    layers: int
    width: int
    heads: int
    context: int
    vocabulary: int
    learning_rate: str
    minimum_learning_rate: str
    precision: str
    step_seconds: float


SMALL = Model(2, 256, 4, 128, 2048, "3.0e-3", "3.0e-4", "float32", 0.35)
"""For a rehearsal: minutes on two cores."""
BILLION = Model(24, 2048, 16, 2048, 32000, "2.0e-4", "2.0e-5", "bfloat16", 1.0)
"""1.3 billion parameters, as GPT-3 XL: https://arxiv.org/abs/2005.14165, table 2.1."""


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

    def filled(self) -> Answers:
        """Return the answers with defaults for those left out."""
        here = self.target == "rehearsal"
        owner = self.owner or re.sub(r"[^a-z0-9-]", "-", getpass.getuser().lower())
        return replace(
            self,
            owner=owner,
            purpose=self.purpose or ("see a campaign before paying for one" if here else "a first campaign"),
            account=self.account or ("123456789012" if here else ""),
            zone=self.zone or f"{self.region}a",
            instance_type=self.instance_type or ("p5.4xlarge" if here else "p5.48xlarge"),
            nodes=self.nodes or (1 if self.script is not None and self.script.launcher == "none" else 2),
            data=self.data or ("python:stdlib" if here else ""),
            steps=self.steps or (self.script.steps if self.script else 0) or (110 if here else 2000),
        )


def text_of(answers: Answers) -> str:
    """Return the YAML of a spec; a missing budget or deadline is so large that it limits nothing."""
    script, measured = answers.script, answers.measured
    model = SMALL if answers.target == "rehearsal" else BILLION
    known = {item.name: item for item in catalogue.instance_types()}
    ranks = answers.nodes * (known[answers.instance_type].accelerators if answers.instance_type in known else 1)
    template = files("infra.cli.prepare").joinpath("spec.yaml.j2").read_text()
    facts = asdict(answers) | {
        "model": model,
        "warmup": max(1, answers.steps // 10),
        "global_batch": ranks * SEQUENCES_PER_RANK,
        "micro_batch": SEQUENCES_PER_RANK,
        "budget": answers.budget or _UNKNOWN_BUDGET,
        "deadline": answers.deadline or _UNKNOWN_DEADLINE,
        "progress": ""
        if script is None or script.pattern is None
        else "'{}'".format(script.pattern.replace("'", "''")),
        "step_seconds": round(measured.step_seconds, 4) if measured and measured.step_seconds else None,
        "checkpoint_gib": round(measured.checkpoint_gib, 6) or 1e-6 if measured and measured.checkpoint_gib else None,
    }
    return Environment(undefined=StrictUndefined, keep_trailing_newline=True).from_string(template).render(facts)


def first_spec(answers: Answers) -> tuple[str, Checked]:
    """Return a spec's text and its findings; a missing budget or deadline follows from its plan."""
    answers = answers.filled()
    text = text_of(answers)
    seen = _checked(text)
    if (answers.budget and answers.deadline) or seen.spec is None or seen.facts is None or failed(seen.findings):
        return text, seen
    if not answers.deadline:
        clock = float(make_plan(seen.spec, seen.facts).totals.clock.value)
        answers = replace(answers, deadline=f"{math.ceil(clock * _ROOM / 3600)}h")
        seen = _checked(text_of(answers))
    if not answers.budget and seen.spec is not None and seen.facts is not None:
        usd = make_plan(seen.spec, seen.facts).totals.usd_at_deadline.value
        answers = replace(answers, budget=str(math.ceil(usd / 10) * 10))
    text = text_of(answers)
    return text, _checked(text)


def init_command(path: Path, answers: Answers, console: Console, trial_s: float = 0) -> int:
    """Write a spec. Exit code 0, or 64 when the answers make no campaign; then nothing is written. Never overwrites a
    file. `trial_s`: how long the script may run here to be measured; 0: not at all."""
    text, seen = first_spec(answers)
    if trial_s and seen.spec is not None and seen.facts is not None and not failed(seen.findings):
        progress = Progress(console)
        with progress.stage("try", f"one rank on this machine, at most {trial_s:.0f} s"):
            found = measure(seen.spec, make_plan(seen.spec, seen.facts), trial_s, progress.step)
        answers = replace(answers, measured=found, steps=answers.steps or (found.steps if found.whole else 0))
        text, seen = first_spec(answers)
    if failed(seen.findings):
        show(path, seen.findings, False, console)
        return UserError.exit_code
    with path.open("x") as file:
        file.write(text)
    show(path, seen.findings, False, console)
    for note in _notes(answers):
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    console.print(f"written: {path}; next: bivouac plan {path}", markup=False, soft_wrap=True)
    return 0


def _notes(answers: Answers) -> Iterator[str]:
    """Yield what only a person can see to, in a script of one's own."""
    script, measured = answers.script, answers.measured
    if script is None:
        return
    if script.absent:
        yield f"it imports what this machine lacks: {', '.join(script.absent)}; name it in requirements.txt"
    if script.needs_cuda and measured is None:
        yield "it insists on CUDA, and a rehearsal has none: let it ask torch.cuda.is_available()"
    if not script.knows_folder and not script.folder_option:
        yield "let it write checkpoints into $BIVOUAC_CHECKPOINTS, and go on from $BIVOUAC_RESUME_FROM if that is set"
    if script.progress_why.startswith("NOT FOUND"):
        yield "no printed step was found in it: see workload.progress"
    if measured is not None and measured.step_seconds is None:
        yield "no step was seen in the trial: its time is a guess, and workload.progress may not fit"
    if measured is not None and measured.unsealed:
        yield f"{measured.unsealed} files lay in its folder, and none was a finished checkpoint: see checkpoints.format"


def _checked(text: str) -> Checked:
    with tempfile.TemporaryDirectory(prefix="bivouac-init-") as folder:
        path = Path(folder) / "campaign.yaml"
        path.write_text(text)
        return checked(path)
