"""Durations as a spec writes them: `90s`, `10m`, `1h30m`, `7d`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

_BARE = re.compile(r"^[-+]?\d+(?:\.\d+)?$")
_FORM = re.compile(r"^(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?$")

LONGEST = timedelta(days=3650)
"""Longest duration; dates would overflow with longer ones."""


def parse(value: object) -> object:
    """Return a timedelta for a duration in letters; refuse a bare number; leave ISO 8601 to pydantic."""
    trimmed_text = str(value).strip()
    if _BARE.match(trimmed_text) and not isinstance(value, bool):
        raise ValueError(f"has no unit; write {trimmed_text}s, {trimmed_text}m, {trimmed_text}h or {trimmed_text}d")
    match = _FORM.match(value.strip()) if isinstance(value, str) else None
    if match is None or not any(match.groups()):
        return value
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    try:
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError as error:
        raise ValueError("is too long") from error


def refuse_extreme(duration: timedelta) -> timedelta:
    if duration > LONGEST:
        raise ValueError("is longer than ten years")
    return duration


def text(duration: timedelta) -> str:
    """Return the shortest exact form in letters, such as `1h30m` or `45s`; `parse` turns it back."""
    seconds = duration.total_seconds()
    if seconds < 0:
        return f"-{text(-duration)}"
    whole_seconds, fraction = int(seconds), seconds - int(seconds)
    parts = []
    for letter, size in (("d", 86400), ("h", 3600), ("m", 60)):
        count, whole_seconds = divmod(whole_seconds, size)
        if count:
            parts.append(f"{count}{letter}")
    if whole_seconds or fraction or not parts:
        parts.append(f"{whole_seconds + round(fraction, 3):g}s")
    return "".join(parts)


Duration = Annotated[timedelta, BeforeValidator(parse), AfterValidator(refuse_extreme), Field(gt=timedelta(0))]
"""A positive timedelta of at most ten years that also accepts `90s`, `10m`, `1h30m`, `7d`."""
