"""Admission policies for pods in the campaign's namespace, whoever creates them.

Pod Security forbids what no pod there needs; where the job is in its nodes' network, a policy of ours with the same
rules does, since Pod Security has no level for that alone. Pods with one of our service accounts have rights in AWS or
at the API server, so two policies restrict them further: to our images and our confinement. Jobs, JobSets and MPIJobs
of the steward are checked before a controller makes pods of them. See docs/decisions/0001-pods.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infra.cluster.confinement import ENVIRONMENT, NOBODY, READS_ALL, ROOT, SECCOMP
from infra.cluster.gang import MPI_GROUP, key_secrets
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
_CAPABILITIES = (
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
    "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
)  # fmt: skip
_SYSCTLS = (
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem",
)  # fmt: skip
"""What `baseline` lets a container add, and a pod set, https://kubernetes.io/docs/concepts/security/pod-security-standards/"""
_PINS = "IPC_LOCK"
"""Capability by which a container pins memory beyond the limit of its node's container runtime."""
_API = "admissionregistration.k8s.io/v1"
Object = dict[str, Any]


def steward_user() -> str:
    """Return the steward's name at the API server."""
    return f"system:serviceaccount:{NAMESPACE}:{STEWARD_ACCOUNT}"


def pod_security(host_network: bool = False) -> dict[str, str]:
    """Return the labels of the campaign's namespace."""
    level = "privileged" if host_network else "baseline"
    return {f"{_LEVEL}/enforce": level, f"{_LEVEL}/audit": "restricted", f"{_LEVEL}/warn": "restricted"}


def policies(
    prefix: str,
    repository: str,
    job_repository: str | None = None,
    mpi: str | None = None,
    own_repository: str | None = None,
    host_network: bool = False,
    mount_claims: Sequence[str] = (),
) -> dict[str, Object]:
    """Return the policies `pods` and `steward`, and `baseline` with `host_network`. `repository` holds our images,
    which pods name by digest; `own_repository` those that only the steward's pods may name beside them;
    `job_repository` the image of a workload, which only the trainer's pods may name beside them. `mpi`: the campaign
    whose attempts are MPIJobs, and whose trainer's pods mount the keys that the MPI operator makes for them.
    `host_network`: the trainer's pods may be in their nodes' network. `mount_claims`: those that only they mount."""
    accounts = _cel_list(sorted((ARCHIVE_ACCOUNT, DATA_ACCOUNT, STEWARD_ACCOUNT, TRAINER_ACCOUNT)))
    pods = f"object.spec.?serviceAccountName.orValue('') in {accounts} ? [object.spec] : []"
    templates = (
        "object.kind == 'JobSet' ? object.spec.replicatedJobs.map(job, job.template.spec.template.spec)"
        " : object.kind == 'MPIJob' ? object.spec.mpiReplicaSpecs"
        ".map(kind, object.spec.mpiReplicaSpecs[kind].template.spec)"
        " : [object.spec.template.spec]"
    )
    jobs = [_rule("batch", "v1", "jobs"), _rule("jobset.x-k8s.io", "*", "jobsets")]
    jobs += [_rule(MPI_GROUP, "*", "mpijobs")] if mpi is not None else []
    steward = {"name": "steward", "expression": f"request.userInfo.username == '{steward_user()}'"}
    rules = _account_rules(repository, job_repository, mpi, own_repository, host_network, mount_claims)
    rules_of_steward = [*rules, *_steward_rules()]
    return {
        **({"baseline": own_baseline(prefix, host_network)} if host_network else {}),
        "pods": _policy(f"{prefix}-pods", [_rule("", "v1", "pods")], pods, rules),
        "steward": _policy(f"{prefix}-steward", jobs, templates, rules_of_steward, [steward]),
    }


def own_baseline(prefix: str, host_network: bool, pins_memory: bool = False) -> Object:
    """Return the policy with the rules of Pod Security's `baseline`, but that the trainer's pods may be in their nodes'
    network, or with `pins_memory` have `IPC_LOCK`."""
    rules = _baseline(host_network, pins_memory)
    all_pods = [_rule("", "v1", "pods"), _rule("", "v1", "pods/ephemeralcontainers")]
    return _policy(f"{prefix}-baseline", all_pods, "[object.spec]", rules, containers=_WITH_THOSE_TO_LOOK)


