"""What the emulated CodeBuild answers of a build is the build at one moment."""

from __future__ import annotations

from pathlib import Path

from infra.rehearsal.aws.builds import Build, Builds
from infra.rehearsal.aws.world import World


def test_an_answer_is_not_changed_by_a_build_that_ends_while_it_is_sent(tmp_path: Path) -> None:
    builds = Builds(World(work=tmp_path, tools=tmp_path, endpoint_url="http://127.0.0.1:1"))
    builds.builds["trial:1"] = Build({"id": "trial:1", "buildStatus": "IN_PROGRESS", "buildComplete": False})
    (answer,) = builds.batch_get_builds({"ids": ["trial:1"]})["builds"]
    builds.builds["trial:1"].end("SUCCEEDED")
    assert (answer["buildStatus"], answer["buildComplete"]) == ("IN_PROGRESS", False)
    (later_answer,) = builds.batch_get_builds({"ids": ["trial:1"]})["builds"]
    assert (later_answer["buildStatus"], later_answer["buildComplete"]) == ("SUCCEEDED", True)
