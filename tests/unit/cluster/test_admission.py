"""The bounds of pods as they are written: on what they stand, for whom, and each thing that they forbid. What the API
server makes of them is asked of a real one in tests/rehearsal/rehearsal/kubernetes."""

from __future__ import annotations

import re

import pytest

from infra.cluster.admission import binding, pod_security, policies, steward_user

REPOSITORY = "123456789012.dkr.ecr.us-east-1.amazonaws.com/bivouac/trainer"
MADE = policies("bivouac-x", REPOSITORY)
STEWARD = "system:serviceaccount:campaign:steward"


def written(name: str) -> list[str]:
    return [validation["expression"] for validation in MADE[name]["spec"]["validations"]]


def test_a_request_that_cannot_be_judged_is_refused_and_a_change_counts_as_a_new_pod() -> None:
    assert {name: one["metadata"]["name"] for name, one in MADE.items()} == {
        "pods": "bivouac-x-pods", "steward": "bivouac-x-steward",
    }  # fmt: skip
    judged = {
        name: [
            (rule["apiGroups"], rule["apiVersions"], rule["resources"], rule["operations"])
            for rule in one["spec"]["matchConstraints"]["resourceRules"]
        ]
        for name, one in MADE.items()
    }
    both = ["CREATE", "UPDATE"]
    assert judged == {
        "pods": [([""], ["v1"], ["pods"], both)],
        "steward": [(["batch"], ["v1"], ["jobs"], both), (["jobset.x-k8s.io"], ["*"], ["jobsets"], both)],
    }
    for one in MADE.values():
        assert one["kind"] == "ValidatingAdmissionPolicy" and one["apiVersion"] == "admissionregistration.k8s.io/v1"
        assert one["spec"]["failurePolicy"] == "Fail"
        assert all(validation["message"] for validation in one["spec"]["validations"])


def test_nobody_is_excepted_from_the_bounds_of_pods_and_only_the_steward_has_more() -> None:
    assert steward_user() == STEWARD
    assert MADE["pods"]["spec"]["matchConditions"] == []
    conditions = [condition["expression"] for condition in MADE["steward"]["spec"]["matchConditions"]]
    assert conditions == [f"request.userInfo.username == '{STEWARD}'"]
    assert set(written("pods")) < set(written("steward")), "what the steward asks for is bound by all and by more"


def test_a_policy_is_in_force_in_the_campaigns_namespace_and_denies() -> None:
    for name, one in MADE.items():
        bound = binding(one)
        assert bound["kind"] == "ValidatingAdmissionPolicyBinding" and bound["metadata"]["name"] == f"bivouac-x-{name}"
        assert bound["spec"]["policyName"] == f"bivouac-x-{name}" and "Deny" in bound["spec"]["validationActions"]
        labels = bound["spec"]["matchResources"]["namespaceSelector"]["matchLabels"]
        assert labels == {"kubernetes.io/metadata.name": "campaign"}
    for host_network, enforced in ((False, "baseline"), (True, "privileged")):
        level = {name.rpartition("/")[2]: value for name, value in pod_security(host_network).items()}
        assert level == {"enforce": enforced, "audit": "restricted", "warn": "restricted"}


def test_a_job_in_its_nodes_network_has_a_policy_in_the_place_of_pod_security() -> None:
    """What the three mean to an API server is asked of a real one in rehearsal/kubernetes/test_hosted_jobs.py."""
    made = policies("bivouac-x", REPOSITORY, host_network=True)
    assert set(made) == {"baseline", "pods", "steward"} and "baseline" not in MADE
    rules = made["baseline"]["spec"]["matchConstraints"]["resourceRules"]
    assert [rule["resources"] for rule in rules] == [["pods"], ["pods/ephemeralcontainers"]]
    assert made["baseline"]["spec"]["matchConditions"] == [], "for everybody"
    for name, one in made.items():
        (network,) = [validation for validation in one["spec"]["validations"] if "hostPID" in validation["expression"]]
        only = "(!s.?hostNetwork.orValue(false) || s.?serviceAccountName.orValue('') == 'trainer') && "
        assert only in network["expression"] and "for the job" in network["message"], name
    without = [each for name in MADE for each in written(name) if "hostPID" in each]
    assert all("hostNetwork.orValue(false) && " in each for each in without)


def test_every_pod_with_an_account_of_ours_is_judged_with_all_its_containers() -> None:
    for one in MADE.values():
        expressions = {variable["name"]: variable["expression"] for variable in one["spec"]["variables"]}
        assert expressions["containers"] == "variables.specs.map(s, s.containers + s.?initContainers.orValue([]))"
    (specs, _) = MADE["pods"]["spec"]["variables"]
    assert all(f"'{account}'" in specs["expression"] for account in ("archive", "steward", "trainer"))
    scopes = ("variables.specs.all(s, ", "variables.containers.all(some, some.all(c, ")
    assert all(test.startswith(scopes) for name in MADE for test in written(name))


@pytest.mark.parametrize(
    ("image", "ours"),
    [
        (f"{REPOSITORY}@sha256:{'a' * 64}", True),
        (f"{REPOSITORY}:latest", False),
        (f"{REPOSITORY}@sha256:{'a' * 63}", False),
        (f"{REPOSITORY}@sha256:{'a' * 64}x", False),
        (f"{REPOSITORY}-2@sha256:{'a' * 64}", False),
        (f"x/{REPOSITORY}@sha256:{'a' * 64}", False),
        (f"{REPOSITORY.replace('dkr.ecr.', 'dkr-ecr-')}@sha256:{'a' * 64}", False),
        (f"docker.io/library/python@sha256:{'a' * 64}", False),
    ],
)
def test_an_image_is_ours_by_its_digest(image: str, ours: bool) -> None:
    for name in MADE:
        (pattern,) = [found[1] for test in written(name) if (found := re.search(r"c\.image\.matches\('(.*)'\)", test))]
        assert bool(re.search(pattern, image)) is ours


