"""`bivouac data ...` as the command line knows it; what each does is imported when called."""

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
    spec: Annotated[
        Path | None, typer.Option(help="Prepare what a spec's section `data` says; only OUT is given.")
    ] = None,
    pattern: Annotated[str, typer.Option(help="Files to take.")] = "**/*",
    vocabulary: Annotated[int, typer.Option(help="Size of the tokenizer that is trained.")] = 4096,
    tokenizer: Annotated[Path | None, typer.Option(help="A tokenizer.json to use instead.")] = None,
    end_of_document: Annotated[str | None, typer.Option(help="Its token that ends a document.")] = None,
    held_out: Annotated[float, typer.Option(help="Part held out for evaluation.")] = 0.05,
    seed: int = 1234,
    max_files: Annotated[int | None, typer.Option(help="At most so many files of a source, chosen by seed.")] = None,
    format: Annotated[str, typer.Option(help="auto (by the name), text, jsonl or parquet.")] = "auto",
    text_field: Annotated[str, typer.Option(help="Field or column that holds the text.")] = "text",
    licence: Annotated[str, typer.Option(help="Of the text; kept in the manifest and shown in reports.")] = "",
    origin: Annotated[str, typer.Option(help="Where the text came from, for people.")] = "",
    deduplicate: Annotated[bool, typer.Option(help="Keep the first of equal documents only.")] = True,
    min_characters: Annotated[int, typer.Option(help="Shorter documents are left out.")] = 1,
    max_characters: Annotated[int | None, typer.Option(help="Longer documents are left out.")] = None,
    max_repeated_lines: Annotated[float, typer.Option(help="Documents with a larger share are left out.")] = 1.0,
    min_letters_share: Annotated[float, typer.Option(help="Documents with a smaller share are left out.")] = 0.0,
    cores: Annotated[int | None, typer.Option(help="Processes; left out: as many as fit.")] = None,
    json: Json = False,
) -> None:
    """Text, JSON lines or Parquet to token shards in Megatron's format, with a manifest of digests and a report."""
    given = {**locals()}
    from infra.cli.data.prepare import prepare_command

    raise typer.Exit(prepare_command(given, console, as_json=json))


@data.command("audit")
def data_audit(
    place: Annotated[str, typer.Argument(help="A campaign's name, or a folder of committed checkpoints.")],
    config: Annotated[Path | None, typer.Option(help="train.json; left out: the one beside the checkpoints.")] = None,
    data: Annotated[Path | None, typer.Option(help="The prepared data: every sample is read again.")] = None,
    log: Annotated[list[Path] | None, typer.Option(help="JSON lines of an attempt, for a folder.")] = None,
    region: Region = "us-east-1",
    json: Json = False,
) -> None:
    """Was every sample of the planned range consumed exactly once, over all attempts and sizes? Exits 1 when not."""
    from infra import target
    from infra.checkpoints.find import is_campaign

    if is_campaign(place):
        target.enter_where(place)
    from infra.cli.data.audit import audit_command

    raise typer.Exit(audit_command(place, config, data, log or [], region, json, console))
