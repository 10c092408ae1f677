"""The base of the product's models."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A value that does not change and refuses unknown fields.

    `class X(Frozen, extra="ignore")` reads what others wrote.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
