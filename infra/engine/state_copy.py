"""A stack's stored state, what encrypts its secrets, and a copy on a local backend that the engine may change freely.

The customer's KMS key encrypts the secrets where the campaign has one, else a passphrase does. The foundation's stack
keeps the passphrase, since it makes the key. The state names what its stack was made with, and holds the stack's own
key as KMS wrapped it: https://www.pulumi.com/docs/iac/concepts/secrets/#available-encryption-providers
The stack and its configuration are written as the CLI's files instead of by the CLI, each start of which costs a
quarter of a second; a preview makes two copies.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from pulumi import automation as auto

from infra.errors import PermanentError
from infra.record.store import CampaignStore
from infra.spec.names import PROJECT, STATE_CONTEXT

_PASSPHRASE = "PULUMI_CONFIG_PASSPHRASE"


def passphrase() -> dict[str, str]:
    """Return the engine's variable: the empty passphrase unless the user has set one."""
    return {_PASSPHRASE: os.environ.get(_PASSPHRASE, "")}


def backend(bucket: str, region: str) -> dict[str, str]:
    """Return the engine's variable for the states in the account's own bucket."""
    return {"PULUMI_BACKEND_URL": f"s3://{bucket}?region={region}&awssdk=v2"}


def provider(key_arn: str | None, region: str) -> str | None:
    """Return the address of a new stack's secrets provider; None for the passphrase."""
    name, value = STATE_CONTEXT
    return f"awskms:///{key_arn}?region={region}&awssdk=v2&context_{name}={value}" if key_arn else None


def stack_settings(document: Mapping[str, Any] | None) -> dict[str, str]:
    """Return what `Pulumi.STACK.yaml` has to say for the engine to open a stored checkpoint file on any machine."""
    entry = deployment_of(document).get("secrets_providers") or {}
    if entry.get("type") != "cloud":
        return {}
    return {"secretsprovider": entry["state"]["url"], "encryptedkey": entry["state"]["encryptedkey"]}


FORMAT_VERSION = 3
"""Version of the format of Pulumi 3's checkpoint files."""
SECRET_MARK = "4dabf18193072939515e22adb298388d"
"""Key by which Pulumi marks a secret, or an asset, among a state's values."""


def stored_state(store: CampaignStore, stack: str) -> dict[str, Any] | None:
    """Return the S3 backend's checkpoint file; None when there is no bucket or no such stack."""
    body = store.get(f".pulumi/stacks/{PROJECT}/{stack}.json")
    return None if body is None else json.loads(body)


def deployment_of(document: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the deployment in a checkpoint file: resources and pending operations, secrets encrypted."""
    return ((document or {}).get("checkpoint") or {}).get("latest") or {}


@contextmanager
def state_copy(
    stack: str, settings: Mapping[str, str], document: Mapping[str, Any] | None, program: Callable[[], None]
) -> Iterator[StateCopy]:
    """Yield a copy of the stack. `document`: a checkpoint file, None for a stack that was never made. Raises
    `PermanentError` without an engine."""
    with tempfile.TemporaryDirectory(prefix="bivouac-look-") as folder:
        backend, work = Path(folder, "backend"), Path(folder, "work")
        file = backend / ".pulumi" / "stacks" / PROJECT / f"{stack}.json"
        for path in (file.parent, work):
            path.mkdir(parents=True)
        (backend / ".pulumi" / "meta.yaml").write_text("version: 1\n")
        empty = {"version": FORMAT_VERSION, "checkpoint": {"stack": f"organization/{PROJECT}/{stack}"}}
        file.write_text(json.dumps(empty if document is None else document))
        try:
            workspace = _Workspace(
                work_dir=str(work),
                program=program,
                project_settings=auto.ProjectSettings(name=PROJECT, runtime="python"),
                stack_settings={
                    stack: auto.StackSettings._deserialize({**stack_settings(document), "config": dict(settings)})
                },
                # The variable, not the project: it goes before, and a shell may have it.
                env_vars=passphrase() | {"PULUMI_BACKEND_URL": f"file://{backend}"},
                pulumi_command=engine_command(),
            )
        except FileNotFoundError as error:
            raise PermanentError("there is no Pulumi engine", seen=error, cure="see `bivouac doctor`") from error
        yield StateCopy(auto.Stack.select(stack, workspace), file)


class StateCopy:
    def __init__(self, stack: auto.Stack, file: Path) -> None:
        self.stack, self._file = stack, file

    def state(self) -> dict[str, Any]:
        """Return the checkpoint file after the last operation."""
        return dict(json.loads(self._file.read_text()))


class _Workspace(auto.LocalWorkspace):
    def select_stack(self, stack_name: str) -> None:
        """Skip the CLI: the stack exists, and every operation names it."""


def engine_command() -> auto.PulumiCommand:
    """Return the CLI, whose version is read once per process. Raises `FileNotFoundError` where there is none."""
    return _command_at(shutil.which("pulumi"))


@cache
def _command_at(path: str | None) -> auto.PulumiCommand:
    return auto.PulumiCommand()


def bare(value: Any) -> Any:
    """Return the value without keys that plugins add to inputs: the Terraform bridge writes `__defaults` into every
    map."""
    if isinstance(value, Mapping):
        return {key: bare(item) for key, item in value.items() if not str(key).startswith("__")}
    return [bare(item) for item in value] if isinstance(value, list) else value
