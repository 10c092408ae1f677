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

from infra.aws.account import QUICK, Account
from infra.cluster.secrets import SecretRefused, text_of, value_of
from infra.errors import TemporaryError
from infra.spec.names import SECRET_VALUE
from infra.spec.secrets import SecretSources
from trainer.contract import CONFIG_FILE, Env, ExitCode, Termination
from trainer.contract.exits import write_termination
from trainer.contract.workload import SECRET_SOURCES, SECRETS

_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 60.0)
"""Between tries while AWS, or the agent that lends the pod its role, does not answer. The pods of a gang ask together,
and Systems Manager answers 40 requests a second: each pause is half as long to half as long again, by chance."""


def fetch_all(sources: SecretSources, account: Callable[[], Account], pause: Callable[[float], None]) -> dict[str, str]:
    """Return variable -> value. Raises `SecretRefused` with all that is wrong, `TemporaryError` if AWS stays away.

    `account` is called for each try: botocore does not look again for credentials that it did not find.
    """
    texts = dict[str, str]()
    for seconds in (*_PAUSES_S, None):
        try:
            return _try_once(sources, account(), texts)
        except TemporaryError:
            if seconds is None:
                raise
            pause(seconds * random.uniform(0.5, 1.5))
    raise AssertionError("the last try returns or raises")


def _try_once(sources: SecretSources, account: Account, texts: dict[str, str]) -> dict[str, str]:
    """Return variable -> value. `texts` keeps what was read, by its place, for the next try."""
    values, wrong = dict[str, str](), list[str]()
    for name, source in sources.secrets.items():
        try:
            if source.place not in texts:
                texts[source.place] = text_of(account, source)
            values[name] = value_of(texts[source.place], source)
        except SecretRefused as refused:
            wrong.append(f"{name}: {refused}")
    if wrong:
        raise SecretRefused("; ".join(wrong))
    return values


def _of_kubelet(sources: SecretSources) -> dict[str, str]:
    """Return variable -> value of this container's environment, into which the kubelet puts those of an existing
    cluster's Secrets; empty where AWS has them. Raises `SecretRefused` for one that cannot be kept out of logs."""
    texts = {name: os.environ.get(f"{SECRET_VALUE}{name}") for name in sources.secrets}
    plain_sources = {name: source.model_copy(update={"key": None}) for name, source in sources.secrets.items()}
    return {name: value_of(text, plain_sources[name]) for name, text in texts.items() if text is not None}


def write(path: Path, values: Mapping[str, str]) -> None:
    """Write the values for root alone."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(values, file)


def main(config: Path = Path(CONFIG_FILE).parent, target: Path = Path(SECRETS)) -> int:
    """Fetch and write; return the contract's exit code, with the reason in the termination message if it is not 0."""
    try:
        sources = SecretSources.model_validate_json((config / SECRET_SOURCES).read_text())
        values = _of_kubelet(sources) or fetch_all(sources, lambda: Account(sources.region, QUICK), time.sleep)
        write(target, values)
    except SecretRefused as refused:
        return _write_end(ExitCode.USER, "user", f"a secret of the job cannot be read: {refused}")
    except TemporaryError as away:
        return _write_end(ExitCode.INTERNAL, "internal", f"the job's secrets cannot be read now: {away}")
    except Exception as error:
        # Only its kind: the message of a parser may quote what it could not read.
        return _write_end(ExitCode.INTERNAL, "internal", f"the job's secrets cannot be read: {type(error).__name__}")
    print(f"read {', '.join(sorted(values))}")
    return int(ExitCode.DONE)


def _write_end(code: ExitCode, reason: str, detail: str) -> int:
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
    write_termination(end.model_dump_json())
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
