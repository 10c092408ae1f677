"""A git reference as a workload's source: a repository's address, and a tag, branch or commit."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from infra.spec.section import Section

_ADDRESS = re.compile(r"(https?|ssh|file)://[^\s?#]+|[\w.-]+@[\w.-]+:[^\s:?#]+")
_LOGIN = re.compile(r"https?://[^/]*@|ssh://[^/@]*:[^/@]*@")
_REFERENCE = re.compile(r"[^\s~^:?*\[\\-][^\s~^:?*\[\\]*")


def _is_an_address(text: str) -> str:
    if _LOGIN.match(text):
        cure = "leave it out; git's credential helper or an SSH key of this machine has it"
        raise ValueError(f"has a login in it, which the record would keep; {cure}")
    if not _ADDRESS.fullmatch(text):
        raise ValueError("is no address of a repository; write https://..., ssh://..., user@host:path or file:///...")
    return text


def _is_a_reference(text: str) -> str:
    if not _REFERENCE.fullmatch(text) or ".." in text or "@{" in text:
        raise ValueError("is no name of a tag, branch or commit; write one name, or all digits of a commit")
    return text


def _is_below(text: str) -> str:
    if text.startswith("/") or ".." in text.split("/"):
        raise ValueError("leads out of the repository; give a path below it")
    return text


class GitSource(Section):
    """Code at a commit of a repository, which the driver's machine fetches with its own git and login."""

    git: Annotated[str, AfterValidator(_is_an_address)]
    """The repository: `https://...`, `ssh://...`, `user@host:path`, or `file:///...` on this machine. No login belongs
    in it."""
    ref: Annotated[str, AfterValidator(_is_a_reference)]
    """A tag, a branch, or a commit with all its digits. It becomes a commit once, when the campaign is provisioned;
    a relaunch looks again."""
    folder: Annotated[str, AfterValidator(_is_below)] = Field(default="", exclude_if=lambda folder: not folder)
    """The folder of the repository with the job's code. Empty: all of it."""

    def __str__(self) -> str:
        return f"{self.git} at {self.ref}" + (f", folder {self.folder}" if self.folder else "")


def source_of(value: Any) -> Any:
    """Return a folder's name or the reference that a section holds. Raises `ValueError` for anything else."""
    if isinstance(value, dict):
        return GitSource.model_validate(value)
    if value is not None and not isinstance(value, str | GitSource):
        raise ValueError("is no source; write a folder, or a section with `git` and `ref`")
    return value


JobSource = Annotated[str | GitSource | None, BeforeValidator(source_of, json_schema_input_type=str | GitSource | None)]