def binding(policy: Object, namespace: str = NAMESPACE) -> Object:
    """Return the binding that puts a policy into force in the campaign's namespace."""
    name = policy["metadata"]["name"]
    selector = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    spec = {"policyName": name, "validationActions": ["Deny", "Audit"], "matchResources": selector}
    kind = "ValidatingAdmissionPolicyBinding"
    return {"apiVersion": _API, "kind": kind, "metadata": {"name": name}, "spec": spec}


_CONTAINERS = "variables.specs.map(s, s.containers + s.?initContainers.orValue([]))"
_WITH_THOSE_TO_LOOK = _CONTAINERS[:-1] + " + s.?ephemeralContainers.orValue([]))"


def _policy(
    name: str,
    rules: list[Object],
    specs: str,
    validations: list[Object],
    conditions: Sequence[Object] = (),
    containers: str = _CONTAINERS,
) -> Object:
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules},
        "matchConditions": list(conditions),
        "variables": [{"name": "specs", "expression": specs}, {"name": "containers", "expression": containers}],
        "validations": validations,
    }
    return {"apiVersion": _API, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec}


def _rule(group: str, version: str, resource: str) -> Object:
    match = {"apiGroups": [group], "apiVersions": [version], "resources": [resource]}
    return {**match, "operations": ["CREATE", "UPDATE"]}


_ADDED = "c.?securityContext.?capabilities.?add.orValue([])"
_TRAINS = f"s.?serviceAccountName.orValue('') == '{TRAINER_ACCOUNT}'"


def _namespaces(host_network: bool) -> Object:
    network = f"(!s.?hostNetwork.orValue(false) || {_TRAINS})" if host_network else "!s.?hostNetwork.orValue(false)"
    message = "no host namespace" + (", but the node's network for the job" if host_network else "")
    return _pod_rule(f"{network} && !s.?hostPID.orValue(false) && !s.?hostIPC.orValue(false)", message)


def _baseline(host_network: bool, pins_memory: bool) -> list[Object]:
    """Return the rules of Pod Security's `baseline` for every pod of the namespace, but for the job's network and
    pinned memory."""
    capabilities = (*_CAPABILITIES, *((_PINS,) if pins_memory else ()))
    all_containers = "(s.containers + s.?initContainers.orValue([]) + s.?ephemeralContainers.orValue([]))"
    nobody_else_pins = f"{_TRAINS} || {all_containers}.all(c, !{_ADDED}.exists(a, a == '{_PINS}'))"
    options = "c.?securityContext.?{0}", "s.?securityContext.?{0}"

    def both(field: str, test: str, message: str) -> list[Object]:
        container, pod = (option.format(field) for option in options)
        return [_container_rule(test.format(container), message), _pod_rule(test.format(pod), message)]

    selinux = "{0}.orValue('') in ['', 'container_t', 'container_init_t', 'container_kvm_t', 'container_engine_t']"
    probes = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle.?postStart", "lifecycle.?preStop")
    local_probes = " && ".join(
        f"c.?{probe}.?{action}.?host.orValue('') in ['', '127.0.0.1', '::1']"
        for probe in probes
        for action in ("httpGet", "tcpSocket")
    )
    return [
        _namespaces(host_network),
        *([_pod_rule(nobody_else_pins, f"capabilities: {_PINS} for the job alone")] if pins_memory else []),
        *both("windowsOptions.?hostProcess", "!{0}.orValue(false)", "no host process"),
        _container_rule("!c.?securityContext.?privileged.orValue(false)", "no privileged container"),
        _container_rule(
            f"{_ADDED}.all(a, a in {_cel_list(capabilities)})",
            f"capabilities: add none but {', '.join(capabilities)}",
        ),
        _pod_rule("s.?volumes.orValue([]).all(v, !has(v.hostPath))", "no folder of the node"),
        # In its node's network each port of a pod is one of the node.
        _pod_rule(
            f"({_TRAINS} && s.?hostNetwork.orValue(false)) || (s.containers + s.?initContainers.orValue([]))"
            ".all(c, c.?ports.orValue([]).all(p, p.?hostPort.orValue(0) == 0))",
            "no port of the node",
        ),
        _container_rule(local_probes, "no probe of another host"),
        *both("appArmorProfile.?type", "{0}.orValue('') != 'Unconfined'", "AppArmor: not Unconfined"),
        *both("seLinuxOptions.?type", selinux, "SELinux: a container's type"),
        *both("seLinuxOptions.?user", "{0}.orValue('') == ''", "SELinux: no user"),
        *both("seLinuxOptions.?role", "{0}.orValue('') == ''", "SELinux: no role"),
        _container_rule("c.?securityContext.?procMount.orValue('Default') == 'Default'", "procMount: Default"),
        *both("seccompProfile.?type", "{0}.orValue('') != 'Unconfined'", "seccompProfile: not Unconfined"),
        _pod_rule(
            f"s.?securityContext.?sysctls.orValue([]).all(y, y.name in {_cel_list(_SYSCTLS)})",
            f"sysctls: none but {', '.join(_SYSCTLS)}",
        ),
    ]


