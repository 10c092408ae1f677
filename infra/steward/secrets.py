"""`python -m infra.steward.secrets`: the init container that fetches a job's secrets into its pod's memory.

A value goes into that file and nowhere else: no line, error or termination message holds one.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.account import EXPIRED, QUICK, RETRY_AFTER, Account, explained
from infra.errors import TemporaryError
from infra.spec.secrets import SecretSource, SecretSources
from trainer.contract import CONFIG_FILE, TERMINATION_LOG, Env, ExitCode, Termination
from trainer.contract.workload import SECRET_SOURCES, SECRETS

SHORTEST = 4
"""Characters of a value. A shorter one cannot be kept out of logs: it would stand in every other line by chance."""
_FAILED = "InternalServ"
"""Beginning of the codes of a failed service: InternalServiceError, InternalServerError."""
_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 60.0)
"""Between tries while AWS, or the agent that lends the pod its role, does not answer. The pods of a gang ask together,
and Systems Manager answers 40 requests a second: each pause is half as long to half as long again, by chance."""


class Refused(Exception):
    """A secret cannot be had as the spec names it, however often it is tried. The text holds no value."""


def fetched(sources: SecretSources, account: Callable[[], Account], pause: Callable[[float], None]) -> dict[str, str]:
    """Return variable -> value. Raises `Refused` with all that is wrong, `TemporaryError` if AWS stays away.

    `account` is called for each try: botocore does not look again for credentials that it did not find.
    """
    texts = dict[str, str]()
    for seconds in (*_PAUSES_S, None):
        try:
            return _once(sources, account(), texts)
        except TemporaryError:
            if seconds is None:
                raise
            pause(seconds * random.uniform(0.5, 1.5))
    raise AssertionError("the last try returns or raises")


def _once(sources: SecretSources, account: Account, texts: dict[str, str]) -> dict[str, str]:
    """Return variable -> value. `texts` keeps what was read, by its place, for the next try."""
    values, wrong = dict[str, str](), list[str]()
    for name, source in sources.secrets.items():
        try:
            if source.place not in texts:
                texts[source.place] = _text(account, source)
            values[name] = _value(texts[source.place], source)
        except Refused as refused:
            wrong.append(f"{name}: {refused}")
    if wrong:
        raise Refused("; ".join(wrong))
    return values


def _text(account: Account, source: SecretSource) -> str:
    try:
        if source.secret is None:
            ssm = account.client("ssm")
            return str(ssm.get_parameter(Name=source.parameter, WithDecryption=True)["Parameter"]["Value"])
        answer = account.client("secretsmanager").get_secret_value(SecretId=source.secret)
    except (BotoCoreError, ClientError) as error:
        raise _meaning(error, source, account.region) from error
    if "SecretString" not in answer:
        raise Refused(f"{source.place} is binary: store it as text")
    return str(answer["SecretString"])


def _meaning(error: BotoCoreError | ClientError, source: SecretSource, region: str) -> Exception:
    where, seen = f"{source.place} in {region}", str(error)
    if isinstance(error, ClientError):
        seen = error.response.get("Error", {}).get("Code", "")
        passes = isinstance(explained(error), TemporaryError) or seen in EXPIRED or seen.startswith(_FAILED)
        if not passes:
            cure = "see that it is there under this name, and that its key lets the role of the pods decrypt it"
            return Refused(f"{where}: {seen}; {cure}")
    return TemporaryError(where, seen=seen, delay=RETRY_AFTER)


def _value(text: str, source: SecretSource) -> str:
    """Return the value in a secret's text. An error names what is missing, and never what is there."""
    if source.key is not None:
        text = _member(text, source.key, source.place)
    if len(text.strip()) < SHORTEST:
        raise Refused(f"{source.place} is too short to be kept out of logs: {SHORTEST} characters at least")
    if "\0" in text:
        raise Refused(f"{source.place} has a zero byte, which no environment variable can hold")
    return text


def _member(text: str, key: str, place: str) -> str:
    try:
        whole: Any = json.loads(text)
    except ValueError:
        whole = None
    if not isinstance(whole, dict):
        raise Refused(f"{place} is no JSON object, so it has no key {key!r}")
    found = whole.get(key)
    if not isinstance(found, str | int | float) or isinstance(found, bool):
        raise Refused(f"{place} has no text or number under the key {key!r}")
    return found if isinstance(found, str) else json.dumps(found)


def write(path: Path, values: Mapping[str, str]) -> None:
    """Write the values for root alone."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(values, file)


def main(config: Path = Path(CONFIG_FILE).parent, target: Path = Path(SECRETS)) -> int:
    """Fetch and write; return the contract's exit code, with the reason in the termination message if it is not 0."""
    try:
        sources = SecretSources.model_validate_json((config / SECRET_SOURCES).read_text())
        values = fetched(sources, lambda: Account(sources.region, QUICK), time.sleep)
        write(target, values)
    except Refused as refused:
        return _ended(ExitCode.USER, "user", f"a secret of the job cannot be read: {refused}")
    except TemporaryError as away:
        return _ended(ExitCode.INTERNAL, "internal", f"the job's secrets cannot be read now: {away}")
    except Exception as error:
        # Only its kind: the message of a parser may quote what it could not read.
        return _ended(ExitCode.INTERNAL, "internal", f"the job's secrets cannot be read: {type(error).__name__}")
    print(f"read {', '.join(sorted(values))}")
    return int(ExitCode.DONE)


def _ended(code: ExitCode, reason: str, detail: str) -> int:
    end = Termination(
        exit_code=int(code),
        reason=reason,
        attempt=int(os.environ[Env.ATTEMPT]),
        node=os.environ[Env.NODE_NAME],
        step=0,
        committed_step=-1,
        detail=detail[:1500],
    )
    print(detail, file=sys.stderr)
    Path(os.environ.get("BIVOUAC_TERMINATION_LOG", TERMINATION_LOG)).write_text(end.model_dump_json())
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
