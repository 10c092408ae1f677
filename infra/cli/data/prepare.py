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
from infra.spec.models.chat import resolve_template
from infra.spec.recipe import recipe_of
from trainer.contract import DATA_REPORT_NAME, Parameters
from trainer.contract.recipe import Recipe, parse_source


def prepare_command(console: Console, *, as_json: bool = False, **arguments: Any) -> int:
    """Prepare a data set; exit code 0. `arguments`: the other arguments of the command line by name."""
    machine, console = console, aside(console, as_json)
    *sources, folder = arguments["places"]
    output_folder, progress = Path(folder), Progress(console)
    recipe = _of_spec(arguments["spec"], sources) if arguments["spec"] else _of_arguments(arguments, sources)
    with progress.stage("data", f"to {output_folder}"):
        summary = dataset.run_tool(recipe, output_folder, arguments["cores"], progress.step)
        dataset_here = dataset.load(output_folder)
        (output_folder / DATA_REPORT_NAME).write_text(data_page(dataset_here))
    manifest = dataset_here.manifest
    if as_json:
        facts: dict[str, Any] = {"documents": manifest.documents, "left_out": manifest.skipped_documents}
        facts |= {"held_out": manifest.held_out_documents, **summary, "folder": str(output_folder)}
        write_json(machine, facts)
        return 0
    left_out = f", {manifest.skipped_documents:,} left out" if manifest.skipped_documents else ""
    console.print(f"{manifest.documents:,} documents{left_out}; {manifest.held_out_documents:,} held out")
    console.print(f"{summary['tokens']:,} tokens; unigram model {summary['unigram_loss']:.3f} nats per token")
    console.print(f"manifest {summary['manifest_sha256']}")
    say(console, f"report   {output_folder / DATA_REPORT_NAME}")
    return 0


def _of_spec(path: Path, sources: list[str]) -> Recipe:
    if sources:
        raise UserError("a spec names its own sources", seen=" ".join(sources), cure="give only the output folder")
    return recipe_of(load(path).spec)


def _of_arguments(arguments: dict[str, Any], sources: list[str]) -> Recipe:
    if not sources:
        raise UserError("no source is given", seen=arguments["places"][0], cure="bivouac data prepare SOURCE... OUT")
    origin = arguments["pattern"], arguments["licence"], arguments["origin"]
    names = Parameters.model_fields.keys() & arguments.keys()
    try:
        return Recipe(
            sources=tuple(parse_source(source, number, *origin) for number, source in enumerate(sources)),
            parameters=Parameters(**{name: arguments[name] for name in names}, chat=_chat(arguments)),
            vocabulary=arguments["vocabulary"], tokenizer=arguments["tokenizer"],
            end_of_document=arguments["end_of_document"], beginning_of_document=arguments.get("beginning_of_document"),
        )  # fmt: skip
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise UserError("the arguments do not fit", seen=problems, cure="see bivouac data prepare --help") from error
    except ValueError as error:
        raise UserError("the arguments do not fit", seen=error, cure="see bivouac data prepare --help") from error


def _chat(arguments: dict[str, Any]) -> Any:
    """Return how samples become text. Raises `ValueError` without a template."""
    section = {name: arguments.get(name) for name in ("format", "tokenizer")}
    if template := arguments.get("chat_template"):
        section["chat"] = {"template": template}
    chat = resolve_template(section).get("chat")
    return chat and {**chat, "context": arguments.get("context")}
