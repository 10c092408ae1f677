"""Tables that lie as YAML beside the code that reads them."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import yaml

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def table(package: str, name: str) -> Any:
    """Return the content of `<name>.yaml` in a package."""
    return parse(files(package).joinpath(f"{name}.yaml").read_text("utf-8"))


def parse(text: str) -> Any:
    """Return the content of a YAML document, by libyaml where it is: ten times as fast as Python's own parser."""
    return yaml.load(text, Loader=_Loader)
