"""Command line of data sets and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.cli.options import Json, Region, YesRemove, known_campaigns, runs

data = typer.Typer(no_args_is_help=True, help="Data sets.")
checkpoints = typer.Typer(
    no_args_is_help=True, help="Checkpoints of a campaign, of a folder, or below an s3:// prefix."
)

Place = Annotated[
    str, typer.Argument(help="A campaign's name, a folder, or s3://bucket/prefix.", autocompletion=known_campaigns)
]
OneStep = Annotated[int | None, typer.Option("--step", help="Step; default: the golden one, else the newest.")]
Tier = Annotated[str | None, typer.Option("--tier", help="Tier of a campaign: archive, shared, or (to verify) local.")]


@checkpoints.command("list")
@runs("data.checkpoints:list_command", enters=("place",))
def checkpoints_list(place: Place, region: Region = "us-east-1", json: Json = False) -> None:
    """List every step on every tier that can be seen from here."""


@checkpoints.command("verify")
@runs("data.checkpoints:verify_command", enters=("place",))
def checkpoints_verify(
    place: Place, step: OneStep = None, tier: Tier = None, region: Region = "us-east-1", json: Json = False
) -> None:
    """Read every byte and compare digests; name each bad shard and exit 74 if there is one. For a campaign: the
    archive, and by its steward the shared tier and every node's disk."""


@checkpoints.command("diff")
@runs("data.checkpoints:diff_command", enters=("place",))
def checkpoints_diff(
    place: Place,
    first: Annotated[int, typer.Argument(help="A step.")],
    second: Annotated[int, typer.Argument(help="Another step.")],
    second_place: Annotated[str | None, typer.Option("--in", help="Place of the second; default: the same.")] = None,
    region: Region = "us-east-1",
    json: Json = False,
) -> None:
    """Show tensors and metadata in which two steps differ; exits 1 when they do."""


@checkpoints.command("restore")
@runs("data.checkpoints:restore_command", enters=("place",))
def checkpoints_restore(
    place: Place,
    out: Annotated[Path, typer.Argument(help="Folder to bring it to; an interrupted restore continues.")],
    step: OneStep = None,
    tier: Tier = None,
    sealed: Annotated[bool, typer.Option("--sealed", help="Bring a job's shards and manifest, not its files.")] = False,
    region: Region = "us-east-1",
    as_json: Json = False,
) -> None:
    """Bring a step here from the archive or out of the cluster, verify every byte, and show how to load it. Of a job of
    one's own these are its files, with the names that it gave them."""


@checkpoints.command("prune")
@runs("data.checkpoints:prune_command", enters=("place",))
def checkpoints_prune(
    place: Place,
    keep: Annotated[int, typer.Option(min=0, help="Newest committed steps to keep.")] = 2,
    consent: YesRemove = False,
    tier: Tier = None,
    region: Region = "us-east-1",
    json: Json = False,
) -> None:
    """Show old steps and remove them after a yes; the newest step that was proven by reading it always stays."""


@checkpoints.command("import")
@runs("data.checkpoints:import_command")
def checkpoints_import(
    folder: Annotated[Path, typer.Argument(help="Folder of a tag that DeepSpeed saved, such as global_step100.")],
    tier: Annotated[Path, typer.Argument(metavar="OUT", help="Folder of a tier, new or old: OUT/<campaign>/step-...")],
    campaign: Annotated[str, typer.Option(help="Name of the campaign that will continue from it.")],
    tokens: Annotated[int, typer.Option(min=0, help="Tokens consumed until then.")],
    position: Annotated[int, typer.Option(min=0, help="Sequences consumed until then, over all ranks.")],
    json: Json = False,
) -> None:
    """Import a folder without a manifest: checked by the allow-list, never executed, never replacing a step."""


@data.command("prepare")
@runs("data.prepare:prepare_command")
def data_prepare(
    places: Annotated[
        list[str], typer.Argument(help="SOURCE... OUT; a source is [NAME[@WEIGHT]=]FOLDER, FILE or s3://...")
    ],
    spec: Annotated[Path | None, typer.Option(help="Prepare by the section `data` of a spec; give only OUT.")] = None,
    pattern: Annotated[str, typer.Option(help="Files to take.")] = "**/*",
    vocabulary: Annotated[int, typer.Option(help="Size of the tokenizer that is trained.")] = 4096,
    tokenizer: Annotated[Path | None, typer.Option(help="A tokenizer.json to use instead.")] = None,
    end_of_document: Annotated[str | None, typer.Option(help="Its token that ends a document.")] = None,
    beginning_of_document: Annotated[str | None, typer.Option(help="Its token that begins a document.")] = None,
    held_out: Annotated[float, typer.Option(help="Part held out for evaluation.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Seed of the choice of files, of held-out documents and of order.")] = 1234,
    max_files: Annotated[int | None, typer.Option(help="Most files of a source, chosen by seed.")] = None,
    format: Annotated[str, typer.Option(help="By the name, or text, jsonl, parquet, arrow, chat, megatron.")] = "auto",
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
    as_json: Json = False,
) -> None:
    """Turn text, JSON lines or Parquet into token shards in Megatron's format, with a manifest of digests and a
    report."""


@data.command("audit")
@runs("data.audit:audit_command", enters=("place",))
def data_audit(
    place: Annotated[str, typer.Argument(help="A campaign's name, or a folder of committed checkpoints.")],
    config: Annotated[Path | None, typer.Option(help="train.json; default: the one beside the checkpoints.")] = None,
    data: Annotated[Path | None, typer.Option(help="The prepared data, to read every sample again.")] = None,
    logs: Annotated[
        list[Path] | None, typer.Option("--log", help="JSON lines of an attempt; only for a folder.")
    ] = None,
    region: Region = "us-east-1",
    json: Json = False,
) -> None:
    """Prove that every sample of the planned range was consumed exactly once, over all attempts and sizes. Exits 1 if
    not."""
