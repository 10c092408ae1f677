"""The models, and what of them the backward pass computes again."""

from trainer.builtin.model.adapters import adapt
from trainer.builtin.model.building import blocks_of, build, parameter_count
from trainer.builtin.model.documents import document_bounds
from trainer.builtin.model.named import NamedModel
from trainer.builtin.model.transformer import NORM_EPSILON, ROTARY_BASE, Transformer, parameter_groups, swiglu_width

__all__ = [
    "NORM_EPSILON",
    "ROTARY_BASE",
    "NamedModel",
    "Transformer",
    "adapt",
    "blocks_of",
    "build",
    "document_bounds",
    "parameter_count",
    "parameter_groups",
    "swiglu_width",
]
