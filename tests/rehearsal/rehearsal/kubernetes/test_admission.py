"""What a real API server admits to a campaign's namespace, as the stack makes it, and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest

from infra.campaign.launch import steward_pod
from tests.pods import IMAGE, archive, copy, fetch, gang, mpi_gang, preparing
from tests.rehearsal.rehearsal.kubernetes import admission
from tests.rehearsal.rehearsal.kubernetes.admission import THEIRS

pytestmark = [pytest.mark.nightly, pytest.mark.inside("net", "pid", shared=True)]


def test_what_we_make_is_admitted(asking: admission.Asking) -> None:
    of_jobs = gang(), gang(sees_node=True), gang(supervisor_image=IMAGE, secrets=True)
    for manifest in (*of_jobs, archive(), archive(workload=True), copy(), fetch()):
        assert asking.refusal(manifest, admission.STEWARD) == ""
        assert asking.refusal(admission.as_pod(manifest)) == ""
    steward = {"kind": "Pod", "spec": steward_pod(IMAGE, 0, 2)}
    assert asking.refusal(admission.as_pod(steward)) == ""
    relaunched = admission.changed(
        gang(), lambda pod: pod["containers"][0].update(image=IMAGE.partition("@")[0] + admission.OTHER_DIGEST)
    )
    assert asking.refusal(relaunched, admission.STEWARD) == "", "another image of ours"


def test_the_driver_makes_the_job_that_prepares_data_and_its_account_runs_nothing_else(
    asking: admission.Asking,
) -> None:
    job = preparing()
    assert asking.refusal(job) == asking.refusal(admission.as_pod(job)) == ""
    assert "service account" in asking.refusal(job, admission.STEWARD)
    for change in (
        lambda pod: admission.first(pod).update(command=["python", "-m", "trainer.builtin.data"]),
        lambda pod: admission.first(pod).update(args=["x"]),
        lambda pod: pod["securityContext"].update(runAsUser=0, runAsNonRoot=False),
    ):
        assert "trainer.builtin.data.share" in asking.refusal(admission.as_pod(admission.changed(job, change)))


def test_what_no_pod_of_ours_may_have_is_refused_whoever_asks(asking: admission.Asking) -> None:
    for name, (change, word) in admission.FORBIDDEN.items():
        asked = admission.changed(gang(), change)
        said = asking.refusal(asked, admission.STEWARD)
        assert "bivouac-example-steward" in said and re.search(word, said), (name, said)
        said = asking.refusal(admission.as_pod(asked))
        assert re.search(word, said), (name, said)


def test_the_steward_has_no_account_but_two_and_the_archives_is_for_the_archive(asking: admission.Asking) -> None:
    ours = (gang(), admission.FORBIDDEN_TO_THE_STEWARD), (archive(), admission.FORBIDDEN_TO_THE_ARCHIVE)
    for manifest, table in ours:
        for name, (change, word) in table.items():
            said = asking.refusal(admission.changed(manifest, change), admission.STEWARD)
            assert "bivouac-example-steward" in said and word in said, (name, said)
    for change in (
        lambda pod: admission.first(pod)["securityContext"]["capabilities"].update(add=["DAC_OVERRIDE", "CHOWN"]),
        lambda pod: pod["initContainers"][0]["securityContext"]["capabilities"].update(add=["DAC_OVERRIDE"]),
    ):
        said = asking.refusal(admission.changed(archive(workload=True), change), admission.STEWARD)
        assert "capabilities: drop ALL" in said, said
    as_root = admission.changed(copy(), lambda pod: pod["securityContext"].update(runAsUser=0, runAsNonRoot=False))
    assert "infra.checkpoints.copies send` as user 65532" in asking.refusal(as_root, admission.STEWARD)


def test_a_workloads_image_runs_in_the_jobs_own_container_only(asking: admission.Asking) -> None:
    """It gets no right beside the trainer's: no account of steward or archive, no init container."""

    def of_theirs(manifest: dict[str, Any], part: str = "containers") -> dict[str, Any]:
        return admission.changed(manifest, lambda pod: pod[part][0].update(image=THEIRS))

    whole = gang(supervisor_image=IMAGE)
    assert asking.refusal(of_theirs(whole), admission.STEWARD) == ""
    assert asking.refusal(admission.as_pod(of_theirs(whole))) == ""
    steward = {"kind": "Pod", "spec": steward_pod(IMAGE, 0, 2)}
    for manifest in (of_theirs(whole, "initContainers"), of_theirs(archive()), of_theirs(steward)):
        assert "image" in asking.refusal(admission.as_pod(manifest))
    tagged = admission.changed(whole, lambda pod: pod["containers"][0].update(image="nvcr.io/nvidia/pytorch:25.10-py3"))
    assert "image" in asking.refusal(tagged, admission.STEWARD)


def test_the_stewards_mpi_jobs_have_the_bounds_of_others_and_mount_only_its_keys(
    asking: admission.Asking,
) -> None:
    job = mpi_gang(supervisor_image=IMAGE, secrets=True)
    assert asking.refusal(job, admission.STEWARD) == ""
    for table in (admission.FORBIDDEN, admission.FORBIDDEN_TO_THE_STEWARD):
        for name, (change, word) in table.items():
            if name == "the archive's account for another program":
                continue  # it is the archive's init container that this job lacks
            said = asking.refusal(admission.changed(job, change), admission.STEWARD)
            assert "bivouac-example-steward" in said and re.search(word, said), (name, said)

    def with_key(secret: str, **more: Any) -> dict[str, Any]:
        """As the operator makes it of the job."""
        volume = {"name": "ssh-auth", "secret": {"secretName": secret}}
        return admission.as_pod(admission.changed(job, lambda pod: pod["volumes"].append(volume) or pod.update(more)))

    assert asking.refusal(with_key("example-a1-ssh")) == ""
    for secret in ("example-a1-tls", "other-a1-ssh", "sh.helm.release.v1.jobset.v1"):
        assert "volumes" in asking.refusal(with_key(secret)), secret
    assert "volumes" in asking.refusal(with_key("example-a1-ssh", serviceAccountName="archive"))


def test_a_job_of_the_teams_own_runs_an_image_of_its_own_but_no_privileged_one(asking: admission.Asking) -> None:
    container = {"name": "theirs", "image": "docker.io/library/python:3.12"}
    theirs = {"kind": "Pod", "spec": {"containers": [container]}}
    assert asking.refusal(admission.as_pod(theirs)) == ""
    for name in ("privileged", "a folder of the node", "the node's network"):
        change, _ = admission.FORBIDDEN[name]
        spec = {"containers": [{**container, "securityContext": {}}], "volumes": []}
        said = asking.refusal(admission.as_pod(admission.changed({"kind": "Pod", "spec": spec}, change)))
        assert "violates PodSecurity" in said, (name, said)
    borrowed = {"kind": "Pod", "spec": {"containers": [container], "serviceAccountName": "archive"}}
    assert "denied request" in asking.refusal(admission.as_pod(borrowed))
