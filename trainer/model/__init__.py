"""The models, and what of them the backward pass computes again."""

from trainer.model.adapters import adapt
from trainer.model.building import blocks_of, build, parameter_count
from trainer.model.documents import document_bounds
from trainer.model.named import NamedModel
from trainer.model.transformer import NORM_EPSILON, ROTARY_BASE, Transformer, parameter_groups, swiglu_width

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
