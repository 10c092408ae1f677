"""`python -m trainer.supervisor.pack FILE`: the supervisor as one file that any Python from 3.8 on runs."""

from __future__ import annotations

import sys
import tempfile
import zipapp
from pathlib import Path
from shutil import copyfile

_PACKAGE, _CLIENT = "trainer/supervisor", Path(__file__).parents[1] / "client"
_CONTRACT = ("exits.py", "metrics.py", "rows.py", "sealed.py", "tree.py", "variables.py")
"""Modules of the contract that the supervisor uses: these need the standard library only."""
_MAIN = "from trainer.supervisor.__main__ import start\nstart()\n"


def pack(target: Path) -> None:
    """Write the zipapp, with the supervisor's modules and some of the contract's, and the client's files beside."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        package, source_package = root / _PACKAGE, Path(__file__).parent
        package.mkdir(parents=True)
        (package.parent / "__init__.py").touch()
        (root / "__main__.py").write_text(_MAIN)
        for path in source_package.rglob("*.py"):
            copy = package / path.relative_to(source_package)
            copy.parent.mkdir(exist_ok=True)
            copyfile(path, copy)
        contract = package.parent / "contract"
        contract.mkdir()
        (contract / "__init__.py").touch()
        for name in _CONTRACT:
            copyfile(source_package.parent / "contract" / name, contract / name)
        zipapp.create_archive(root, target, compressed=True)
    for path in (*_CLIENT.glob("bivouac*.py"), *_CLIENT.glob("bivouac*/*.py")):
        copy = target.parent / path.relative_to(_CLIENT)
        copy.parent.mkdir(exist_ok=True)
        copyfile(path, copy)


if __name__ == "__main__":
    pack(Path(sys.argv[1]))
