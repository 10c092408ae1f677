"""`bivouac rehearse SPEC`: the campaign of a spec on this machine first, with a node that dies."""

from __future__ import annotations

import subprocess
from importlib.resources import files
from pathlib import Path

import yaml
from jinja2 import StrictUndefined, Template
from rich.console import Console

from infra import target
from infra.cli.answers import aside
from infra.cli.options import site_steps
from infra.cli.run.run import run_command
from infra.console.plain_console import say
from infra.console.tables import Listing
from infra.errors import UserError
from infra.folders import keep, own_module, refuse_unwritable, results_folder
from infra.record.rehearsals import RehearsalResult, remember
from infra.spec.campaign import Spec, load
from infra.spec.document import read
from infra.spec.rehearsed import ACCOUNT, REGION, Derived, derive, name_of

NOTES = "rehearsed.md"
"""File in the rehearsal's results folder: what was exercised, what was emulated, what was not."""
WEIGHTS = "weights"
"""Folder beside it: drawn weights, from which the rehearsal of a warm start begins."""


def rehearse_command(
    path: Path, nodes: int, fault: list[str] | None, no_fault: bool, console: Console, *, as_json: bool = False
) -> int:
    """Derive the rehearsal, run it, and say what it showed; exit code as of `run`."""
    real, content = load(path).spec, read(path).content
    assert isinstance(content, dict)  # else `load` refuses it
    folder = results_folder(name_of(real.campaign), ACCOUNT, REGION)
    derivation = derive(content, real, nodes, parse_faults(fault, no_fault), folder / WEIGHTS)
    refuse_unwritable(folder, "BIVOUAC_RESULTS")
    small = folder / "rehearsal.yaml"
    small.write_text(yaml.safe_dump(derivation.document, sort_keys=False, allow_unicode=True))
    # Before anything is told: entering the site begins this command anew.
    notes_console = aside(console, as_json)
    target.enter_for(load(small).spec, site_steps(notes_console))
    if not as_json:
        _table(derivation).show(console)
    _draw(load(small).spec, notes_console)
    code = run_command(small, True, console, as_json=as_json)
    missed_faults = target.missed_faults(load(small).spec)
    keep(folder / NOTES, notes(real.campaign, derivation, code, missed_faults), console.print)
    remember(RehearsalResult.now(real, ended_well=code == 0))
    if not as_json:
        say(console, f"what it showed, and what it cannot show: {folder / NOTES}")
    return code


def _draw(spec: Spec, console: Console) -> None:
    """Draw the weights that the rehearsal starts from, where its spec expects them."""
    if spec.training is None or spec.training.init_from is None:
        return
    say(console, f"{'weights':<10} drawing those of the debug model")
    command = own_module("trainer.builtin.model.drawn", spec.training.init_from)
    process = subprocess.run(command, input=spec.training.model.model_dump_json(), capture_output=True, text=True)
    if process.returncode:
        error_text = (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        raise UserError("the debug model's weights cannot be drawn", seen=error_text, cure="run `make setup`")


def _table(derivation: Derived) -> Listing:
    table = Listing("field", "~in the spec", "~here", "~why", title="the rehearsal differs in", has_rule=True)
    for difference in derivation.differences:
        table.row(difference.field, difference.real, difference.rehearsed, difference.why)
    return table


def notes(campaign: str, derivation: Derived, code: int, missed_faults: tuple[str, ...] = ()) -> str:
    """Return the page as Markdown: outcome, differences, and all fields that ran as they are for AWS.

    `missed`: faults that did not strike.
    """
    differing = tuple(f"{difference.field}." for difference in derivation.differences)
    template = files("infra.cli.run").joinpath("rehearsed.md.j2").read_text()
    facts = {
        "campaign": campaign, "code": code, "differences": derivation.differences, "missed": missed_faults,
        "same": [field for field in _fields(derivation.document) if not f"{field}.".startswith(differing)],
    }  # fmt: skip
    return Template(template, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True).render(facts)


def _fields(document: dict[str, object], prefix: str = "") -> list[str]:
    fields = []
    for name, value in document.items():
        fields += _fields(value, f"{prefix}{name}.") if isinstance(value, dict) else [f"{prefix}{name}"]
    return fields


def parse_faults(faults: list[str] | None, no_fault: bool) -> tuple[str, ...]:
    """Return the faults of the command line. Raises `UserError` for both faults and none of them."""
    if no_fault and faults:
        raise UserError("a fault and no fault at once", seen=", ".join(faults), cure="leave out --no-fault")
    return () if no_fault else tuple(faults or ("kill-node@40%",))
