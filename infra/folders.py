"""Folders on this machine: one cache, one results folder, and our own code. Uses only the standard library."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from infra.errors import UserError

_PLACE = re.compile(r"\d{12}-[a-z0-9-]+")
CODE = Path(__file__).absolute().parents[1]
ASSETS = Path("infra/assets")
"""Links to what a clone has at its root: pages, images, playbooks, locks, `pyproject.toml`; in a wheel, copies."""


def own_module(module: str, *arguments: str) -> list[str]:
    """Return the command line of a module of ours, whatever folder it is started in.

    `python -m` looks into that folder first, and a person's project may have an `infra` or a `trainer` of its own.
    """
    path = os.pathsep.join(filter(None, (str(CODE), os.environ.get("PYTHONPATH"))))
    return ["env", f"PYTHONPATH={path}", sys.executable, "-P", "-m", module, *arguments]


def asset(name: str, root: Path = CODE) -> Path:
    """Return the place of a file or folder that a clone has at its root; an installed wheel has it among its assets."""
    place = root / ASSETS / name
    return root / name if (root / "pyproject.toml").exists() or not place.exists() else place


def cache_root() -> Path:
    """Return `$BIVOUAC_CACHE`, else `bivouac` in the user's cache folder; raise `UserError` if there is neither."""
    if override := os.environ.get("BIVOUAC_CACHE"):
        return Path(override).absolute()
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache).absolute() / "bivouac"
    try:
        home = Path.home()
    except RuntimeError as error:
        raise UserError(
            "there is no home folder", seen="HOME is not set", cure="set BIVOUAC_CACHE to a folder"
        ) from error
    return home.absolute() / ".cache" / "bivouac"


def tools_dir() -> Path:
    """Return the folder of executables: pulumi, etcd, the Kubernetes binaries, controllers."""
    return cache_root() / "bin"


def share_dir(tool: str, tools: Path | None = None) -> Path:
    """Return the folder of a tool's other files, such as the manifests of a controller's pinned module."""
    return (tools or tools_dir()).parent / "share" / tool


def sites_dir() -> Path:
    return cache_root() / "sites"


def site_dir(site: str) -> Path:
    """Return a site's folder: site.json, aws/, control-plane/, machines/<instance-id>/, fsx/<fs-id>/ and logs/."""
    return sites_dir() / site


def results_folder(campaign: str, account: str, region: str) -> Path:
    """Return the folder of a campaign's report and certificate, below `$BIVOUAC_RESULTS` or `./results`.

    The path contains account and region, since two accounts may have campaigns of one name.
    """
    return results_root() / f"{account}-{region}" / campaign


def kept_results(campaign: str, region: str) -> Path:
    """Return the results folder of a campaign of which only the name is known; it may not exist.

    Raises `UserError` if several accounts, or several regions other than `region`, have results of this name.
    """
    root = results_root()
    places = sorted(root.iterdir()) if root.is_dir() else []
    results = [place / campaign for place in places if _PLACE.fullmatch(place.name) and (place / campaign).is_dir()]
    choices = [path for path in results if path.parent.name.partition("-")[2] == region] or results
    if len(choices) > 1:
        raise UserError(
            "several campaigns of this name are kept here",
            seen=", ".join(str(path) for path in choices),
            cure="give --region, or use credentials of the account; or open the page in the folder that you mean",
        )
    return choices[0] if choices else root / region / campaign


def results_root() -> Path:
    return Path(os.environ.get("BIVOUAC_RESULTS") or "results").resolve()


def keep(path: Path, content: str | bytes, note: Callable[[str], None]) -> bool:
    """Write a copy of what the record holds, atomically. On a disk error call `note` and return False."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
        return True
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        note(f"{path} cannot be written ({error.strerror}): the campaign's record in the state bucket keeps it")
        return False


def refuse_unwritable(folder: Path, variable: str) -> None:
    """Raise `UserError` if nothing can be written below `folder`, before anything is started."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"." * 4096)
            file.flush()
    except OSError as error:
        raise UserError(
            "a folder that is needed cannot be written",
            seen=f"{folder}: {error.strerror}",
            cure=f"make room or make it yours, or set {variable} to another folder",
        ) from error


def writable(folder: Path) -> Path:
    """Return `folder`, or a temporary one if its disk refuses: a teardown must not wait until someone makes room."""
    try:
        refuse_unwritable(folder, "")
        return folder
    except UserError:
        return Path(tempfile.mkdtemp(prefix="bivouac-"))
