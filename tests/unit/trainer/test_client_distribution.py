"""The client as a distribution of its own: a wheel without dependencies that holds what the supervisor brings along."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

from tests.root import ROOT

CLIENT = ROOT / "trainer/client"
USE = "import bivouac, sys; bivouac.beat(1, loss=2.0); print(bivouac.__file__, bivouac.should_stop())"
FEED = """
import sys
from bivouac_data import order, reader
print(reader.__file__, [name for name in ("trainer", "pydantic", "torch") if name in sys.modules])
"""


def test_the_client_is_built_offline_and_imported_beside_the_main_package(tmp_path: Path) -> None:
    source = shutil.copytree(CLIENT, tmp_path / "client", ignore=shutil.ignore_patterns("__pycache__", "build"))
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--quiet"]
    subprocess.run([*build, "--wheel-dir", tmp_path, source], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("bivouac_client-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = [name for name in packed.namelist() if ".dist-info/" not in name]
        metadata = Parser().parsestr(packed.read(f"{wheel.name.rpartition('-py3')[0]}.dist-info/METADATA").decode())
    here = [*CLIENT.glob("bivouac*.py"), *CLIENT.glob("bivouac*/*.py")]
    assert sorted(names) == sorted(str(path.relative_to(CLIENT)) for path in here), "all, and `__init__` not"
    assert metadata["Name"] == "bivouac-client" and metadata.get_all("Requires-Dist") is None
    main = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert metadata["Version"] == main["version"] and metadata["Requires-Python"] == ">=3.8"
    done = subprocess.run(
        [sys.executable, "-S", "-c", USE], cwd=tmp_path, env={"PYTHONPATH": str(wheel)}, capture_output=True, text=True
    )
    assert done.stdout.split() == [f"{wheel}/bivouac.py", "False"], done.stderr
    done = subprocess.run(
        [sys.executable, "-c", FEED], cwd=tmp_path, env={"PYTHONPATH": str(wheel)}, capture_output=True, text=True
    )
    assert done.stdout.split() == [f"{wheel}/bivouac_data/reader.py", "[]"], done.stderr


def test_the_feed_needs_numpy_and_torch_and_only_the_dataset_needs_torch() -> None:
    needed = {}
    for path in (CLIENT / "bivouac_data").glob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
        needed[path.stem] = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    assert needed.pop("sequences") == {"numpy", "torch"}
    assert set().union(*needed.values()) == {"numpy"}
