"""Buckets that FSx would not link, found before the file system is made: those that are not there, and those that the
caller may not read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.aws.asked import _unlinkable
from tests.example import example_spec

ANSWERS = {"theirs": "403", "gone": "404", "ours": "", "busy": "503"}
JOB = {"script": "/train.py", "checkpoints": {"format": "dcp"}, "estimates": {"steps": 10, "step_seconds": 1}}


def refusals(**mounts: str) -> dict[str, tuple[str, str]]:
    """Mount -> what is seen of its bucket, and the cure."""

    def head_bucket(Bucket: str) -> dict[str, Any]:
        if code := ANSWERS[Bucket]:
            raise ClientError({"Error": {"Code": code, "Message": "Forbidden"}}, "HeadBucket")
        return {}

    account: Any = SimpleNamespace(client=lambda service: SimpleNamespace(head_bucket=head_bucket))
    spec = example_spec(training=None, data=None, workload=JOB | {"mounts": mounts})
    return {name: (found.seen, found.cure) for name, found in _unlinkable(account, spec)}


def test_a_bucket_that_is_not_there_or_not_to_be_read_is_named_with_its_cure() -> None:
    found = refusals(a="s3://ours/x", b="s3://theirs/deep/er", c="s3://gone")
    assert found == {
        "b": ("s3:ListBucket on theirs is refused", "let its owner give you s3:Get*, s3:List* and s3:PutObject on it"),
        "c": ("gone", "mend its name, or make it"),
    }


def test_no_answer_is_taken_for_neither() -> None:
    with pytest.raises(ClientError):
        refusals(a="s3://busy/x")
