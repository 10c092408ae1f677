"""Failed resources from the engine's events: which one, AWS's message, its cause and cure."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from pulumi import automation as auto

from infra.aws.account import ASK_THE_ORGANIZATION, SERVER, THROTTLED
from infra.errors import PermanentError
from infra.tables import table


class Cause(StrEnum):
    """Cause of a failed operation, by what it means for the next step."""

    CREDENTIALS = "credentials have expired"
    FORBIDDEN = "the organization forbids it"
    DENIED = "access is denied"
    DEPENDENCY = "something else still holds it"
    THROTTLED = "AWS throttles"
    SERVER = "AWS failed or did not answer"
    QUOTA = "a quota is reached"
    CAPACITY = "AWS has no capacity"
    ADDRESSES = "the subnet has no free address"
    TAKEN = "the name is taken"
    INVALID = "AWS refuses a value"
    TIMED_OUT = "it did not end in time"
    STRANGER = "the Kubernetes API does not know the caller"
    CLUSTER = "the Kubernetes API does not answer"
    OTHER = "see AWS's words"


_TEXTS: dict[str, dict[str, str]] = {
    part: {
        name: text.format(throttled=THROTTLED, server=SERVER, organization=ASK_THE_ORGANIZATION)
        for name, text in texts.items()
    }
    for part, texts in table("infra.engine", "failures").items()
}
_SIGNS = tuple((Cause[name], signs) for name, signs in _TEXTS["signs"].items())

RETRIED = frozenset({Cause.DEPENDENCY, Cause.THROTTLED, Cause.SERVER, Cause.TIMED_OUT, Cause.STRANGER, Cause.CLUSTER})
"""Causes that may be transient."""

_CURES = {Cause[name]: cure for name, cure in _TEXTS["cures"].items()}


@dataclass(frozen=True)
class ResourceFailure:
    urn: str
    message: str

    @property
    def kind(self) -> str:
        """`aws:ec2/subnet:Subnet`."""
        return self.urn.split("::")[2].split("$")[-1] if self.urn.count("::") >= 3 else ""

    @property
    def title(self) -> str:
        """`Subnet gpu`."""
        return f"{self.kind.rpartition(':')[2]} {'::'.join(self.urn.split('::')[3:])}" if self.kind else "the stack"

    @property
    def cause(self) -> Cause:
        return cause_of(self.message)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(re.findall(r"\b(?:subnet|sg|vpc|eni|igw|nat|fs|i|rtb|eipalloc)-[0-9a-f]{8,}", self.message))
        )

    def __str__(self) -> str:
        return f"{self.title}: {self.message} ({self.cause})"


def cause_of(message: str) -> Cause:
    return next((cause for cause, signs in _SIGNS if re.search(signs, message, re.IGNORECASE)), Cause.OTHER)


def cure_for(cause: Cause) -> str:
    return _CURES[cause]


def cure_of(failures: Iterable[ResourceFailure]) -> str:
    """Return each cause's cure once, then how to continue."""
    cures = dict.fromkeys(_CURES[failure.cause] for failure in failures)
    return "; ".join([*cures, "then run the same command again: it continues"])


class EngineFailed(PermanentError):
    """A failed operation of the engine."""

    def __init__(self, title: str, stack: str, failures: tuple[ResourceFailure, ...], words: str) -> None:
        self.failures = failures
        self.words = words
        facts = " | ".join(str(failure) for failure in failures)[:3000] or words
        super().__init__(f"{title} of stack {stack} failed", seen=facts, cure=cure_of(failures))

    @property
    def causes(self) -> frozenset[Cause]:
        return frozenset(f.cause for f in self.failures) or frozenset({cause_of(self.words)})


@dataclass
class OperationWatch:
    """Follows one operation: what has begun, is done or failed."""

    begun: dict[str, tuple[str, float]] = field(default_factory=dict)
    """URN -> (type, start on the monotonic clock)."""
    done: set[str] = field(default_factory=set)
    messages: dict[str, str] = field(default_factory=dict)

    def hear(self, event: auto.EngineEvent) -> bool:
        """Record an event; return whether the progress changed."""
        if event.resource_pre_event is not None:
            metadata = event.resource_pre_event.metadata
            if str(getattr(metadata.op, "value", metadata.op)) == "same":
                return False
            self.begun[metadata.urn] = (metadata.type, time.monotonic())
        elif event.res_outputs_event is not None:
            self.done.add(event.res_outputs_event.metadata.urn)
        elif event.res_op_failed_event is not None:
            urn = event.res_op_failed_event.metadata.urn
            self.done.add(urn)
            self.messages.setdefault(urn, "no reason was given")
        elif event.diagnostic_event is not None and event.diagnostic_event.severity == "error":
            diagnostic = event.diagnostic_event
            if diagnostic.urn and not diagnostic.urn.endswith("pulumi:pulumi:Stack"):
                self._note(diagnostic.urn, diagnostic.message)
            return False
        else:
            return False
        return True

    def _note(self, urn: str, message: str) -> None:
        text = " ".join(re.sub(r"<\{%[^%]*%\}>", "", message).split())
        if "pulumi:pulumi:Stack" not in urn and text:
            self.messages[urn] = text

    @property
    def failures(self) -> tuple[ResourceFailure, ...]:
        return tuple(ResourceFailure(urn, message) for urn, message in self.messages.items())

    @property
    def open(self) -> dict[str, tuple[str, float]]:
        """Return what is being handled, oldest first, without components, which only wait for their children."""
        waiting = {urn: entry for urn, entry in self.begun.items() if urn not in self.done}
        return {urn: entry for urn, entry in waiting.items() if not entry[0].startswith(("bivouac:", "pulumi:"))}

    def sentence(self, verb: str) -> str | None:
        if not self.open:
            return None
        newest = ", ".join(kind.rpartition(":")[2] for kind, _ in list(self.open.values())[-3:])
        return f"{verb} {len(self.begun.keys() & self.done)} of {len(self.begun)}: {newest}"
