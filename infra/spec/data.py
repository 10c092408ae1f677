"""The spec's section `data`: the text that a campaign trains on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from infra.spec.section import Section

Location = Annotated[str, BeforeValidator(lambda given: str(given) if isinstance(given, Path) else given)]


class MixtureSource(Section):
    """One of several sources."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """Name of the source, unique in the mixture."""
    source: Location = Field(min_length=1)
    """As `data.source`."""
    pattern: str = "**/*"
    """Files to take, as a glob."""
    weight: float = Field(gt=0)
    """Share of the samples, relative to the other sources. It changes the order, not the prepared data."""
    licence: str = ""
    """Licence of the text; stands in the manifest and in reports."""
    origin: str = ""
    """Where the text came from, for people."""


class Data(Section):
    """Text to prepare: one source, or a mixture of several."""

    source: Location = ""
    """A folder or file of text, JSON lines or Parquet, or `s3://bucket/prefix`. `python:stdlib` stands for the sources
    of the running Python's standard library. Give either `source` or `mixture`."""
    pattern: str = "**/*.py"
    """Files to take, as a glob."""
    licence: str = ""
    """Licence of the text; stands in the manifest and in reports."""
    origin: str = ""
    """Where the text came from, for people."""
    mixture: tuple[MixtureSource, ...] = ()
    """Several sources, instead of `source`."""
    format: Literal["auto", "text", "jsonl", "parquet"] = "auto"
    """Format of the files; `auto` goes by their names."""
    text_field: str = "text"
    """Field of a JSON line, or column of a Parquet file, that holds the text."""
    tokenizer: Path | None = None
    """A `tokenizer.json` to use. None: a tokenizer of `training.model.vocabulary` tokens is trained."""
    max_files: int | None = Field(default=None, ge=1)
    """At most this many files of each source, chosen by `seed`. None: all."""
    min_characters: int = Field(default=1, ge=1)
    """Shorter documents are left out."""
    max_characters: int | None = Field(default=None, ge=1)
    """Longer documents are left out. None: none is."""
    max_repeated_lines: float = Field(default=1.0, gt=0, le=1)
    """Documents with a larger share of repeated lines are left out."""
    min_letters_share: float = Field(default=0.0, ge=0, lt=1)
    """Documents with a smaller share of letters and digits are left out."""
    deduplicate: bool = True
    """Keep only the first of equal documents."""
    held_out: float = Field(default=0.05, gt=0, lt=0.5)
    """Share of the documents that is held out for evaluation."""
    seed: int = 1234
    """Seed of the order of samples, of the held-out part and of the choice of files."""
    shuffle_blocks: int = Field(default=16, ge=1)
    """Blocks (of one shard's size each) whose samples are shuffled with each other."""
    max_epochs: float = Field(default=50, gt=0)
    """`check` refuses a number of steps that would read the data more often than this."""
    cache_gib: float = Field(default=32.0, ge=0)
    """Room on each node's NVMe for shards that are fetched ahead of need. With 0 they are read from the shared tier."""

    @model_validator(mode="after")
    def _names_one_source_or_a_mixture(self) -> Self:
        if bool(self.source) == bool(self.mixture):
            raise ValueError("give either `source` or `mixture`")
        names = [part.name for part in self.mixture]
        if len(set(names)) < len(names):
            raise ValueError("the names of a mixture's sources differ")
        return self

    @property
    def parts(self) -> tuple[MixtureSource, ...]:
        """All sources, whichever way they were given."""
        if self.mixture:
            return self.mixture
        alone = MixtureSource(
            name="text", source=self.source, pattern=self.pattern, weight=1, licence=self.licence, origin=self.origin
        )
        return (alone,)
