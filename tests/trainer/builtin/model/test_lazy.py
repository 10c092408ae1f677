"""The small decoder needs no `transformers`, whose import takes seconds."""

from __future__ import annotations

import subprocess
import sys

from tests.root import ROOT

PROGRAM = """
import sys
import trainer.builtin.engine, trainer.builtin.evaluate, trainer.builtin.checkpoint.convert.export
from trainer.contract import ModelConfig
from trainer.builtin.model import build
build(ModelConfig(layers=1, width=32, heads=2, context=8, vocabulary=300))
sys.exit("transformers.models.llama" in sys.modules or "transformers.modeling_utils" in sys.modules)
"""


def test_the_small_decoder_is_built_without_transformers() -> None:
    assert subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, check=False).returncode == 0
