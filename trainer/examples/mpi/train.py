"""A plain MPI program: data-parallel descent with mpi4py, under `mpirun`; rank 0 saves; a file `DONE` ends each save.

Of Bivouac it knows two variables: where its checkpoints go, and from which one it resumes. It runs without both.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

STEPS, SLEEP_S = int(sys.argv[1]), float(sys.argv[2])
"""Steps, and what each of them waits in place of a real model's work."""
SAVE_EVERY, BATCH, WIDTH, HIDDEN, RATE, DECAY = 10, 16, 32, 64, 5e-2, 0.9


def batch(step: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Return this rank's inputs and targets of a step: the same ones however often training restarts."""
    inputs = np.random.default_rng((step, rank)).standard_normal((BATCH, WIDTH))
    return inputs, np.sin(inputs.sum(1, keepdims=True))


def gradients(model: dict[str, np.ndarray], inputs: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the loss, and its derivatives by all parameters in one vector."""
    hidden = np.tanh(inputs @ model["in"])
    error = hidden @ model["out"] - targets
    by_error = 2 * error / error.size
    by_out = hidden.T @ by_error
    by_in = inputs.T @ ((by_error @ model["out"].T) * (1 - hidden**2))
    return float((error**2).mean()), np.concatenate([by_in.ravel(), by_out.ravel()])


def save(folder: Path, step: int, model: dict[str, np.ndarray], speed: np.ndarray) -> None:
    step_folder = folder / f"step-{step}"
    step_folder.mkdir(parents=True, exist_ok=True)
    with (step_folder / "state.npz").open("wb") as file:
        np.savez(file, first=model["in"], last=model["out"], speed=speed, step=step)
    (step_folder / "DONE").touch()


def main() -> None:
    world, folder = MPI.COMM_WORLD, Path(os.environ.get("BIVOUAC_CHECKPOINTS", "checkpoints"))
    rank, size = world.Get_rank(), world.Get_size()
    random = np.random.default_rng(1)
    model = {"in": random.standard_normal((WIDTH, HIDDEN)) / WIDTH, "out": random.standard_normal((HIDDEN, 1)) / HIDDEN}
    speed, start = np.zeros(WIDTH * HIDDEN + HIDDEN), 0
    if resume := os.environ.get("BIVOUAC_RESUME_FROM"):
        checkpoint = np.load(Path(resume) / "state.npz")
        model = {"in": checkpoint["first"], "out": checkpoint["last"]}
        speed, start = checkpoint["speed"], int(checkpoint["step"])
    for step in range(start + 1, STEPS + 1):
        loss, gradient = gradients(model, *batch(step, rank))
        contribution, total = np.append(gradient, loss), np.empty(gradient.size + 1)
        world.Allreduce(contribution, total, op=MPI.SUM)
        speed = DECAY * speed + total[:-1] / size
        parts = dict(zip(model, np.split(speed, [WIDTH * HIDDEN]), strict=True))
        model = {name: old - RATE * parts[name].reshape(old.shape) for name, old in model.items()}
        if rank == 0:
            print(json.dumps({"step": step, "loss": float(total[-1]) / size}), flush=True)
            if step % SAVE_EVERY == 0 or step == STEPS:
                save(folder, step, model, speed)
        world.Barrier()
        time.sleep(SLEEP_S)


if __name__ == "__main__":
    main()
