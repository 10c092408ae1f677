"""Megatron-LM's `pretrain` under the supervisor, with one line of the script changed:

    from bivouac_megatron import pretrain          # in place of `from megatron.training import pretrain`

In the spec: `progress: {by: client}` and `checkpoints: {format: megatron}`; in the script's arguments `--save` and
`--load`, both the folder `$BIVOUAC_CHECKPOINTS`. A resume needs no more: the tracker file there names the newest sound
checkpoint. Steps are told as they are done, the loss at each `--log-interval`. Asked to stop, all ranks save at that
very step and exit as Megatron-LM does. Without the supervisor it is `pretrain`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

import bivouac
import torch
import torch.distributed as dist

__all__ = ["pretrain", "watch"]

_MARK = "_bivouac_watches"


def pretrain(*arguments: Any, loss: str = "lm loss", **keywords: Any) -> Any:
    """Call Megatron-LM's `pretrain`. `loss`: its name in what the forward step returns."""
    from megatron.training import training

    watch(training, loss)
    return training.pretrain(*arguments, **keywords)


def watch(training: Any, loss: str = "lm loss") -> None:
    """Take the place of the functions that the loop in `megatron.training.training` calls after each step. Their
    arguments are found by name, since the order differs between releases (seen: 0.10 to 0.19)."""
    if getattr(training, _MARK, False) or not os.environ.get("BIVOUAC_RUN"):
        return
    log, decide, save = training.training_log, training.checkpoint_and_decide_exit, training.save_checkpoint_and_time

    def training_log(*arguments: Any, **keywords: Any) -> Any:
        values, args = _by_name(log, arguments, keywords), training.get_args()
        step = int(values["iteration"])
        figure = _of_all(values["loss_dict"].get(loss), args) if step % args.log_interval == 0 else None
        if os.environ.get("LOCAL_RANK", "0") == "0":
            bivouac.beat(step, loss=figure, tokens=args.consumed_train_samples * args.seq_length)
        return log(*arguments, **keywords)

    def checkpoint_and_decide_exit(*arguments: Any, **keywords: Any) -> Any:
        if not _any_rank(bivouac.should_stop()):
            return decide(*arguments, **keywords)
        if training.get_args().save:
            values = _by_name(decide, arguments, keywords)
            parameters = inspect.signature(save).parameters
            training.save_checkpoint_and_time(**{name: values[name] for name in parameters if name in values})
        return True

    training.training_log, training.checkpoint_and_decide_exit = training_log, checkpoint_and_decide_exit
    setattr(training, _MARK, True)


def _by_name(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    return inspect.signature(function).bind(*arguments, **keywords).arguments


def _of_all(figure: Any, args: Any) -> float | None:
    """Return the loss on every rank. Only the last stage of a pipeline has it, and the last rank is always in it."""
    if args.pipeline_model_parallel_size == 1:
        return None if figure is None else float(figure)
    figures = torch.tensor([float("nan") if figure is None else float(figure)], device=_device())
    dist.broadcast(figures, src=dist.get_world_size() - 1)
    value = float(figures.item())
    return None if value != value else value


def _any_rank(vote: bool) -> bool:
    """Return whether it is so on any rank: nodes hear at different steps that they should stop, and ranks that disagree
    would wait for each other for ever."""
    if not dist.is_initialized():
        return vote
    votes = torch.tensor([int(vote)], device=_device())
    dist.all_reduce(votes, op=dist.ReduceOp.MAX)
    return bool(votes.item())


def _device() -> str:
    return "cuda" if dist.get_backend() == "nccl" else "cpu"
