"""Command line of `bivouac data`; implementations are imported when called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.cli.options import Json, Region, console

data = typer.Typer(no_args_is_help=True, help="Data sets.")


@data.command("prepare")
def data_prepare(
    places: Annotated[
        list[str], typer.Argument(help="SOURCE... OUT; a source is [NAME[@WEIGHT]=]FOLDER, FILE or s3://...")
    ],
    spec: Annotated[Path | None, typer.Option(help="Prepare by the section `data` of a spec; give only OUT.")] = None,
    pattern: Annotated[str, typer.Option(help="Files to take.")] = "**/*",
    vocabulary: Annotated[int, typer.Option(help="Size of the tokenizer that is trained.")] = 4096,
    tokenizer: Annotated[Path | None, typer.Option(help="A tokenizer.json to use instead.")] = None,
    end_of_document: Annotated[str | None, typer.Option(help="Its token that ends a document.")] = None,
    held_out: Annotated[float, typer.Option(help="Part held out for evaluation.")] = 0.05,
    seed: int = 1234,
    max_files: Annotated[int | None, typer.Option(help="Most files of a source, chosen by seed.")] = None,
    format: Annotated[str, typer.Option(help="auto (by the name), text, jsonl, parquet or chat.")] = "auto",
    chat_template: Annotated[str | None, typer.Option(help="Of chats: a Jinja file, or plain.")] = None,
    context: Annotated[int | None, typer.Option(help="Of chats: the model's context, to pack samples for.")] = None,
    text_field: Annotated[str, typer.Option(help="Field or column that holds the text.")] = "text",
    licence: Annotated[str, typer.Option(help="Licence of the text, for the manifest and reports.")] = "",
    origin: Annotated[str, typer.Option(help="Where the text came from, for people.")] = "",
    deduplicate: Annotated[bool, typer.Option(help="Keep the first of equal documents only.")] = True,
    min_characters: Annotated[int, typer.Option(help="Shorter documents are left out.")] = 1,
    max_characters: Annotated[int | None, typer.Option(help="Longer documents are left out.")] = None,
    max_repeated_lines: Annotated[float, typer.Option(help="Documents with a larger share are left out.")] = 1.0,
    min_letters_share: Annotated[float, typer.Option(help="Documents with a smaller share are left out.")] = 0.0,
    cores: Annotated[int | None, typer.Option(help="Processes; default: as many as fit.")] = None,
    json: Json = False,
) -> None:
    """Turn text, JSON lines or Parquet into token shards in Megatron's format, with a manifest of digests and a
    report."""
    given = {**locals()}
    from infra.cli.data.prepare import prepare_command

    raise typer.Exit(prepare_command(given, console, as_json=json))


@data.command("audit")
def data_audit(
    place: Annotated[str, typer.Argument(help="A campaign's name, or a folder of committed checkpoints.")],
    config: Annotated[Path | None, typer.Option(help="train.json; default: the one beside the checkpoints.")] = None,
    data: Annotated[Path | None, typer.Option(help="The prepared data, to read every sample again.")] = None,
    log: Annotated[list[Path] | None, typer.Option(help="JSON lines of an attempt; only for a folder.")] = None,
    region: Region = "us-east-1",
    json: Json = False,
) -> None:
    """Prove that every sample of the planned range was consumed exactly once, over all attempts and sizes. Exits 1 if
    not."""
    from infra import target
    from infra.checkpoints.find import is_campaign

    if is_campaign(place):
        target.enter_where(place)
    from infra.cli.data.audit import audit_command

    raise typer.Exit(audit_command(place, config, data, log or [], region, json, console))