def _account_rules(
    repository: str,
    job_repository: str | None,
    mpi: str | None,
    own_repository: str | None,
    host_network: bool,
    mount_claims: Sequence[str],
) -> list[Object]:
    """Return the rules for every pod with one of our service accounts."""
    claims = _cel_list([LOCAL_CLAIM, NODE_CLAIM, SHARED_CLAIM])
    name = "v.persistentVolumeClaim.claimName"
    claim = f"{name} in {claims}"
    claim = f"({claim} || {_TRAINS} && {name} in {_cel_list(mount_claims)})" if mount_claims else claim
    key = "" if mpi is None else f" || {_TRAINS} && has(v.secret) && v.secret.secretName.matches('{key_secrets(mpi)}')"
    archives = (
        f"s.?serviceAccountName.orValue('') == '{ARCHIVE_ACCOUNT}'"
        f" && c.?command.orValue([]) == {_cel_list(ARCHIVE_COMMAND)} && {_ADDED} == {_cel_list(READS_ALL['add'])}"
    )
    return [
        *_images(repository, job_repository, own_repository),
        _namespaces(host_network),
        _pod_rule(
            "s.?volumes.orValue([]).all(v, has(v.configMap) || has(v.emptyDir)"
            f" || has(v.persistentVolumeClaim) && {claim}"
            f" || has(v.projected) && v.projected.sources.all(p, !has(p.secret)){key})",
            "volumes: the campaign's claims, config maps, empty folders and tokens only",
        ),
        _container_rule(
            "c.?securityContext.?allowPrivilegeEscalation.orValue(true) == false"
            " && !c.?securityContext.?privileged.orValue(false)",
            "no privileged container, and none that may gain rights",
        ),
        _pod_rule(
            "(s.containers + s.?initContainers.orValue([])).all(c,"
            " c.?securityContext.?capabilities.?drop.orValue([]).exists(d, d == 'ALL')"
            f" && (size({_ADDED}) == 0 || {archives}))",
            f"capabilities: drop ALL, add none, but {', '.join(READS_ALL['add'])} for the archive",
        ),
        _container_rule(
            "c.?env.orValue([]).all(e, !has(e.valueFrom) || !has(e.valueFrom.secretKeyRef))"
            " && c.?envFrom.orValue([]).all(from, !has(from.secretRef))",
            "no secret in the environment",
        ),
        _pod_rule(
            f"s.?securityContext.?seccompProfile.?type.orValue('') == '{SECCOMP}'",
            f"seccompProfile of the pod: {SECCOMP}",
        ),
        _container_rule(
            f"c.?securityContext.?seccompProfile.?type.orValue('{SECCOMP}') == '{SECCOMP}'",
            f"seccompProfile of a container: none but {SECCOMP}",
        ),
        *_program_rules(),
    ]