def test_a_workloads_image_is_named_in_the_rule_of_the_trainers_own_containers_alone() -> None:
    """What the rule means to an API server is asked of a real one: `tests/rehearsal/rehearsal/kubernetes`."""
    made = policies("bivouac-example", REPOSITORY, "nvcr.io/nvidia/pytorch")
    for one in made.values():
        (rule,) = [
            validation for validation in one["spec"]["validations"] if "image.matches" in validation["expression"]
        ]
        patterns = re.findall(r"c\.image\.matches\('([^']*)'\)", rule["expression"])
        theirs = [pattern for pattern in patterns if re.search(pattern, f"nvcr.io/nvidia/pytorch@sha256:{'a' * 64}")]
        assert len(theirs) == 1 and not re.search(theirs[0], f"nvcr.io/nvidia/pytorch-2@sha256:{'a' * 64}")
        assert not re.search(theirs[0], "nvcr.io/nvidia/pytorch:25.10-py3")
        ours = f"s.?initContainers.orValue([]).all(c, c.image.matches('{patterns[0]}'))"
        of_job, rest = rule["expression"].split(" || (s.containers + ")
        assert "s.?serviceAccountName.orValue('') == 'trainer' && s.containers.all(" in of_job
        assert of_job.endswith(f" && {ours}") and theirs[0] not in rest
        assert "nvcr.io/nvidia/pytorch" in rule["message"]


FORBIDDEN = {
    "the node's network": "!s.?hostNetwork.orValue(false)",
    "the node's processes": "!s.?hostPID.orValue(false)",
    "the node's memory": "!s.?hostIPC.orValue(false)",
    "claims of others": "v.persistentVolumeClaim.claimName in [",
    "secrets as folders": "v.projected.sources.all(p, !has(p.secret))",
    "gaining rights": "c.?securityContext.?allowPrivilegeEscalation.orValue(true) == false",
    "all rights": "!c.?securityContext.?privileged.orValue(false)",
    "capabilities that are kept": "c.?securityContext.?capabilities.?drop.orValue([]).exists(d, d == 'ALL')",
    "capabilities that are added": "size(c.?securityContext.?capabilities.?add.orValue([])) == 0",
    "secrets in the environment": "!has(e.valueFrom.secretKeyRef)",
    "whole secrets in the environment": "!has(from.secretRef)",
    "a pod without seccomp": "s.?securityContext.?seccompProfile.?type.orValue('') == 'RuntimeDefault'",
    "a container without seccomp": "c.?securityContext.?seccompProfile.?type.orValue('RuntimeDefault')",
    "another program as the archive": "!= 'archive' || s.containers.all(c, (c.?command.orValue([]) == ['python', '-m',",
    "another program as the steward": "!= 'steward' || s.containers.all(c, (c.?command.orValue([]) == ['python', '-m',"
    " 'infra.steward'] && s.?securityContext.?runAsUser.orValue(0) == 65532 || c.?command.orValue([]) == ['python', "
    "'-m', 'infra.cluster.basics'] && s.?securityContext.?runAsUser.orValue(0) == 65532) && !has(c.args))",
    "root as the archive": "'infra.archive.archive'] && s.?securityContext.?runAsUser.orValue(0) == 65532 || ",
    "root as the copy to S3": "copies', 'send'] && s.?securityContext.?runAsUser.orValue(0) == 65532 || ",
    "another user as the way back": "copies', 'fetch'] && s.?securityContext.?runAsUser.orValue(0) == 0)",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_each_thing_that_no_pod_of_ours_needs_is_forbidden(what: str) -> None:
    for name in MADE:
        assert [test for test in written(name) if FORBIDDEN[what] in test], what
    assert not any("||" in test.partition("&&")[0] for test in written("pods") if "hostNetwork" in test)


def test_the_steward_launches_gang_and_archive_with_its_environment_and_first_step() -> None:
    own = " ".join(set(written("steward")) - set(written("pods")))
    assert "s.?serviceAccountName.orValue('') in ['archive', 'trainer']" in own
    assert "e.name == 'HOME' && e.?value.orValue('') == '/tmp'" in own and "!has(c.envFrom)" in own
    assert "e.name == 'USER' && e.?value.orValue('') == 'bivouac'" in own
    assert (
        "c.?command.orValue([]) == ['install', '-d', '-m', '1777', '/local-checkpoints/.archive'] && !has(c.args)"
        in own
    )


def test_the_small_image_is_named_in_the_rule_of_the_stewards_pods_alone() -> None:
    steward = REPOSITORY.replace("trainer", "steward")
    for policy in policies("bivouac-example", REPOSITORY, own_repository=steward).values():
        (rule,) = [
            validation for validation in policy["spec"]["validations"] if "image.matches" in validation["expression"]
        ]
        of_steward, rest = rule["expression"].split(" || (s.containers + ")
        small = f"{steward.replace('.', '[.]')}@sha256"
        assert "s.?serviceAccountName.orValue('') == 'steward' && (s.containers + " in of_steward
        assert small in of_steward and small not in rest and REPOSITORY.replace(".", "[.]") in rest
