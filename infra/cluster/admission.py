"""Admission policies for pods in the campaign's namespace, whoever creates them.

Pod Security forbids what no pod there needs. Pods with one of our service accounts have rights in AWS or at the API
server, so two policies restrict them further: to our images and our confinement. Jobs, JobSets and MPIJobs of the
steward are checked before a controller makes pods of them. See docs/decisions/0001-pods.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infra.cluster import mpijob
from infra.cluster.confinement import ENVIRONMENT, NOBODY, ROOT, SECCOMP
from infra.spec.names import (
    ARCHIVE_ACCOUNT,
    ARCHIVE_COMMAND,
    ARCHIVE_ROOM,
    BASICS_COMMAND,
    COPY_COMMAND,
    DATA_ACCOUNT,
    FETCH_COMMAND,
    LOCAL_CLAIM,
    NAMESPACE,
    NODE_CLAIM,
    SHARE_COMMAND,
    SHARED_CLAIM,
    STEWARD_ACCOUNT,
    STEWARD_COMMAND,
    TRAINER_ACCOUNT,
)

_LEVEL = "pod-security.kubernetes.io"
POD_SECURITY = {f"{_LEVEL}/enforce": "baseline", f"{_LEVEL}/audit": "restricted", f"{_LEVEL}/warn": "restricted"}
"""Labels of the campaign's namespace."""
_API = "admissionregistration.k8s.io/v1"
Object = dict[str, Any]


def steward_user() -> str:
    """Return the steward's name at the API server."""
    return f"system:serviceaccount:{NAMESPACE}:{STEWARD_ACCOUNT}"


def policies(
    prefix: str, repository: str, job_repository: str | None = None, mpi: str | None = None
) -> dict[str, Object]:
    """Return the policies `pods` and `steward`. `repository` holds our images, which pods name by digest;
    `job_repository` the image of a workload, which only the trainer's pods may name beside ours. `mpi`: the campaign
    whose attempts are MPIJobs, and whose trainer's pods mount the keys that the MPI operator makes for them."""
    ours = _listed(sorted((ARCHIVE_ACCOUNT, DATA_ACCOUNT, STEWARD_ACCOUNT, TRAINER_ACCOUNT)))
    pods = f"object.spec.?serviceAccountName.orValue('') in {ours} ? [object.spec] : []"
    templates = (
        "object.kind == 'JobSet' ? object.spec.replicatedJobs.map(job, job.template.spec.template.spec)"
        " : object.kind == 'MPIJob' ? object.spec.mpiReplicaSpecs"
        ".map(kind, object.spec.mpiReplicaSpecs[kind].template.spec)"
        " : [object.spec.template.spec]"
    )
    jobs = [_rule("batch", "v1", "jobs"), _rule("jobset.x-k8s.io", "*", "jobsets")]
    jobs += [_rule(mpijob.GROUP, "*", "mpijobs")] if mpi is not None else []
    steward = {"name": "steward", "expression": f"request.userInfo.username == '{steward_user()}'"}
    confined = _confined(repository, job_repository, mpi)
    asked = [*confined, *_asked_by_the_steward()]
    return {
        "pods": _policy(f"{prefix}-pods", [_rule("", "v1", "pods")], pods, confined, []),
        "steward": _policy(
            f"{prefix}-steward",
            jobs,
            templates,
            asked,
            [steward],
        ),
    }


def binding(policy: Object) -> Object:
    """Return the binding that puts a policy into force in the campaign's namespace."""
    name = policy["metadata"]["name"]
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}}
    spec = {"policyName": name, "validationActions": ["Deny", "Audit"], "matchResources": here}
    kind = "ValidatingAdmissionPolicyBinding"
    return {"apiVersion": _API, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _policy(name: str, rules: list[Object], specs: str, validations: list[Object], conditions: list[Object]) -> Object:
    containers = "variables.specs.map(s, s.containers + s.?initContainers.orValue([]))"
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules},
        "matchConditions": conditions,
        "variables": [{"name": "specs", "expression": specs}, {"name": "containers", "expression": containers}],
        "validations": validations,
    }
    return {"apiVersion": _API, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec}


def _rule(group: str, version: str, resource: str) -> Object:
    what = {"apiGroups": [group], "apiVersions": [version], "resources": [resource]}
    return {**what, "operations": ["CREATE", "UPDATE"]}


