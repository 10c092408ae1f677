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


_SIGNS: tuple[tuple[Cause, str], ...] = (
    (Cause.CREDENTIALS, r"ExpiredToken|RequestExpired|InvalidClientTokenId|UnrecognizedClientException"),
    (Cause.FORBIDDEN, r"(service|resource) control polic"),
    (Cause.DENIED, r"AccessDenied|UnauthorizedOperation|not authorized to perform"),
    (Cause.STRANGER, r"asked for the client to provide credentials"),
    (Cause.CLUSTER, r"cluster is unreachable|unreachable cluster"),
    (Cause.THROTTLED, rf"{THROTTLED}|Rate exceeded"),
    (Cause.CAPACITY, r"InsufficientInstanceCapacity|InsufficientCapacity|ReservationCapacityExceeded"),
    (Cause.ADDRESSES, r"InsufficientFreeAddresses|enough free addresses"),
    (Cause.QUOTA, r"LimitExceeded|QuotaExceeded|QuotaExceededException|MaximumReached"),
    (Cause.TAKEN, r"AlreadyExists|AlreadyOwnedByYou|BucketAlreadyOwned|Duplicate|already exists"),
    (Cause.DEPENDENCY, r"DependencyViolation|DeleteConflict|ResourceInUse|InvalidIPAddress\.InUse|\.InUse|"
                       r"currently locked by"),
    (Cause.INVALID, r"InvalidParameter|InvalidAMIID|ValidationE|Malformed|BadRequest|MissingParameter"),
    (Cause.SERVER, rf"{SERVER}|Connection was closed|"
                   r"connection reset|EOF|Could not connect|Read timeout|StatusCode: 5\d\d"),
    (Cause.TIMED_OUT, r"timed? ?out|timeout while waiting|DELETE_FAILED|CREATE_FAILED|FAILED"),
)  # fmt: skip
"""AWS's codes as both plugins print them; the first match wins."""

RETRIED = frozenset({Cause.DEPENDENCY, Cause.THROTTLED, Cause.SERVER, Cause.TIMED_OUT, Cause.STRANGER, Cause.CLUSTER})
"""Causes that may be transient."""

_CURES = {
    Cause.CREDENTIALS: "renew the credentials (for instance `aws sso login`)",
    Cause.FORBIDDEN: f"{ASK_THE_ORGANIZATION}; no right in this account helps",
    Cause.DENIED: "allow the action that is named, or use credentials that may",
    Cause.DEPENDENCY: "remove what holds it, or let its owner do so",
    Cause.THROTTLED: "wait some minutes: others use up the account's rate of calls",
    Cause.SERVER: "wait some minutes: AWS or the network is disturbed",
    Cause.QUOTA: "raise the quota (Service Quotas) or free some of it",
    Cause.CAPACITY: "try another zone, purchase option or time",
    Cause.ADDRESSES: "write a larger `network.cidr` (after `bivouac down`), or fewer nodes",
    Cause.TAKEN: "give the campaign another name, or remove the resource of this name, if nobody uses it in any region "
    "(if it is this campaign's, AWS's answer was lost: `bivouac sweep` removes it after `bivouac down`)",
    Cause.INVALID: "mend the value in the spec",
    Cause.TIMED_OUT: "look at the resource in the console; AWS may still work on it",
    Cause.STRANGER: "wait a minute, since an access entry counts only some time after it was made; if it is older, use "
    "the credentials that `aws eks list-access-entries` names",
    Cause.CLUSTER: "check the cluster's endpoint and the credentials",
    Cause.OTHER: "mend what AWS names",
}


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
