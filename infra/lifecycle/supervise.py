"""Supervise and archive, from the driver's side: it watches; the steward decides and acts. The driver may leave."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from infra.errors import PermanentError
from infra.events import Kind
from infra.lifecycle.context import Context
from infra.reporting.sentences import sentence

LIVE = "live.json"
_TOLD = (
    Kind.DECISION,
    Kind.ATTEMPT_LAUNCHED,
    Kind.ATTEMPT_ENDED,
    Kind.NODE_QUARANTINED,
    Kind.CHECKPOINT_REFUSED,
    Kind.CHECKPOINT_RESTORED,
)


def run(context: Context) -> dict[str, Any]:
    """Until training is over: done, stopped or held. Says what happens as it happens."""
    told = _Teller(context)
    for _ in context.turns(_seconds_left(context), 1.0):
        context.progress.step(told.line)
        told.tell()
        if (outcome := context.state().outcome) is not None:
            return {"outcome": outcome, "attempts": len(context.state().attempts)}
    raise PermanentError(
        "the deadline has passed",
        seen=context.deadline.isoformat(),
        cure=f"`bivouac down {context.spec.campaign}`: the GPU nodes are at zero, the rest bills",
    )


def archive(context: Context) -> dict[str, Any]:
    """Until the golden checkpoint is verified in the archive and the GPU nodes are at zero."""
    told = _Teller(context)
    for _ in context.turns(_seconds_left(context)):
        context.progress.step("the golden checkpoint goes to the archive and is read back")
        told.tell()
        kinds = {event.kind for event in context.store.events()}
        if Kind.NODES_AT_ZERO in kinds:
            found = context.state().archive
            if found is None:
                failed = [event for event in context.store.events() if event.kind is Kind.ARCHIVE_FAILED]
                if failed:
                    raise PermanentError(
                        "the archive failed; the GPU nodes are at zero, the checkpoint is on the shared tier",
                        seen=failed[-1].data["error"],
                        cure="mend the cause, then `kubectl rollout restart deployment/steward` tries again",
                    )
                raise PermanentError(
                    "there is nothing to archive",
                    seen="no committed checkpoint",
                    cure=f"`bivouac down {context.spec.campaign} --abandon` tears down without an archive",
                )
            context.progress.note(
                f"step {found['step']}: {found['objects']} objects, {found['bytes']} bytes read back; evaluation loss "
                f"{found['restored_evaluation_loss']} restored, {found['recorded_evaluation_loss']} recorded"
            )
            return found
    raise PermanentError(
        "the archive was not verified in time",
        seen=context.deadline.isoformat(),
        cure="see the archive pods' logs; `bivouac run` continues",
    )


def _seconds_left(context: Context) -> float:
    return max(60.0, (context.deadline - datetime.now(UTC)).total_seconds())


class _Teller:
    """Repeats new events as lines that stay, and the live figures as the line that moves."""

    def __init__(self, context: Context) -> None:
        self.context, self.line = context, "the steward is looking"
        self._known = {(e.writer, e.sequence) for e in context.store.events()}

    def tell(self) -> None:
        for event in self.context.store.events():
            if (event.writer, event.sequence) not in self._known:
                self._known.add((event.writer, event.sequence))
                if event.kind in _TOLD:
                    self.context.progress.note(sentence(event))
        live = self.context.store.get_json(LIVE)
        if live is not None:
            loss = f", loss {live['loss']:.3f}" if live["loss"] is not None else ""
            self.line = (
                f"attempt {live['attempt']}: step {live['step']} of {live['steps']}{loss}, committed "
                f"{live['committed_step']}, {live['spent_usd']:.2f} USD ({live['why']})"
            )
