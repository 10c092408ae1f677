"""The secrets of a rehearsed job: from a file of this machine into the emulated account, from where pods read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.aws.account import Account
from infra.errors import UserError
from infra.spec.secrets import SecretSource

if TYPE_CHECKING:
    from infra.spec.campaign import Spec

_FIELD = "workload.rehearsal.secrets"
PULL_SECRET = "workload.pull_secret"
"""Name of the login's line in the file: no variable of a job is called so."""


def sources(spec: Spec) -> dict[str, SecretSource]:
    """Return name in the file -> where the value belongs."""
    return spec.secrets | ({} if spec.pull_secret is None else {PULL_SECRET: spec.pull_secret})


def values(spec: Spec) -> dict[str, str]:
    """Return name -> value of the spec's secrets. Raises `UserError` for a file or name that is missing; no error
    shows what the file holds."""
    secret_sources = sources(spec)
    if not secret_sources:
        return {}
    names = ", ".join(secret_sources)
    if spec.runtime.rehearsal.secrets is None:
        cure = f"name a file with a line NAME=value for each in {_FIELD}"
        raise UserError("this rehearsal has no values for its secrets", seen=names, cure=cure)
    path = Path(spec.runtime.rehearsal.secrets).expanduser()
    try:
        stored_values = _read(path)
    except (OSError, UnicodeDecodeError) as error:
        cure = f"write it, with a line NAME=value for each of {names}"
        raise UserError(
            f"the file of {_FIELD} cannot be read", seen=f"{path}: {type(error).__name__}", cure=cure
        ) from error
    if missing := [name for name in secret_sources if name not in stored_values]:
        cure = "add a line NAME=value for each"
        raise UserError(f"{path} has no value for secrets of the job", seen=", ".join(missing), cure=cure)
    return {name: stored_values[name] for name in secret_sources}


def _read(path: Path) -> dict[str, str]:
    pairs = dict[str, str]()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        name, equals, value = line.strip().partition("=")
        if not name or name.startswith("#"):
            continue
        if not equals:
            cure = 'write NAME=value; a value of several lines as JSON: NAME="first\\nsecond"'
            raise UserError("a line has no name of a secret", seen=f"{path}, line {number}", cure=cure)
        pairs[name.strip()] = _unquote(value.strip(), f"{path}, line {number}")
    return pairs


def _unquote(value: str, place: str) -> str:
    if not value.startswith('"'):
        return value
    try:
        return str(json.loads(value))
    except ValueError:
        cure = "write a value that begins with a quotation mark as a JSON string"
        raise UserError("a quoted value is no JSON string", seen=place, cure=cure) from None


def give(spec: Spec) -> None:
    """Put the values under the names of their sources, as somebody has done on AWS. Called inside the site."""
    account, secret_values = Account(spec.region), values(spec)
    for source, text in [*_texts_by_place(sources(spec), secret_values), *_addresses(spec)]:
        if source.secret is None:
            parameter = {"Name": source.parameter, "Value": text, "Type": "SecureString", "Overwrite": True}
            account.client("ssm").put_parameter(**parameter)
        else:
            _store(account.client("secretsmanager"), source.secret, text)


def _addresses(spec: Spec) -> Iterator[tuple[SecretSource, str]]:
    """Yield the place of the webhook and of each route with its address, if the rehearsal has a file of secrets: the
    values of `NOTIFY_WEBHOOK` and of `NOTIFY_` with the route's name in capitals."""
    file = spec.rehearsal.secrets if spec.rehearsal is not None else None
    if not spec.notify.addresses or file is None:
        return
    path, job_places = Path(file).expanduser(), {source.place for source in sources(spec).values()}
    try:
        addresses = _read(path)
    except (OSError, UnicodeDecodeError) as error:
        problem = f"{path}: {type(error).__name__}"
        raise UserError("the file of rehearsal.secrets cannot be read", seen=problem, cure="write it") from error
    for field, source in spec.notify.addresses.items():
        name = f"NOTIFY_{field.rpartition('.')[2].replace('-', '_').upper()}"
        if source.place in job_places:
            raise UserError(f"{field} lies in a secret of the job", seen=source.place, cure="give it one of its own")
        if name not in addresses:
            raise UserError(f"{path} has no value for {field}", seen=name, cure=f"add a line {name}=ADDRESS")
        yield source, addresses[name] if source.key is None else json.dumps({source.key: addresses[name]})


def _store(client: Any, name: str, text: str) -> None:
    try:
        client.create_secret(Name=name, SecretString=text)
    except client.exceptions.ResourceExistsException:
        client.put_secret_value(SecretId=name, SecretString=text)


def _texts_by_place(places: dict[str, SecretSource], secret_values: dict[str, str]) -> list[tuple[SecretSource, str]]:
    """Return each secret and parameter with its whole text: the values with a key are members of one JSON object."""
    texts, members = dict[str, tuple[SecretSource, str]](), dict[str, dict[str, str]]()
    for name, source in places.items():
        if source.key is not None:
            members.setdefault(source.place, {})[source.key] = secret_values[name]
            text = json.dumps(members[source.place])
        else:
            text = secret_values[name]
        previous = texts.get(source.place)
        if previous is not None and (source.key is None) != (previous[0].key is None):
            cure = "in a rehearsal read it with a key always, or never"
            raise UserError("a secret is read whole and by key", seen=source.place, cure=cure)
        texts[source.place] = source, text
    return list(texts.values())
