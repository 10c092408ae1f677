"""ZeRO 3 with a second copy of the weights in each node computes the same bits as without."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
import torch
import torch.multiprocessing

from trainer.builtin.engine import build_engine, initialize_distributed
from trainer.contract import ModelConfig, TrainConfig, ZeroConfig

RANKS, NODE = 4, 2
MODEL = ModelConfig(layers=3, width=64, heads=4, context=32, vocabulary=512)


def train(rank: int, port: int, config: TrainConfig, folder: Path) -> None:
    """Train two steps, look at the loss without a gradient, train two more; write what this rank saw."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(port), "DS_ACCELERATOR": "cpu"}
    torch.set_num_threads(1)
    initialize_distributed(config)
    engine = build_engine(config, RANKS)
    words, losses, copies = torch.Generator().manual_seed(rank), list[float](), set[int]()

    def batch() -> torch.Tensor:
        return torch.randint(0, MODEL.vocabulary, (1, MODEL.context + 1), generator=words)

    for step in range(4):
        loss = engine(batch())
        seconds = (getattr(parameter, "ds_secondary_tensor", None) for parameter in engine.module.parameters())
        copies |= {tensor.numel() for tensor in seconds if tensor is not None}
        engine.backward(loss)
        engine.step()
        losses.append(float(loss.detach()))
        if step == 1:
            engine.eval()
            with torch.no_grad():
                losses.append(float(engine(batch())))
            engine.train()
    bits = [loss.hex() for loss in losses]
    (folder / f"{rank}.json").write_text(json.dumps({"losses": bits, "copies": sorted(copies)}))


@pytest.mark.nightly
def test_a_second_copy_changes_no_bit_and_lies_on_the_ranks_of_a_node(tmp_path: Path) -> None:
    seen = {}
    for copies in (1, NODE):
        config = TrainConfig(
            campaign="c", model=MODEL, steps=4, global_batch=RANKS, micro_batch=1, zero_stage=3,
            collective_timeout_s=3600.0, zero=ZeroConfig(hpz_ranks=copies, persistence_threshold=64),
        )  # fmt: skip
        (folder := tmp_path / str(copies)).mkdir()
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        torch.multiprocessing.spawn(train, (port, config, folder), nprocs=RANKS)
        seen[copies] = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
    assert [each["losses"] for each in seen[1]] == [each["losses"] for each in seen[NODE]]
    assert all(not each["copies"] for each in seen[1])
    assert all(MODEL.vocabulary * MODEL.width // NODE in each["copies"] for each in seen[NODE])
