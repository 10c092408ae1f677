"""Threads that decode Kubernetes objects at once, as the steward's do."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from infra.cluster.kubernetes import MODELS, prepare_models
from tests.root import ROOT

RACE = """
import sys, threading
from infra.cluster import kubernetes
from lightkube.core.decoders import decode_list, decode_object

if "prepared" in sys.argv:
    kubernetes.prepare_models()
sys.setswitchinterval(1e-6)
together = threading.Barrier(2 * len(kubernetes.MODELS))

def decode(model):
    together.wait()
    spec = '"spec": {}, ' if model.__name__ == "TokenReview" else ""
    one = f'{{{spec}"metadata": {{"name": "x", "labels": {{"a": "b"}}}}}}'
    decode_object(one.encode(), model)
    decode_list(f'{{"items": [{one}]}}'.encode(), model)

threads = [threading.Thread(target=decode, args=(model,)) for model in kubernetes.MODELS * 2]
for one in threads:
    one.start()
for one in threads:
    one.join()
"""


@pytest.mark.parametrize("run", range(6))
def test_models_prepared_once_are_decoded_by_many_threads(run: int) -> None:
    done = subprocess.run([sys.executable, "-c", RACE, "prepared"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_model_that_the_code_uses_is_prepared() -> None:
    """But those of a look at a cluster that stands, which one thread takes."""
    used = set()
    for path in (path for path in (ROOT / "infra").rglob("*.py") if path.parent.name != "standing"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lightkube.resources."):
                used |= {alias.name for alias in node.names}
    assert used == {model.__name__ for model in MODELS}
    prepare_models()
