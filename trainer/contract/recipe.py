"""The recipe of a data set: its sources and parameters, as the user gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from trainer.contract.data import Parameters
from trainer.contract.frozen import Frozen

FOREIGN = frozenset({"site-packages", "dist-packages", "__pycache__", ".git"})
"""Folders within a source that are never part of it, such as installed packages in a standard library."""


class Source(Frozen):
    """One source of the mixture."""

    name: str = Field(default="text", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    location: str = Field(min_length=1)
    """A folder, a file, or `s3://bucket/prefix`."""
    pattern: str = "**/*"
    weight: float | None = Field(default=None, gt=0)
    licence: str = ""
    origin: str = ""

    @property
    def remote(self) -> bool:
        return self.location.startswith("s3://")

    @property
    def public_location(self) -> str:
        """The location in the manifest, equal on every machine."""
        return self.location.rstrip("/") if self.remote else Path(self.location).name


class Recipe(Frozen):
    sources: tuple[Source, ...] = Field(min_length=1)
    parameters: Parameters
    vocabulary: int = Field(default=4096, ge=258)
    """Size of the tokenizer that is trained; a given one has its own."""
    tokenizer: Path | None = None
    """A `tokenizer.json` to use; without it, byte-level BPE is trained on a sample of the text."""
    end_of_document: str | None = None
    """The given tokenizer's token that ends a document; without it, the usual ones are tried."""
    beginning_of_document: str | None = Field(default=None, exclude_if=lambda token: token is None)
    """The given tokenizer's token that every document begins with; None: none."""

    @model_validator(mode="after")
    def _names_each_source_once_and_its_tokenizer(self) -> Self:
        names = [source.name for source in self.sources]
        if len(set(names)) < len(names):
            raise ValueError(f"sources share a name: {', '.join(sorted(names))}")
        begins, form = self.beginning_of_document is not None, self.parameters.format
        if (self.tokenizer is None and (begins or form == "megatron")) or (begins and form == "chat"):
            raise ValueError("beginning_of_document and format megatron need a tokenizer; a chat template has its own")
        return self


def parse_source(argument: str, number: int, pattern: str, licence: str, origin: str) -> Source:
    """Parse `[NAME[@WEIGHT]=]LOCATION` of a command line. Raises `ValueError`."""
    head, equals, location = argument.partition("=")
    # A path or key may contain an equals sign; a name has neither slash nor colon.
    if not equals or not location or "/" in head or ":" in head:
        head, location = f"text{number}" if number else "text", argument
    name, _, weight = head.partition("@")
    share = float(weight) if weight else None
    return Source(name=name, location=location, pattern=pattern, weight=share, licence=licence, origin=origin)
