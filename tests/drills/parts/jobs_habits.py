"""A job's habits, drawn by chance: how it saves, names, links, prints and counts, and when its node is lost."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

EVERY = 10
OWN = "job's own"


@dataclass(frozen=True)
class Layout:
    """How a format may be met."""

    layout: str
    """Of `jobs_script`."""
    formats: tuple[str, ...]
    """What a person would write in the spec."""
    names: tuple[str, ...]
    folder: bool = True
    """A checkpoint is a folder, which may hold links."""
    more: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    """Further habits of it, and their values."""
    nodes: int = 1
    """Of two, each has a disk of its own."""


RUN = "run-a/"
BY_TIME = ("step_s", (0.015,))
"""A checkpoint without a step in name or content has the one that was told when it was written, to 20 ms."""
LAYOUTS = {
    "marker": Layout(
        "marker", ("marker", "auto"), ("step-{step}", "step_{step:06d}", RUN + "step-{step}", "ckpt-{epoch}")
    ),
    "digits": Layout("marker", ("marker", "auto"), ("{step:010d}", "{step}", RUN + "{step:010d}")),
    "file and marker": Layout(
        "file-and-marker", ("marker", "auto"), ("ckpt_{step}.pt", "model-{step:06d}.pt", RUN + "ckpt_{step}.pt"), False
    ),
    "file each": Layout(
        "file", ("auto",), ("ckpt_{step}.pt", "model_{step:07d}.pth", RUN + "ckpt_{step}.pt"), False,
        (("moved", (True, False)),),
    ),
    "file again": Layout(
        "file", ("auto",), ("ckpt.pt", "snapshot.pt", RUN + "ckpt.pt"), False, (("moved", (True, False)),)
    ),
    "file, told": Layout(
        "raw", ("client",), ("state.bin", "state-{step}.bin", RUN + "state.bin"), False, (("client", (True,)),)
    ),
    "folder, told": Layout("weights", ("client",), ("save", "save-{step}"), more=(("client", (True,)),)),
    "huggingface": Layout("huggingface", ("huggingface", "auto"), ("checkpoint-{step}",)),
    "safetensors": Layout("weights", ("auto",), ("step_{step}", RUN + "step-{step}")),
    "accelerate": Layout(
        "accelerate", ("auto",), ("step_{step}", "checkpoints/checkpoint_{epoch}", "epoch_{epoch}"), more=(BY_TIME,)
    ),
    "lightning": Layout(
        "lightning", ("lightning", "auto"),
        ("epoch={epoch}-step={step}.ckpt", "lightning_logs/version_0/checkpoints/epoch={epoch}-step={step}.ckpt"),
        False, (("last", (True, False)),),
    ),
    "lightning by metric": Layout(
        "lightning", ("lightning", "auto"), ("epoch={epoch}-val_loss={part:.4f}.ckpt", "best-{epoch}.ckpt"),
        False, (("last", (True, False)),),
    ),
    "dcp": Layout("dcp", ("dcp", "auto"), ("step-{step}", RUN + "step-{step}", "checkpoint/step-{step}")),
    "dcp nested": Layout(
        "dcp", ("dcp", "auto"), ("step-{step}", RUN + "step-{step}", "checkpoints/{step:010d}"),
        more=(("nested", (True,)),),
    ),
    "deepspeed": Layout("deepspeed", ("deepspeed", "auto"), ("global_step{step}", RUN + "global_step{step}")),
    "deepspeed, fixed tag": Layout("deepspeed", ("deepspeed", "auto"), ("ckpt", "model_last")),
    "megatron": Layout("megatron", ("megatron", "auto"), ("iter_{step:07d}",)),
    "litgpt": Layout("litgpt", ("auto",), ("step-{step:08d}", RUN + "step-{step:08d}")),
    "flax": Layout("flax", ("auto",), ("checkpoint_{step}",), False, (("most", (1, 1, 2)),)),
    "orbax": Layout("orbax", ("auto",), ("{step}", "resnet50/{step}"), False),
    "orbax of flax": Layout("orbax", ("auto",), ("checkpoint_{step}",), False, (("bare", (True,)),)),
    "old orbax": Layout("old orbax", ("auto",), ("{step}", "resnet50/{step}"), False),
    "old orbax of flax": Layout("old orbax", ("auto",), ("checkpoint_{step}",), False, (("bare", (True,)),)),
    "tacotron": Layout("tacotron", ("auto",), ("checkpoint_{step}",), False),
    "hifigan": Layout("hifigan", ("auto",), ("g_{step:08d}",), False),
    "vits": Layout("vits", ("auto",), ("G_{step}.pth",), False),
    "tensorflow": Layout(
        "tensorflow", ("auto",), ("ckpt-{epoch}", "model.ckpt-{step}"), False, (("shards", (1, 2)), BY_TIME)
    ),
    "tensorflow, one name": Layout("tensorflow", ("auto",), ("cp.ckpt",), False, (BY_TIME,)),
    "kohya": Layout("kohya", ("auto",), ("style-step{step:08d}", "style-{epoch:06d}", "at-step{step:08d}"), False),
    "files of ranks": Layout(
        "rank files", ("auto",),
        ("ckpt_{step}_rank{rank}.pt", "ckpt_{step}_{rank}.pt", "rank{rank}/ckpt_{step}.pt", "step{step}_rank{rank}.pt"),
        False, nodes=2,
    ),
    "dcp of ranks": Layout("dcp of ranks", ("dcp", "auto"), ("step-{step}", RUN + "step-{step}"), False, nodes=2),
    "deepspeed of ranks": Layout("deepspeed of ranks", ("deepspeed", "auto"), ("global_step{step}",), False, nodes=2),
}  # fmt: skip
PRINTING: dict[str, dict[str, str]] = {
    "json": {},
    "iter": {},
    "ranks": {},
    "coloured-json": {},
    "colour": {"pattern": r"step:\s*(?P<step>\d+)\s+loss:\s*(?P<loss>[\d.]+)"},
    "words": {"pattern": r"iteration\s+(?P<step>\d+)/.*lm loss: (?P<loss>\S+)"},
    "bar": {"pattern": r"(?P<step>\d+)/\d+ \[.*loss=(?P<loss>[\d.]+)"},
    "client": {"progress": "client"},
}
"""How it prints -> what the spec says of that."""
MOMENTS = ("write", "write", "finished", "between", "sealing", "again")
QUIET = {
    "moment": "none",
    "step": 0,
    "operation": 0,
    "look": False,
    "waits": [],
    "fails_at": 0,
    "sealing": [],
    "rank": 0,
    "new_disk": -1,
}


def draw(chance: random.Random, kind: str = "") -> dict[str, Any]:
    """Return a plan for `jobs_script`, with what the spec says under `spec`."""
    kind = kind or chance.choice(sorted(LAYOUTS))
    layout = LAYOUTS[kind]
    printing = chance.choice(sorted(PRINTING))
    restarts = chance.randint(1, 3)
    plan: dict[str, Any] = {
        "kind": kind, "layout": layout.layout, "name": chance.choice(layout.names), "every": EVERY,
        "steps": EVERY * (2 * restarts + 2), "bulk": chance.choice((1, 50, 3000)),
        "slow_s": chance.choice((0.0, 0.0, 0.02)), "step_s": 0.0, "link": "", "umask": chance.choice((0o022, 0o077)),
        "printing": printing, "base": 0 if printing == "client" else chance.choice((0, 0, 1)),
        "noise": chance.choice(("", "", "evaluation", "epochs", "config")), "say_every": chance.choice((1, 1, 5)),
        "saves_again": chance.random() < 0.25, "most": chance.choice((0, 0, 2)), "client": False, "last": False,
        "nested": False, "moved": False, "bare": False, "shards": 1, "nodes": layout.nodes,
        "ending": chance.choices(("done", "early", "fails"), (8, 1, 1))[0],
    }  # fmt: skip
    plan.update({name: chance.choice(values) for name, values in layout.more})
    if layout.folder and chance.random() < 0.4:
        plan["link"] = chance.choice(("inside", "beside"))
    plan["spec"] = {"format": chance.choice(layout.formats), **PRINTING[printing]}
    plan["attempts"] = [_lost(chance, plan, number) for number in range(1, restarts + 1)]
    plan["attempts"].append({**QUIET, "moment": chance.choices(("none", "ignores"), (9, 1))[0]})
    for orders in plan["attempts"][1:] if layout.nodes > 1 else ():  # the lost node has a successor, or is back
        orders["new_disk"] = chance.randint(-1, 1)
    for orders in plan["attempts"]:  # a node that was to be lost while it seals may outlive that
        orders["fails_at"] = plan["steps"] if plan["ending"] == "fails" else 0
    plan["damage"] = {}
    if chance.random() < 0.25:  # after an attempt in which two steps were sealed
        orders = plan["attempts"][restarts - 1]
        last = max(orders["waits"]) + EVERY
        orders.update(moment="between", step=last + 3, waits=[last - EVERY, last], sealing=[])
        plan["damage"] = {"after": restarts, "how": chance.choice(("flip", "cut", "unlink", "manifest"))}
    return plan


def _lost(chance: random.Random, plan: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the orders of an attempt whose node is lost: its first checkpoint is sealed, the moment comes later."""
    sealed = EVERY * (2 * number - 1)
    moment = chance.choice(MOMENTS)
    if moment == "again" and (number == 1 or not plan["saves_again"]):
        moment = "between"
    orders = {
        **QUIET,
        "moment": moment,
        "waits": [sealed],
        "look": chance.random() < 0.4,
        "step": sealed + EVERY,
        "rank": chance.randrange(plan["nodes"]),
    }
    if moment == "write":
        orders["operation"] = chance.randint(0, 10_000)
    elif moment == "again":
        orders.update(operation=chance.randint(0, 10_000), step=0)
    elif moment == "between":
        orders["step"] = sealed + chance.randint(1, EVERY - 1)
    elif moment == "sealing":
        orders.update(waits=[sealed, sealed + EVERY], sealing=[chance.randint(1, 2), chance.randint(1, 30)], step=0)
    return orders
