"""A git reference as a workload's source: a repository's address, and a tag, branch or commit."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from infra.spec.section import Section

_ADDRESS = re.compile(r"(https?|ssh|file)://[^\s?#]+|[\w.-]+@[\w.-]+:[^\s:?#]+")
_LOGIN = re.compile(r"(?!ssh://)[a-z0-9+.-]+://[^/]*@|ssh://[^/@]*:[^/@]*@", re.IGNORECASE)


def _is_an_address(text: str) -> str:
    if _LOGIN.match(text):
        cure = "leave it out; git's credential helper or an SSH key of this machine has it"
        raise ValueError(f"has a login in it, which the record would keep; {cure}")
    if not _ADDRESS.fullmatch(text):
        raise ValueError("is no address of a repository; write https://..., ssh://..., user@host:path or file:///...")
    return text


class GitSource(Section):
    """Code at a commit of a repository, which the driver's machine fetches with its own git and login."""

    git: Annotated[str, AfterValidator(_is_an_address)]
    """The repository: `https://...`, `ssh://...`, `user@host:path`, or `file:///...` on this machine. No login belongs
    in it."""
    ref: str = Field(pattern=r"^[\w.][\w./+@#,=-]*$")
    """A tag, a branch, or a commit with all its digits. It becomes a commit once, when the campaign is provisioned;
    a relaunch looks again. A tag goes before a branch of the same name."""

    def __str__(self) -> str:
        return f"{self.git} at {self.ref}"


def source_of(value: Any) -> Any:
    """Return a folder's name or the reference that a section holds. Raises `ValueError` for anything else."""
    if isinstance(value, dict):
        return GitSource.model_validate(value)
    if value is not None and not isinstance(value, str | GitSource):
        raise ValueError("is no source; write a folder, or a section with `git` and `ref`")
    return value


JobSource = Annotated[str | GitSource | None, BeforeValidator(source_of, json_schema_input_type=str | GitSource | None)]
