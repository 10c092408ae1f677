"""`python pip_for_image.py JSON WORDS`: pip, choosing for the Python of an image.

Pip alone weighs markers (`; python_version < "3.11"`) by the Python that runs it, and takes wheels for a newer C
library than the image may have.
"""

from __future__ import annotations

import importlib
import json
import runpy
import sys
import types
from typing import Any


def main() -> None:
    environment = json.loads(sys.argv.pop(1))
    library: Any = types.ModuleType("_manylinux")  # asked by pip, as PEP 600 has it
    library.manylinux_compatible = lambda major, minor, machine: [major, minor] <= environment["glibc"]
    sys.modules["_manylinux"] = library
    markers: Any = importlib.import_module("pip._vendor.packaging.markers")  # Python brings pip, not the project
    real = markers.default_environment
    markers.default_environment = lambda: {**real(), **environment["markers"]}
    sys.path.pop(0)  # this file's folder
    runpy.run_module("pip", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
