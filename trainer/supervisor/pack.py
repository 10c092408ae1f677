"""`python -m trainer.supervisor.pack FILE`: the supervisor as one file that any Python from 3.8 on runs."""

from __future__ import annotations

import sys
import tempfile
import zipapp
from pathlib import Path
from shutil import copyfile

_PACKAGE, CLIENT = "trainer/supervisor", "client/bivouac.py"
_MAIN = "from trainer.supervisor.__main__ import start\nstart()\n"


def pack(target: Path) -> None:
    """Write the zipapp, with the supervisor's modules and no other of the project's, and the client beside it."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        package = root / _PACKAGE
        package.mkdir(parents=True)
        (package.parent / "__init__.py").touch()
        (root / "__main__.py").write_text(_MAIN)
        for path in Path(__file__).parent.glob("*.py"):
            copyfile(path, package / path.name)
        zipapp.create_archive(root, target, compressed=True)
    copyfile(Path(__file__).parents[1] / CLIENT, target.parent / Path(CLIENT).name)


if __name__ == "__main__":
    pack(Path(sys.argv[1]))
