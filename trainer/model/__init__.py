"""The built-in model, and what of it the backward pass computes again."""

from trainer.model.transformer import (
    NORM_EPSILON,
    ROTARY_BASE,
    Transformer,
    document_bounds,
    parameter_count,
    parameter_groups,
    swiglu_width,
)

__all__ = [
    "NORM_EPSILON",
    "ROTARY_BASE",
    "Transformer",
    "document_bounds",
    "parameter_count",
    "parameter_groups",
    "swiglu_width",
]
