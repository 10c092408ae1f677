"""Hugging Face's Trainer under the supervisor, without other change of the script:

    trainer = Trainer(..., callbacks=[BivouacCallback()])
    trainer.train(resume_from_checkpoint=bivouac.resume_from())

In the spec: `progress: {by: client}`, and `checkpoints: {format: huggingface}` with `output_dir` in
`$BIVOUAC_CHECKPOINTS`. Without the supervisor it does nothing.
"""

from __future__ import annotations

import os
from typing import Any

import bivouac
import torch
import torch.distributed as dist
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

__all__ = ["BivouacCallback"]


class BivouacCallback(TrainerCallback):
    """Tells each step, and the loss at those that the Trainer logs (`logging_steps`). Asked to stop, it lets the
    Trainer save at this very step and end. Tells a saved checkpoint once every rank has written its part."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **extra: Any) -> None:
        if state.is_local_process_zero and not control.should_log:  # else `on_log` tells it, with the loss
            bivouac.beat(state.global_step)
        if _any_rank(bivouac.should_stop(), args.device):
            control.should_save = control.should_training_stop = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **extra: Any,
    ) -> None:
        if state.is_local_process_zero and logs and "loss" in logs:
            bivouac.beat(state.global_step, loss=logs["loss"], tokens=state.num_input_tokens_seen or None)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **extra: Any) -> None:
        _any_rank(False, args.device)  # the Trainer does not wait for the others' random states
        folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        if state.is_world_process_zero and os.path.isdir(folder):
            bivouac.committed(folder, state.global_step)


def _any_rank(vote: bool, device: torch.device) -> bool:
    """Return whether it is so on any rank, once all ranks have come here. Nodes hear at different steps that they
    should stop; ranks that disagree would wait for each other for ever."""
    if not os.environ.get("BIVOUAC_RUN") or not (dist.is_available() and dist.is_initialized()):
        return vote
    votes = torch.tensor([int(vote)], device=device)
    dist.all_reduce(votes, op=dist.ReduceOp.MAX)
    return bool(votes.item())
