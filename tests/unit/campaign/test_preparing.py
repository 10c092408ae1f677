"""The Job that prepares the data, and what a person reads while it works."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from infra.campaign import preparing
from infra.data import in_cluster
from tests.example import example_spec

PLAN = "0123456789abcdef" * 4
DATA: dict[str, Any] = {"source": "s3://texts/web", "prepare": {"where": "cluster", "nodes": 7}}


@pytest.fixture
def job() -> dict[str, Any]:
    work = in_cluster.preparing(example_spec(data=DATA), "bivouac-data", PLAN)
    return preparing.manifest("example", "repository@sha256:1", work, timedelta(hours=2))


def test_a_pod_on_each_node_and_the_job_is_over_with_the_first(job: dict[str, Any]) -> None:
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == 7
    assert spec["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
    pod = spec["template"]["spec"]
    assert pod["nodeSelector"] == {"bivouac.dev/pool": "data"} and pod["serviceAccountName"] == "data"
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert apart["labelSelector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert spec["activeDeadlineSeconds"] == 7200


def test_an_error_of_the_text_is_tried_once_and_a_lost_node_costs_no_try(job: dict[str, Any]) -> None:
    spec = job["spec"]
    text, lost = spec["podFailurePolicy"]["rules"]
    assert text["action"] == "FailJob" and text["onExitCodes"]["values"] == [64, 65]
    assert lost == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert spec["template"]["spec"]["restartPolicy"] == "Never", "a failure policy needs it"
    assert spec["backoffLimitPerIndex"] > 0


def test_the_pods_are_given_no_path_of_this_machine(tmp_path: Path) -> None:
    spec = example_spec(data={**DATA, "tokenizer": str(tmp_path / "tokenizer.json")})
    assert str(tmp_path) not in in_cluster.preparing(spec, "bivouac-data", PLAN).model_dump_json()


def test_progress_is_told_in_one_line() -> None:
    told = {"stage": "encode", "parts": 1_200, "of": 4_000, "documents_per_s": 53_210.4, "left_s": 3_700}
    assert preparing._sentence(told) == "1,200 of 4,000 parts, 53,210 documents/s, 1:01:40 to go"
    assert preparing._sentence({**told, "documents_per_s": None, "left_s": None}) == "1,200 of 4,000 parts"


@pytest.mark.parametrize("source", ["s3://texts/w*", "s3://texts/w?b", "s3://texts/${aws:username}"])
def test_a_source_that_a_policy_would_read_as_more_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match="what lies beside it could be read"):
        example_spec(data={**DATA, "source": source})
