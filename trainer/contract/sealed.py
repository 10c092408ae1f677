"""Names and manifest of a committed checkpoint, in the form of `trainer.contract.checkpoint`, the one rule of which
ones stay, and how long its files are waited for. Standard library and Python 3.8 only, as `trainer.contract.tree`."""

from __future__ import annotations

import errno
import hashlib
import json
import re
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple, TypeVar

MANIFEST = "manifest.json"
_FORMATS = (2, 3, 4, 5)
_WHOLE = ("format", "attempt", "step", "tokens", "world_size", "zero_stage", "position")
_FIELDS = {
    *_WHOLE, "campaign", "identity", "generation", "parallel", "loss", "evaluation_loss", "config_digest",
    "data_digest", "code_digest", "image_digest", "consumed", "shards", "rng_included", "seal",
}  # fmt: skip
"""As `trainer.contract.checkpoint.Manifest` has them; a test holds both equal."""
_STEP = re.compile(r"^step-(\d{8,})$")
_SHARD = re.compile(r"attempt-\d{4,}/[^/.][^/]*")
"""As `trainer.contract.checkpoint.Shard` has it: below the step's folder, whoever wrote the manifest."""
_LOSSES = ("loss", "evaluation_loss")
_LARGEST = 1e15
"""Of a loss; beyond, a job has diverged, and JSON writers differ in the digits."""

_Answer = TypeVar("_Answer")
PAUSES_S = (1.0, 5.0, 15.0)
_LASTING = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
_LASTING_NUMBERS = (errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.ENXIO, errno.ENOSPC, errno.EDQUOT, None)
"""What the files themselves say, and a full disk: it stays so. ENXIO: a pipe or socket in the place of a file; None: an
error of ours, such as for a folder there."""


class Identity(NamedTuple):
    """What every manifest of an attempt says."""

    campaign: str
    identity: str
    attempt: int
    world_size: int
    config_digest: str
    data_digest: str
    code_digest: str
    image_digest: str


def attempt_folder(attempt: int) -> str:
    """Return the name of the folder of an attempt's shards within a step folder."""
    return f"attempt-{attempt:04d}"


def step_folder(step: int) -> str:
    """Return the name of a step's folder, `<tier>/<campaign>/step-<8 digits>/`."""
    return f"step-{step:08d}"


def step_of_folder(name: str) -> int | None:
    """Return the step of a folder's name, or None for any other name (temporary ones included)."""
    match = _STEP.match(name)
    return int(match.group(1)) if match else None


def read_manifest(content: bytes, step: int, campaign: str, identity: str = "") -> dict[str, Any]:
    """Return a manifest as it was read. Raises `ValueError` for one that was changed, that a later version wrote, or
    that is of another step, campaign or identity (empty: any)."""
    try:
        manifest = json.loads(content)
        if hashlib.sha256(_compact(dict(manifest, seal=""))).hexdigest() != manifest["seal"]:
            raise ValueError("its seal does not fit its content")
        _refuse_unknown(manifest)
        campaign_names = (campaign or manifest["campaign"], manifest["campaign"])
        known_identities = ("", identity or manifest.get("identity", ""))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no manifest: {type(error).__name__}: {error}") from error
    if (campaign_names[0], step) != (campaign_names[1], manifest["step"]):
        raise ValueError("it is of step {} of campaign {}".format(manifest["step"], manifest["campaign"]))
    if manifest.get("identity", "") not in known_identities:
        raise ValueError("it is of another campaign of this name")
    return dict(manifest)