def _confined(repository: str, job_repository: str | None, mpi: str | None) -> list[Object]:
    """Return the rules for every pod with one of our service accounts."""
    claims = _listed([LOCAL_CLAIM, NODE_CLAIM, SHARED_CLAIM])
    key = (
        ""
        if mpi is None
        else f" || s.?serviceAccountName.orValue('') == '{TRAINER_ACCOUNT}' && has(v.secret)"
        f" && v.secret.secretName.matches('{mpijob.key_secrets(mpi)}')"
    )
    return [
        *_images(repository, job_repository),
        _each(
            "!s.?hostNetwork.orValue(false) && !s.?hostPID.orValue(false) && !s.?hostIPC.orValue(false)",
            "no host namespace",
        ),
        _each(
            "s.?volumes.orValue([]).all(v, has(v.configMap) || has(v.emptyDir)"
            f" || has(v.persistentVolumeClaim) && v.persistentVolumeClaim.claimName in {claims}"
            f" || has(v.projected) && v.projected.sources.all(p, !has(p.secret)){key})",
            "volumes: the campaign's claims, config maps, empty folders and tokens only",
        ),
        _each_container(
            "c.?securityContext.?allowPrivilegeEscalation.orValue(true) == false"
            " && !c.?securityContext.?privileged.orValue(false)",
            "no privileged container, and none that may gain rights",
        ),
        _each_container(
            "c.?securityContext.?capabilities.?drop.orValue([]).exists(d, d == 'ALL')"
            " && size(c.?securityContext.?capabilities.?add.orValue([])) == 0",
            "capabilities: drop ALL, add none",
        ),
        _each_container(
            "c.?env.orValue([]).all(e, !has(e.valueFrom) || !has(e.valueFrom.secretKeyRef))"
            " && c.?envFrom.orValue([]).all(from, !has(from.secretRef))",
            "no secret in the environment",
        ),
        _each(
            f"s.?securityContext.?seccompProfile.?type.orValue('') == '{SECCOMP}'",
            f"seccompProfile of the pod: {SECCOMP}",
        ),
        _each_container(
            f"c.?securityContext.?seccompProfile.?type.orValue('{SECCOMP}') == '{SECCOMP}'",
            f"seccompProfile of a container: none but {SECCOMP}",
        ),
        *_bound_to_its_program(),
    ]


def _images(repository: str, job_repository: str | None) -> list[Object]:
    ours, said = f"c.image.matches('{_by_digest(repository)}')", f"image: {repository}, by digest only"
    if job_repository is None:
        return [_each_container(ours, said)]
    theirs = f"c.image.matches('{_by_digest(job_repository)}')"
    trains = f"s.?serviceAccountName.orValue('') == '{TRAINER_ACCOUNT}'"
    of_job = f"{trains} && s.containers.all(c, {ours} || {theirs}) && s.?initContainers.orValue([]).all(c, {ours})"
    rest = f"(s.containers + s.?initContainers.orValue([])).all(c, {ours})"
    return [_each(f"{of_job} || {rest}", f"{said}; the job's own container also {job_repository}")]


def _by_digest(repository: str) -> str:
    return f"^{repository.replace('.', '[.]')}@sha256:[0-9a-f]{{64}}$"


def _bound_to_its_program() -> list[Object]:
    """Return the rules for the accounts with more rights than the trainer's: each runs its own programs only."""
    found = []
    for account, commands in (
        (ARCHIVE_ACCOUNT, ((ARCHIVE_COMMAND, NOBODY), (COPY_COMMAND, NOBODY), (FETCH_COMMAND, ROOT))),
        (DATA_ACCOUNT, ((SHARE_COMMAND, NOBODY),)),
        (STEWARD_ACCOUNT, ((STEWARD_COMMAND, NOBODY), (BASICS_COMMAND, NOBODY))),
    ):
        one_of = " || ".join(
            f"c.?command.orValue([]) == {_listed(command)} && s.?securityContext.?runAsUser.orValue(0) == {user}"
            for command, user in commands
        )
        runs = f"s.containers.all(c, ({one_of}) && !has(c.args))"
        said = " or ".join(f"`{' '.join(command)}` as user {user}" for command, user in commands)
        found.append(
            _each(
                f"s.?serviceAccountName.orValue('') != '{account}' || {runs}",
                f"service account {account}: for {said} only",
            )
        )
    return found


def _asked_by_the_steward() -> list[Object]:
    """Return the rules for the steward's gangs and archive; no environment redirects the archive's program."""
    accounts = _listed([ARCHIVE_ACCOUNT, TRAINER_ACCOUNT])
    own = " || ".join(
        f"(e.name == '{name}' && e.?value.orValue('') == '{value}')" for name, value in ENVIRONMENT.items()
    )
    given = f"c.?env.orValue([]).all(e, {own}) && !has(c.envFrom)"
    first = f"s.?initContainers.orValue([]).all(c, c.?command.orValue([]) == {_listed(ARCHIVE_ROOM)} && !has(c.args))"
    return [
        _each(f"s.?serviceAccountName.orValue('') in {accounts}", f"service account: one of {accounts}"),
        _each(
            f"s.?serviceAccountName.orValue('') != '{ARCHIVE_ACCOUNT}' || {first}"
            f" && (s.containers + s.?initContainers.orValue([])).all(c, {given})",
            f"service account {ARCHIVE_ACCOUNT}: no other environment and no other init container",
        ),
    ]


def _each(test: str, message: str) -> Object:
    return {"expression": f"variables.specs.all(s, {test})", "message": message}


def _each_container(test: str, message: str) -> Object:
    return {"expression": f"variables.containers.all(some, some.all(c, {test}))", "message": message}


def _listed(texts: Sequence[str]) -> str:
    return "[" + ", ".join(f"'{text}'" for text in texts) + "]"
