"""The trained weights without the optimizer: a folder that `from_pretrained` loads."""

import os

from transformers import LlamaForCausalLM

LlamaForCausalLM.from_pretrained(os.environ["BIVOUAC_RESUME_FROM"]).save_pretrained(os.environ["BIVOUAC_EXPORT"])
