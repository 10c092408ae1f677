"""The loss on held-out sequences: of what was exported, or of the checkpoint. Bivouac reads the last line."""

import json
import os

import torch
from transformers import LlamaForCausalLM

SEQUENCES, LENGTH, WORDS = 64, 16, 64
"""Sequences that count up, as in training, with other beginnings and strides."""


def main() -> None:
    torch.set_num_threads(1)
    folder = os.environ.get("BIVOUAC_EXPORT") or os.environ["BIVOUAC_RESUME_FROM"]
    model = LlamaForCausalLM.from_pretrained(folder).eval()
    random = torch.Generator().manual_seed(-1)
    begin, stride = torch.randint(1, WORDS, (2, SEQUENCES, 1), generator=random)
    words = (begin + stride * torch.arange(LENGTH)) % WORDS
    with torch.no_grad():
        loss = model(input_ids=words, labels=words).loss.item()
    print(json.dumps({"loss": loss, "parameters": sum(parameter.numel() for parameter in model.parameters())}))


if __name__ == "__main__":
    main()
