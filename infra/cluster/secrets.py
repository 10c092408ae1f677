"""Secrets of a spec, read where they lie. No error holds a value."""

from __future__ import annotations

import json
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.account import EXPIRED, RETRY_AFTER, Account, explained
from infra.errors import TemporaryError
from infra.spec.names import JOB_SECRETS, WEBHOOK_SECRETS
from infra.spec.secrets import SecretSource

SHORTEST = 4
"""Characters of a value. A shorter one cannot be kept out of logs: it would stand in every other line by chance."""
_FAILED = "InternalServ"
"""Beginning of the codes of a failed service: InternalServiceError, InternalServerError."""


class SecretRefused(Exception):
    """A secret cannot be had as the spec names it, however often it is tried. The text holds no value."""


def text_of(account: Account, source: SecretSource) -> str:
    """Return a secret's whole text. Raises `SecretRefused`, or `TemporaryError` if AWS does not answer now."""
    try:
        if source.secret is None:
            ssm = account.client("ssm")
            return str(ssm.get_parameter(Name=source.parameter, WithDecryption=True)["Parameter"]["Value"])
        answer = account.client("secretsmanager").get_secret_value(SecretId=source.secret)
    except (BotoCoreError, ClientError) as error:
        raise _meaning(error, source, account.region) from error
    if "SecretString" not in answer:
        raise SecretRefused(f"{source.place} is binary: store it as text")
    return str(answer["SecretString"])


def _meaning(error: BotoCoreError | ClientError, source: SecretSource, region: str) -> Exception:
    source_place, code = f"{source.place} in {region}", str(error)
    if isinstance(error, ClientError):
        code = error.response.get("Error", {}).get("Code", "")
        passes = isinstance(explained(error), TemporaryError) or code in EXPIRED or code.startswith(_FAILED)
        if not passes:
            names = f"a job's begins with {JOB_SECRETS}, a webhook's with {WEBHOOK_SECRETS}"
            cure = f"see that it is there under this name ({names}), and that its key lets the pods' role decrypt it"
            return SecretRefused(f"{source_place}: {code}; {cure}")
    return TemporaryError(source_place, seen=code, delay=RETRY_AFTER)


def value_of(text: str, source: SecretSource) -> str:
    """Return the value in a secret's text. An error names what is missing, and never what is there."""
    if source.key is not None:
        text = _member(text, source.key, source.place)
    if len(text.strip()) < SHORTEST:
        raise SecretRefused(f"{source.place} is too short to be kept out of logs: {SHORTEST} characters at least")
    if "\0" in text:
        raise SecretRefused(f"{source.place} has a zero byte, which no environment variable can hold")
    return text


def _member(text: str, key: str, place: str) -> str:
    try:
        document: Any = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise SecretRefused(f"{place} is no JSON object, so it has no key {key!r}")
    value = document.get(key)
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise SecretRefused(f"{place} has no text or number under the key {key!r}")
    return value if isinstance(value, str) else json.dumps(value)
