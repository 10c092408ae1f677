"""Lightning's Trainer under the supervisor:

    keep = ModelCheckpoint(os.environ.get("BIVOUAC_CHECKPOINTS", "checkpoints"), every_n_train_steps=1000)
    trainer = Trainer(..., callbacks=[BivouacCallback(), keep])
    trainer.fit(model, data, ckpt_path=bivouac.resume_from())

In the spec: `progress: {by: client}` and `checkpoints: {format: lightning}`: the supervisor knows a `.ckpt` with
`step=N` in its name, as `ModelCheckpoint` names it by default, and that it is whole, also one that is written beside
the training. So `bivouac.committed` is not called. Without the supervisor the callback does nothing.
"""

from __future__ import annotations

import os
from typing import Any

import bivouac
from lightning.pytorch import Callback, LightningModule, Trainer

__all__ = ["BivouacCallback"]


class BivouacCallback(Callback):
    """Tells each step and its loss. Asked to stop, it saves `stop-step=N.ckpt` and lets the Trainer end."""

    def __init__(self, loss: str = "train_loss", folder: str = "checkpoints") -> None:
        """`loss`: the name under which the module logs it, as in `self.log("train_loss", loss, sync_dist=True)`.
        `folder`: for the checkpoint of a stop, unless `$BIVOUAC_CHECKPOINTS` names one."""
        self._loss = loss
        self._folder = os.environ.get("BIVOUAC_CHECKPOINTS", folder)
        self._told = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._told = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if step == self._told:  # gradients of several batches make one step
            return
        self._told = step
        if trainer.local_rank == 0:
            loss = trainer.callback_metrics.get(self._loss)
            bivouac.beat(step, loss=None if loss is None else float(loss))
        if os.environ.get("BIVOUAC_RUN") and _any_rank(bivouac.should_stop(), trainer):
            # Here, as `ModelCheckpoint` does: after the loop's end the epoch would count as done.
            trainer.save_checkpoint(os.path.join(self._folder, f"stop-step={step}.ckpt"))
            trainer.should_stop = True


def _any_rank(vote: bool, trainer: Trainer) -> bool:
    """Return whether it is so on any rank: nodes hear at different steps that they should stop, and ranks that disagree
    would wait for each other for ever."""
    return bool(trainer.strategy.reduce_boolean_decision(vote, all=False))
