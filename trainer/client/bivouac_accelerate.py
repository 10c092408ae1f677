"""A loop with Hugging Face's Accelerate under the supervisor:

    run = Run(accelerator, "checkpoints")
    for step in range(run.resume() + 1, steps + 1):
        ...
        if run.done(step, loss) or step % 1000 == 0:
            run.save(step)
        if run.stopping:
            break

In the spec: `progress: {by: client}` and `checkpoints: {format: client}`. Without the supervisor it saves and resumes
nothing but what the script asks it for.
"""

from __future__ import annotations

import os
import re

import bivouac
import torch
from accelerate import Accelerator

__all__ = ["Run"]


class Run:
    def __init__(self, accelerator: Accelerator, folder: str = "checkpoints") -> None:
        """Save in `$BIVOUAC_CHECKPOINTS`; without the supervisor in `folder`."""
        self.folder = os.environ.get("BIVOUAC_CHECKPOINTS", folder)
        self.stopping = False
        """The job is asked to stop: save, and end with code 0."""
        self._accelerator = accelerator

    def resume(self) -> int:
        """Load what `accelerator.prepare` and `register_for_checkpointing` know from the checkpoint to go on from;
        return its step, 0 to begin."""
        folder = bivouac.resume_from()
        if folder is None:
            return 0
        self._accelerator.load_state(folder)
        step = re.search(r"(\d+)$", folder)
        assert step, folder
        return int(step.group(1))

    def done(self, step: int, loss: float | torch.Tensor | None = None) -> bool:
        """Tell that a step is done, on every rank; return whether the job is asked to stop: the same on all ranks, for
        nodes hear of it at different steps. `loss` is rank 0's; a mean over the ranks is the script's to make."""
        if self._accelerator.is_local_main_process:
            bivouac.beat(step, loss=None if loss is None else float(loss))
        should_stop = bivouac.should_stop()
        if os.environ.get("BIVOUAC_RUN") and self._accelerator.num_processes > 1:
            votes = torch.tensor([int(should_stop)], device=self._accelerator.device)
            should_stop = bool(self._accelerator.reduce(votes, "sum").item())
        self.stopping = should_stop
        return should_stop

    def save(self, step: int) -> None:
        """Save the whole state on every rank, and tell it once all have written theirs."""
        folder = os.path.join(self.folder, f"step-{step}")
        self._accelerator.save_state(folder)
        self._accelerator.wait_for_everyone()
        if self._accelerator.is_main_process:
            bivouac.committed(folder, step)
