"""`bivouac data prepare`: text to token shards, and a page about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console

from infra.cli.answers import aside, write_json
from infra.console.plain_console import say
from infra.console.progress import Progress
from infra.data import dataset
from infra.errors import UserError
from infra.report.data_page import data_page
from infra.spec.campaign import load
from infra.spec.models.chat import resolved
from infra.spec.recipe import recipe_of
from trainer.contract import DATA_REPORT_NAME, Parameters
from trainer.contract.recipe import Recipe, parse_source


def prepare_command(console: Console, *, as_json: bool = False, **given: Any) -> int:
    """Prepare a data set; exit code 0. `given`: the other arguments of the command line by name."""
    machine, console = console, aside(console, as_json)
    *sources, last = given["places"]
    out, progress = Path(last), Progress(console)
    recipe = _of_spec(given["spec"], sources) if given["spec"] else _of_arguments(given, sources)
    with progress.stage("data", f"to {out}"):
        made = dataset.run_tool(recipe, out, given["cores"], progress.step)
        found = dataset.load(out)
        (out / DATA_REPORT_NAME).write_text(data_page(found))
    manifest = found.manifest
    if as_json:
        facts: dict[str, Any] = {"documents": manifest.documents, "left_out": manifest.skipped_documents}
        facts |= {"held_out": manifest.held_out_documents, **made, "folder": str(out)}
        write_json(machine, facts)
        return 0
    left_out = f", {manifest.skipped_documents:,} left out" if manifest.skipped_documents else ""
    console.print(f"{manifest.documents:,} documents{left_out}; {manifest.held_out_documents:,} held out")
    console.print(f"{made['tokens']:,} tokens; unigram model {made['unigram_loss']:.3f} nats per token")
    console.print(f"manifest {made['manifest_sha256']}")
    say(console, f"report   {out / DATA_REPORT_NAME}")
    return 0


def _of_spec(path: Path, sources: list[str]) -> Recipe:
    if sources:
        raise UserError("a spec names its own sources", seen=" ".join(sources), cure="give only the output folder")
    return recipe_of(load(path).spec)


def _of_arguments(given: dict[str, Any], sources: list[str]) -> Recipe:
    if not sources:
        raise UserError("no source is given", seen=given["places"][0], cure="bivouac data prepare SOURCE... OUT")
    same = given["pattern"], given["licence"], given["origin"]
    names = Parameters.model_fields.keys() & given.keys()
    try:
        return Recipe(
            sources=tuple(parse_source(each, number, *same) for number, each in enumerate(sources)),
            parameters=Parameters(**{name: given[name] for name in names}, chat=_chat(given)),
            vocabulary=given["vocabulary"], tokenizer=given["tokenizer"], end_of_document=given["end_of_document"],
        )  # fmt: skip
    except ValidationError as error:
        seen = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise UserError("the arguments do not fit", seen=seen, cure="see bivouac data prepare --help") from error
    except ValueError as error:
        raise UserError("the arguments do not fit", seen=error, cure="see bivouac data prepare --help") from error


def _chat(given: dict[str, Any]) -> Any:
    """Return how samples become text. Raises `ValueError` without a template."""
    section = {name: given.get(name) for name in ("format", "tokenizer")}
    if template := given.get("chat_template"):
        section["chat"] = {"template": template}
    found = resolved(section).get("chat")
    return found and {**found, "context": given.get("context")}
