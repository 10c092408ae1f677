"""What differs between the built-in trainer and a job of one's own is asked of one property of the spec."""

from __future__ import annotations

from infra.spec.workload.built_in import BuiltIn
from infra.spec.workload.workload import Workload
from tests.example import example_spec

JOB = {"script": "/job.py", "image": "team/job:v1", "estimates": {"steps": 10, "step_seconds": 1}}


def test_the_built_in_trainer_answers_nothing_that_a_workload_does_not() -> None:
    of_workload = {*Workload.model_fields, *dir(Workload)}
    assert set(BuiltIn.model_fields) <= of_workload


def test_pods_have_what_the_kind_of_job_says_on_its_target() -> None:
    trainer = example_spec()
    assert trainer.runtime.is_built_in and trainer.runtime.image is None and not trainer.secrets
    assert trainer.runtime.pod_command[-1] == "trainer.builtin.agent" and trainer.runtime.sealing_s == 0
    job = example_spec(training=None, data=None, workload=JOB)
    assert not job.runtime.is_built_in and job.runtime.image == "team/job:v1"
    assert job.runtime.pod_command != trainer.runtime.pod_command and job.runtime.sealing_s > 0
    assert job.model_copy(update={"target": "rehearsal"}).runtime.image is None, "the trainer image stands in"
