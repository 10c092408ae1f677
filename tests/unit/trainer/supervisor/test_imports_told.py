"""The supervisor's word `imports`: what the job's own Python is and imports is told, and judges nothing."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.root import ROOT
from trainer.contract import HealthReport
from trainer.contract.workload import IMPORTS
from trainer.supervisor.pack import pack

TORCH = "class cuda:\n    device_count = staticmethod(lambda: 8)\n__version__ = '9.9'\n"


def told(tmp_path: Path, torch: str) -> str:
    supervisor, message = tmp_path / "bivouac" / "supervisor.pyz", tmp_path / "message"
    supervisor.parent.mkdir(exist_ok=True)
    pack(supervisor)
    (tmp_path / "torch.py").write_text(torch)
    environment = os.environ | {
        "PYTHONPATH": str(tmp_path), "BIVOUAC_NODE_NAME": "node-0", "BIVOUAC_TERMINATION_LOG": str(message),
    }  # fmt: skip
    done = subprocess.run([sys.executable, str(supervisor), IMPORTS], cwd=ROOT, env=environment, check=False)
    report = HealthReport.model_validate_json(message.read_text())
    assert done.returncode == 0 and report.fit and report.node == "node-0"
    python, found = report.probes
    assert python.seen.startswith(".".join(map(str, sys.version_info[:3])))
    return found.seen


def test_a_torch_that_works_is_told_with_its_devices_and_a_broken_one_with_its_last_word(tmp_path: Path) -> None:
    assert told(tmp_path, TORCH) == "torch 9.9, 8 CUDA devices"
    assert told(tmp_path, "raise ImportError('libcudart.so.13: no such file')") == (
        "not imported: ImportError: libcudart.so.13: no such file"
    )


def test_what_is_packed_subscripts_no_builtin_type_when_it_is_imported(tmp_path: Path) -> None:
    """Python 3.8 knows `dict[str, Any]` in annotations only, which it does not evaluate."""
    pack(tmp_path / "supervisor.pyz")
    with zipfile.ZipFile(tmp_path / "supervisor.pyz") as packed:
        modules = {name: ast.parse(packed.read(name), feature_version=(3, 8)) for name in packed.namelist()}
    assert "trainer/contract/rows.py" in modules and "trainer/supervisor/serving.py" in modules
    wrong = [
        f"{name}: {ast.unparse(row)}"
        for name, module in modules.items()
        for row in module.body
        if isinstance(row, ast.Assign) and any(map(_subscripts_a_builtin, ast.walk(row.value)))
    ]
    assert not wrong


def _subscripts_a_builtin(node: ast.AST) -> bool:
    subscripted = node.value if isinstance(node, ast.Subscript) else None
    return isinstance(subscripted, ast.Name) and subscripted.id in ("dict", "frozenset", "list", "set", "tuple", "type")
