"""Faults of the emulated AWS on demand: rules at `/_site/faults`, each for some calls and a number of times.

POST an empty body to read the rules with their hit counts; `{"add": [RULE, ...]}` adds rules and answers their ids;
`{"clear": [ID, ...]}` removes some, `{"clear": true}` all.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from infra.rehearsal.aws.iam.access import arn_of_key
from infra.rehearsal.aws.world import Call, Effect, FaultAnswer, World
from trainer.contract.frozen import Frozen

Model = TypeVar("Model", bound=BaseModel)


class Rules(Generic[Model]):
    """Rules by number, each with the time of its addition."""

    def __init__(self, model: type[Model], facts_of: Callable[[int], Mapping[str, Any]] = lambda number: {}) -> None:
        """`facts_of`: what else is answered of a rule."""
        self._model, self._facts_of = model, facts_of
        self._numbers, self._lock = itertools.count(1), threading.Lock()
        self.standing: dict[int, tuple[Model, float]] = {}

    def route(self, query: str, body: bytes) -> tuple[int, dict[str, Any]]:
        request = json.loads(body) if body else {}
        try:
            rules = [self._model.model_validate(rule) for rule in request.get("add", ())]
        except ValidationError as error:
            return 400, {"message": str(error)}
        with self._lock:
            if clear := request.get("clear"):
                for number in list(self.standing) if clear is True else clear:
                    self.standing.pop(number, None)
            numbers = [next(self._numbers) for _ in rules]
            self.standing |= {n: (rule, time.monotonic()) for n, rule in zip(numbers, rules, strict=True)}
            documents = [
                {"id": number, **self._facts_of(number), **rule.model_dump()}
                for number, (rule, _) in self.standing.items()
            ]
        return 200, {"added": numbers, "rules": documents}


class Rule(Frozen):
    """The calls that a fault hits, and its effect. Patterns are those of `fnmatch`."""

    service: str = "*"
    """Signing name, for instance ec2, s3, elasticloadbalancing."""
    action: str = "*"
    path: str = "*"
    """Path of the URL: bucket and key for S3."""
    caller: str = "*"
    """ARN of the principal; only a pattern other than `*` hits the emulator's own principal."""
    effect: Effect = "refuse"
    """`refuse` answers with the error and does nothing; `-after` acts first; `drop` closes the connection."""
    code: str = "InternalFailure"
    message: str = "an injected fault"
    status: int = 500
    delay_s: float = 0.0
    """Delay before anything else."""
    keep_bytes: int = 0
    """`truncate`: number of bytes of the answer's body that are sent."""
    lag_s: float = 0.0
    """`stale`: the same request gets the same answer for so long, as in a listing that lags behind changes."""
    skip: int = 0
    """Number of matching calls that pass first."""
    times: int | None = 1
    """Number of calls that are hit; None means all."""
    share: float = 1.0
    """Fraction of the calls to hit, drawn by `seed`."""
    seed: int = 0


class Faults:
    """Rules in the order of their addition; the first that hits a call gives its fault."""

    def __init__(self, world: World) -> None:
        self._world, self._lock = world, threading.Lock()
        self.rules = Rules(Rule, self._counts)
        self._matches, self._hits = Counter[int](), Counter[int]()
        self._draws: dict[int, random.Random] = {}

    def hook(self, call: Call) -> FaultAnswer | None:
        with self._lock:
            for number, (rule, _) in list(self.rules.standing.items()):
                if self._hits_rule(number, rule, call):
                    return FaultAnswer(
                        rule.code, rule.message, rule.status, rule.effect, rule.delay_s, rule.keep_bytes, rule.lag_s
                    )
        return None

    def _hits_rule(self, number: int, rule: Rule, call: Call) -> bool:
        patterns = ((call.service, rule.service), (call.action, rule.action), (call.path, rule.path))
        if not all(fnmatchcase(value, pattern) for value, pattern in patterns):
            return False
        if rule.caller == "*":
            if call.access_key == self._world.agent_key[0]:
                return False
        elif not fnmatchcase(arn_of_key(self._world, call.access_key), rule.caller):
            return False
        if rule.times is not None and self._hits[number] >= rule.times:
            return False
        self._matches[number] += 1
        draws = self._draws.setdefault(number, random.Random(rule.seed))
        if self._matches[number] <= rule.skip or draws.random() >= rule.share:
            return False
        self._hits[number] += 1
        return True

    def _counts(self, number: int) -> dict[str, int]:
        return {"seen": self._matches[number], "hits": self._hits[number]}


def install(world: World) -> None:
    faults = Faults(world)
    world.faults.append(faults.hook)
    world.routes["/_site/faults"] = faults.rules.route