def _refuse_unknown(manifest: dict[str, Any]) -> None:
    """Raise `ValueError` for what `parse_manifest` would refuse: it would be listed, and then not restored."""
    if manifest["format"] not in _FORMATS or not set(manifest) <= _FIELDS:
        raise ValueError("another version wrote it: format {}, {}".format(manifest["format"], sorted(manifest)[:40]))
    if any(type(manifest[name]) is not int for name in _WHOLE):
        raise ValueError("one of {} is no whole number".format(", ".join(_WHOLE)))
    if any(type(manifest.get(name)) not in (float, type(None)) for name in _LOSSES):
        raise ValueError("a loss is no number with a fraction")
    files = [shard["file"] for shard in manifest["shards"]]
    for shard in manifest["shards"]:
        if _SHARD.fullmatch(shard["file"]) is None:
            raise ValueError("it names {!r}, which is no file of a step".format(shard["file"]))
        if type(shard["size_bytes"]) is not int or shard["size_bytes"] < 0:
            raise ValueError("{!r} has a size of {!r}".format(shard["file"], shard["size_bytes"]))
    folder = attempt_folder(manifest["attempt"])
    if len(set(files)) != len(files) or any(not file.startswith(folder + "/") for file in files):
        raise ValueError(f"its shards are not one file each below {folder}")


def serialize(identity: Identity, step: int, tokens: int, loss: float | None, shards: list[dict[str, object]]) -> bytes:
    """Return the bytes that `trainer.contract.checkpoint.Manifest.serialize` would give; a test holds them equal."""
    body = {
        "format": 4,
        "campaign": identity.campaign,
        "identity": identity.identity,
        "attempt": identity.attempt,
        "step": step,
        "tokens": tokens,
        "world_size": identity.world_size,
        "zero_stage": 0,
        "position": 0,
        "loss": None if loss is None or not abs(loss) < _LARGEST else loss,
        "evaluation_loss": None,
        "config_digest": identity.config_digest,
        "data_digest": identity.data_digest,
        "code_digest": identity.code_digest,
        "image_digest": identity.image_digest,
        "consumed": [],
        "shards": shards,
        "rng_included": True,
        "seal": "",
    }  # fmt: skip
    body["seal"] = hashlib.sha256(_compact(body)).hexdigest()
    return _json(body, indent=1) + b"\n"


def _compact(body: dict[str, object]) -> bytes:
    return _json(body, separators=(",", ":"))


def _json(body: dict[str, object], **form: Any) -> bytes:
    """As pydantic writes it, which has another form for small and large floats: `1e-7`, not `1e-07`."""
    floats = {name: number for name in _LOSSES for number in [body.get(name)] if isinstance(number, float)}
    text = json.dumps({**body, **dict.fromkeys(floats)}, ensure_ascii=False, **form)
    for name, number in floats.items():
        text = re.sub(rf'("{name}": ?)null', r"\g<1>" + _float(number), text, count=1)
    return text.encode()


def _float(number: float) -> str:
    mantissa, exponent, power = repr(number).partition("e")
    if exponent and int(power) == -5:
        sign, digits = ("-", mantissa[1:]) if mantissa.startswith("-") else ("", mantissa)
        return sign + "0.0000" + digits.replace(".", "")
    return mantissa + ("e" + str(int(power)) if exponent else "")


def patient(read: Callable[[], _Answer]) -> _Answer:
    """Return what `read` gives; try again after an error of storage that may pass, for 21 seconds: an evicted Lustre
    client is back within some."""
    for pause_s in PAUSES_S:
        try:
            return read()
        except OSError as error:
            if isinstance(error, _LASTING) or error.errno in _LASTING_NUMBERS:
                raise
        time.sleep(pause_s)
    return read()


def newest_sound(committed_steps: Iterable[int], sound: Callable[[int], bool]) -> int | None:
    """Return the newest step that is sound, None if none is; `sound` is asked for no older one."""
    return next((step for step in sorted(committed_steps, reverse=True) if sound(step)), None)


def removable(
    committed_steps: Collection[int], keep: int, unsound: Collection[int], protected_steps: Collection[int] = ()
) -> list[int]:
    """Return the steps that may go, newest first. The newest `keep` that are not known to be `unsound` stay, at least
    one, and so do the `protected_steps`. A step newer than all of these stays whatever it is: it may be read again."""
    steps = sorted(committed_steps, reverse=True)
    sound_steps = [step for step in steps if step not in unsound]
    kept_steps = {*sound_steps[: max(keep, 1)], *protected_steps}
    return [step for step in steps if step not in kept_steps and any(step < newer for newer in kept_steps)]
