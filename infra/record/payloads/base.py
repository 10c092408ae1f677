"""The bases of what an event says: fields, sentence, and who is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, ValidationError

from infra.spec.notify import Change
from trainer.contract.frozen import Frozen
from trainer.contract.job import Name

Whole = Annotated[int, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0, le=10**15)]
"""A number that a pod printed: what no job reaches is no answer."""
Text = Annotated[str, AfterValidator(lambda text: text[:2000])]
PAYLOADS: dict[str, type[Payload]] = {}
"""Kind, as it is stored -> its model."""
PRINTED: dict[str, type[PrintedPayload]] = {}
"""Event of a pod's line -> the model of what the record keeps of it."""


class RecordModel(Frozen, extra="allow"):
    """A part of the record. Fields have defaults where earlier versions did not write them; fields that only a later
    version writes are kept."""

    def data(self) -> dict[str, Any]:
        """Return the fields that were given, as they are stored."""
        return self.model_dump(mode="json", exclude_unset=True)


class Payload(RecordModel):
    """What an event of one kind says."""

    kind: ClassVar[str]
    notice: ClassVar[Change | None] = None
    """The change under which people are told of it."""
    watched: ClassVar[bool] = False
    """A driver that watches prints it."""

    def __init_subclass__(
        cls, kind: str = "", notice: Change | None = None, watched: bool = False, **config: Any
    ) -> None:
        super().__init_subclass__(**config)
        if notice is not None:
            cls.notice = notice
        if watched:
            cls.watched = True
        if kind:
            cls.kind = kind
            PAYLOADS[kind] = cls

    def sentence(self) -> str:
        """Return the event for people, without the time."""
        return ", ".join(f"{name} {value}" for name, value in self.data().items())


class PrintedPayload(Payload):
    """An event that a training pod prints as a line. Its fields are bounded: the line may be a stranger's."""

    line: ClassVar[str]
    """The line's event."""
    needed: ClassVar[tuple[str, ...]]
    """Fields without which a line is text."""

    pod: str | None = None
    node: Name | None = None
    attempt: Count | None = None
    generation: Count | None = None
    rank: Count | None = None

    def __init_subclass__(cls, line: str = "", needed: tuple[str, ...] = (), **config: Any) -> None:
        super().__init_subclass__(**config)
        if line:
            cls.line, cls.needed = line, needed
            PRINTED[line] = cls

    @classmethod
    def of_line(cls, pod: str, line: Mapping[str, Any]) -> PrintedPayload | None:
        """Return what a pod's line says; None if it has not the fields of this kind."""
        fields = {name: value for name, value in line.items() if name not in ("event", "time")}
        if "pod" in fields or not fields.keys() <= cls.model_fields.keys() or None in map(fields.get, cls.needed):
            return None
        try:
            return cls.model_validate({**fields, "pod": pod}, strict=True)
        except ValidationError:
            return None


def data_of(payload: Payload | None) -> dict[str, Any] | None:
    """Return the fields that were given; None of no payload."""
    return None if payload is None else payload.data()


def by(arn: str | None) -> str:
    """Return who did it: the end of an ARN, such as `user/ada` or `assumed-role/team/ada`; older records do not say."""
    return f", by {arn.split(':', 5)[-1]}" if arn else ""
