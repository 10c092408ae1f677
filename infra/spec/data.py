"""The spec's section `data`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from infra.spec.duration import Duration
from infra.spec.models.chat import Chat, resolve_template
from infra.spec.section import Section
from infra.spec.workload.links import refuse_wide

Location = Annotated[str, BeforeValidator(lambda given: str(given) if isinstance(given, Path) else given)]


class MixtureSource(Section):
    """One source of a mixture."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """Name of the source, unique in the mixture."""
    source: Location = Field(min_length=1)
    """See `data.source`."""
    pattern: str = "**/*"
    """Files to take, as a glob."""
    weight: float = Field(gt=0)
    """Share of the samples, relative to the other sources. It changes the order, not the prepared data."""
    licence: str = ""
    """Licence of the text; stands in the manifest and in reports."""
    origin: str = ""
    """Origin of the text, for people."""


class Preparation(Section):
    """The place and the machines of the text's preparation."""

    where: Literal["driver", "cluster"] = "driver"
    """`driver`: on the machine that runs `bivouac`, which uploads the result. `cluster`: on nodes of the campaign that
    go before the first GPU node comes; the sources are S3 prefixes, and no text passes the driver. Their buckets opt in
    by the tag `bivouac:text` with ABAC switched on, but for the foundation's own data bucket."""
    nodes: int = Field(default=4, ge=1, le=64)
    """Nodes that prepare, in the cluster. Their number changes no byte."""
    instance_type: str = "m7i.4xlarge"
    """EC2 instance type of these nodes: processors encode, and each of them takes half a GiB of memory."""
    capacity: Literal["on-demand", "spot"] = "on-demand"
    """Purchase option of these nodes. A spot node that is taken away costs the minute of work that it was at."""
    text_gib: float | None = Field(default=None, gt=0)
    """Amount of text in all sources, decompressed, for the plan's estimate. None: `bivouac run` and `check --online`
    ask S3 for the sizes of the objects."""
    limit: Duration = timedelta(hours=24)
    """Longest time of the preparation in the cluster."""


class Data(Section):
    """Text to prepare: one source, or a mixture of several."""

    source: Location = ""
    """A folder or file of text, JSON lines or Parquet, or `s3://bucket/prefix`. `hf:datasets/OWNER/NAME` is what
    `hf download` brought to this machine; `python:stdlib` stands for the sources of the running Python's standard
    library. Give either `source` or `mixture`."""
    pattern: str = "**/*.py"
    """Files to take, as a glob."""
    licence: str = ""
    """Licence of the text; stands in the manifest and in reports."""
    origin: str = ""
    """Origin of the text, for people."""
    mixture: tuple[MixtureSource, ...] = ()
    """Several sources, instead of `source`."""
    format: Literal["auto", "text", "jsonl", "parquet", "arrow", "chat", "megatron"] = "auto"
    """Format of the files; `auto` derives it from their names. `chat`: JSON lines with `prompt` and `response`, or with
    `messages` of `role` and `content`; only the responses are learned. `arrow`: as `save_to_disk` of Hugging Face's
    `datasets` writes it. `megatron`: token ids in `.bin` and `.idx`, made by `tokenizer`; they stay as they are."""
    chat: Chat | None = None
    """Of the format `chat`."""
    text_field: str = "text"
    """Field of a JSON line, or column of a Parquet file, that holds the text."""
    tokenizer: Path | None = None
    """A `tokenizer.json` to use. None: train one with `training.model.vocabulary` tokens."""
    end_of_document: str | None = None
    """The given tokenizer's token that ends a document. None: the usual ones are tried."""
    beginning_of_document: str | None = Field(default=None, exclude_if=lambda token: token is None)
    """The given tokenizer's token that every document begins with, as models expect it whose tokenizer writes one by
    itself, such as Llama's `<|begin_of_text|>`. None: none."""
    max_files: int | None = Field(default=None, ge=1)
    """Most files of each source, chosen by `seed`. None: all."""
    min_characters: int = Field(default=1, ge=1)
    """Shorter documents are dropped."""
    max_characters: int | None = Field(default=None, ge=1)
    """Longer documents are dropped. None: no limit."""
    max_repeated_lines: float = Field(default=1.0, gt=0, le=1)
    """Documents with a larger share of repeated lines are dropped."""
    min_letters_share: float = Field(default=0.0, ge=0, lt=1)
    """Documents with a smaller share of letters and digits are dropped."""
    deduplicate: bool = True
    """Keep only the first of equal documents."""
    held_out: float = Field(default=0.05, gt=0, lt=0.5)
    """Share of the documents held out for evaluation."""
    seed: int = 1234
    """Seed of the sample order, the held-out part and the choice of files."""
    shuffle_blocks: int = Field(default=16, ge=1)
    """Blocks (each of one shard's size) whose samples are shuffled together."""
    max_epochs: float = Field(default=50, gt=0)
    """Most times that training may read the data; `check` refuses more steps."""
    cache_gib: float = Field(default=32.0, ge=0)
    """Space on each node's NVMe for prefetched shards. 0: read from the shared tier."""

    prepare: Preparation = Preparation()
    """Where the text is prepared."""
    rehearsal: dict[str, Location] = Field(default={})
    """For a rehearsal, folders of this machine by the names of the sources in S3 (`text` for `source`): the emulated S3
    gets their files."""

    @model_validator(mode="before")
    @classmethod
    def _knows_its_chat_template(cls, section: Any) -> Any:
        return resolve_template(section) if isinstance(section, dict) else section

    @model_validator(mode="after")
    def _names_one_source_or_a_mixture(self) -> Self:
        if bool(self.source) == bool(self.mixture):
            raise ValueError("give either `source` or `mixture`")
        names = [part.name for part in self.mixture]
        if len(set(names)) < len(names):
            raise ValueError("the names of a mixture's sources must differ")
        return self

    @model_validator(mode="after")
    def _begins_text_with_a_given_token(self) -> Self:
        begins = self.beginning_of_document is not None
        if (self.tokenizer is None and (begins or self.format == "megatron")) or (begins and self.format == "chat"):
            raise ValueError("`beginning_of_document` and format megatron need `tokenizer`; a chat has its own")
        return self

    @model_validator(mode="after")
    def _is_in_s3_if_the_cluster_prepares_it(self) -> Self:
        local = [part.source for part in self.parts if not part.source.startswith("s3://")]
        if self.in_cluster and local:
            raise ValueError(f"the cluster prepares what is in S3: {', '.join(local)} is not; give s3://bucket/prefix")
        for part in self.parts if self.in_cluster else ():
            refuse_wide(part.source)
        names = {part.name for part in self.parts if part.source.startswith("s3://")}
        if unknown := sorted(set(self.rehearsal) - names):
            listing = ", ".join(sorted(names)) or "none"
            raise ValueError(f"rehearsal: {', '.join(unknown)} is no source in S3; there are: {listing}")
        return self

    @property
    def in_cluster(self) -> bool:
        """The campaign's own nodes prepare the text."""
        return self.prepare.where == "cluster"

    @property
    def parts(self) -> tuple[MixtureSource, ...]:
        """All sources, from `source` or from `mixture`."""
        if self.mixture:
            return self.mixture
        source = MixtureSource(
            name="text", source=self.source, pattern=self.pattern, weight=1, licence=self.licence, origin=self.origin
        )
        return (source,)
