"""What the builds of the closer's project say of an account, and what is asked of AWS where it runs none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.bake import trial_build
from infra.errors import UserError
from tests.worlds.progress import SilentProgress

HOLD = ("AccountLimitExceededException", "Cannot have more than 0 builds in queue for the account")
MISSING = ("ResourceNotFoundException", "Project cannot be found")
DENIED = ("AccessDeniedException", "not authorized to perform: codebuild:StartBuild")


class CodeBuild:
    """CodeBuild with a project: a started build gets the states of `then`, one a look, and keeps the last."""

    def __init__(self, states: list[str], refusal: tuple[str, str] | None, then: list[str]) -> None:
        self.states, self.before, self.refusal, self.then = states, states, refusal, then
        self.started = list[Any]()

    def get_paginator(self, operation: str) -> Any:
        assert operation == "list_builds_for_project"
        return SimpleNamespace(paginate=self._pages)

    def _pages(self, projectName: str, sortOrder: str) -> list[dict[str, Any]]:
        if self.refusal == MISSING:
            raise _error(*MISSING)
        if self.started and self.then:
            self.states = [self.then.pop(0), *self.before]
        return [{"ids": [str(number) for number in range(len(self.states))]}]

    def batch_get_builds(self, ids: list[str]) -> dict[str, Any]:
        assert ids, "AWS refuses an empty question"
        return {"builds": [{"buildStatus": self.states[int(one)]} for one in ids]}

    def start_build(self, **asked: Any) -> None:
        if self.refusal is not None:
            raise _error(*self.refusal)
        self.started.append(asked)


def _error(code: str, words: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": words}}, "StartBuild")


def context(codebuild: CodeBuild, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(trial_build, "code_of", lambda context: "c" * 64)
    monkeypatch.setattr(trial_build, "keep_code", lambda context, code: None)
    return SimpleNamespace(
        account=SimpleNamespace(client=lambda service: codebuild),
        spec=SimpleNamespace(region="eu-west-1"),
        guard=lambda: None,
        progress=SilentProgress(),
        turns=lambda seconds, pause: iter([None] * 4),
    )


@pytest.mark.parametrize(
    ("states", "refusal", "then", "starts", "words"),
    [
        (["FAILED", "SUCCEEDED"], None, [], 0, ""),
        (["IN_PROGRESS"], None, [], 0, "its first build runs"),
        ([], None, ["IN_PROGRESS", "SUCCEEDED"], 1, ""),
        (["FAILED"], None, ["IN_PROGRESS", "FAILED"], 1, "no build has succeeded"),
        (["STOPPED"], None, ["FAULT"], 1, "log group /aws/codebuild/bivouac_closer"),
        ([], MISSING, [], 0, ""),
        ([], HOLD, [], 0, "quota L-9D07B6EF of codebuild in eu-west-1"),
        ([], HOLD, [], 0, "more than 0 builds in queue"),
        (["TIMED_OUT"], DENIED, [], 0, "could not be tried"),
    ],
)
def test_a_driver_leaves_only_where_a_build_has_run(
    states: list[str],
    refusal: tuple[str, str] | None,
    then: list[str],
    starts: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codebuild = CodeBuild(states, refusal, then)
    try:
        trial_build.insist(context(codebuild, monkeypatch))
        refused = ""
    except UserError as error:
        refused = str(error)
    assert words in refused and bool(words) == bool(refused)
    assert len(codebuild.started) == starts
    for asked in codebuild.started:
        (variable,) = asked["environmentVariablesOverride"]
        assert variable["name"] == "BIVOUAC_CODE", "without a campaign it is a trial"


def test_who_stays_is_told_once_and_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "AWS Support" in trial_build.try_closer(context(CodeBuild([], HOLD, []), monkeypatch))
    assert trial_build.try_closer(context(CodeBuild([], None, []), monkeypatch)) == ""