def _images(repository: str, job_repository: str | None, own_repository: str | None) -> list[Object]:
    own_test, message = f"c.image.matches('{_by_digest(repository)}')", f"image: {repository}, by digest only"
    all_own = f"(s.containers + s.?initContainers.orValue([])).all(c, {own_test})"
    alternatives = list[str]()
    if own_repository is not None:
        message = f"{message}; the steward's also {own_repository}"
        alternatives.append(
            f"s.?serviceAccountName.orValue('') == '{STEWARD_ACCOUNT}'"
            f" && (s.containers + s.?initContainers.orValue([])).all(c, {own_test}"
            f" || c.image.matches('{_by_digest(own_repository)}'))"
        )
    if job_repository is not None:
        message = f"{message}; the job's own container also {job_repository}"
        job_test = f"c.image.matches('{_by_digest(job_repository)}')"
        alternatives.append(
            f"{_TRAINS} && s.containers.all(c, {own_test} || {job_test})"
            f" && s.?initContainers.orValue([]).all(c, {own_test})"
        )
    return [_pod_rule(" || ".join([*alternatives, all_own]), message)]


def _by_digest(repository: str) -> str:
    return f"^{repository.replace('.', '[.]')}@sha256:[0-9a-f]{{64}}$"


def _program_rules() -> list[Object]:
    """Return the rules for the accounts with more rights than the trainer's: each runs its own programs only."""
    rules, archives = [], ((ARCHIVE_COMMAND, NOBODY), (ARCHIVE_COMMAND, ROOT))
    for account, commands in (
        (ARCHIVE_ACCOUNT, (*archives, (COPY_COMMAND, NOBODY), (FETCH_COMMAND, ROOT))),
        (DATA_ACCOUNT, ((SHARE_COMMAND, NOBODY),)),
        (STEWARD_ACCOUNT, ((STEWARD_COMMAND, NOBODY), (BASICS_COMMAND, NOBODY))),
    ):
        one_of = " || ".join(
            f"c.?command.orValue([]) == {_cel_list(command)} && s.?securityContext.?runAsUser.orValue(0) == {user}"
            + (f" && {_ADDED} == {_cel_list(READS_ALL['add'])}" if (command, user) == archives[1] else "")
            for command, user in commands
        )
        runs = f"s.containers.all(c, ({one_of}) && !has(c.args))"
        programs = " or ".join(f"`{' '.join(command)}` as user {user}" for command, user in commands)
        rules.append(
            _pod_rule(
                f"s.?serviceAccountName.orValue('') != '{account}' || {runs}",
                f"service account {account}: for {programs} only",
            )
        )
    return rules


def _steward_rules() -> list[Object]:
    """Return the rules for the steward's gangs and archive; no environment redirects the archive's program."""
    accounts = _cel_list([ARCHIVE_ACCOUNT, TRAINER_ACCOUNT])
    variables = " || ".join(
        f"(e.name == '{name}' && e.?value.orValue('') == '{value}')" for name, value in ENVIRONMENT.items()
    )
    environment = f"c.?env.orValue([]).all(e, {variables}) && !has(c.envFrom)"
    room = f"s.?initContainers.orValue([]).all(c, c.?command.orValue([]) == {_cel_list(ARCHIVE_ROOM)} && !has(c.args))"
    return [
        _pod_rule(f"s.?serviceAccountName.orValue('') in {accounts}", f"service account: one of {accounts}"),
        _pod_rule(
            f"s.?serviceAccountName.orValue('') != '{ARCHIVE_ACCOUNT}' || {room}"
            f" && (s.containers + s.?initContainers.orValue([])).all(c, {environment})",
            f"service account {ARCHIVE_ACCOUNT}: no other environment and no other init container",
        ),
    ]


def _pod_rule(test: str, message: str) -> Object:
    return {"expression": f"variables.specs.all(s, {test})", "message": message}


def _container_rule(test: str, message: str) -> Object:
    return {"expression": f"variables.containers.all(some, some.all(c, {test}))", "message": message}


def _cel_list(texts: Sequence[str]) -> str:
    return "[" + ", ".join(f"'{text}'" for text in texts) + "]"
