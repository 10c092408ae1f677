"""Hugging Face's Trainer with a tiny Llama made from its configuration. Bivouac's part: one callback, and from where to
resume."""

import os
import sys
import time

import bivouac
import torch
from bivouac_transformers import BivouacCallback
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

STEPS, SLEEP_S = int(sys.argv[1]), float(sys.argv[2])
SAVE_EVERY, BATCH, LENGTH, WORDS = 10, 4, 16, 64
TINY = LlamaConfig(
    vocab_size=WORDS, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    max_position_embeddings=LENGTH, attention_dropout=0.1, attn_implementation="eager",
    bos_token_id=None, eos_token_id=None,
)  # fmt: skip
"""Its dropout shows after a resume whether each rank goes on with its own random numbers."""


class Counting(Dataset):
    """Sequences that count up from a number and by a stride that are drawn by their index."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(SLEEP_S / BATCH)
        begin, stride = torch.randint(1, WORDS, (2,), generator=torch.Generator().manual_seed(index)).tolist()
        words = (begin + stride * torch.arange(LENGTH)) % WORDS
        return {"input_ids": words, "labels": words}


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    arguments = TrainingArguments(
        output_dir=os.environ.get("BIVOUAC_CHECKPOINTS", "checkpoints"),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        save_steps=SAVE_EVERY,
        save_total_limit=2,
        logging_steps=1,
        use_cpu=True,
        seed=1,
        disable_tqdm=True,
        report_to=[],
    )
    trainer = Trainer(LlamaForCausalLM(TINY), arguments, train_dataset=Counting(), callbacks=[BivouacCallback()])
    trainer.train(resume_from_checkpoint=bivouac.resume_from())
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
