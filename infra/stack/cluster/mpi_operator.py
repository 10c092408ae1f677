"""The MPI operator, for a gang that `mpirun` starts and for MPIJobs of the team: its API, its rights in the campaign's
namespace, its pod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes
from pulumi import ResourceOptions
from pulumi_kubernetes.apiextensions.v1 import (
    CustomResourceDefinitionNamesArgs,
    CustomResourceDefinitionSpecArgs,
    CustomResourceDefinitionVersionArgs,
    CustomResourceSubresourcesArgs,
    CustomResourceValidationArgs,
    JSONSchemaPropsArgs,
)
from pulumi_kubernetes.rbac.v1 import PolicyRuleArgs

from infra.cluster.confinement import NOBODY, SECCOMP
from infra.cluster.gang import MPI_GROUP, MPI_VERSION
from infra.spec.names import NAMESPACE, POOL_LABEL, SYSTEM_POOL
from infra.stack.cluster.rights import CHANGE, WATCH, grant_everywhere, grant_here, rule

NAME = "mpi-operator"


class MpiOperator(pulumi.ComponentResource):
    """An operator of the campaign's namespace only; cluster-wide it reads the priority classes."""

    def __init__(self, image: str, child: ResourceOptions) -> None:
        """`child`: options of all resources here, with what they wait for."""
        super().__init__("bivouac:infra:MpiOperator", NAME, None, ResourceOptions(parent=child.parent))
        self._child = child
        definition = kubernetes.apiextensions.v1.CustomResourceDefinition(
            NAME, metadata={"name": f"mpijobs.{MPI_GROUP}"}, spec=_definition(), opts=self._opts()
        )
        account = kubernetes.core.v1.ServiceAccount(
            NAME, metadata={"name": NAME, "namespace": NAMESPACE}, opts=self._opts()
        )
        rights = [
            *grant_here(NAME, rules(), self._opts(), self._opts()),
            *grant_everywhere(NAME, NAME, cluster_rules(), self._opts(), self._opts()),
        ]
        self._deployment(image, [definition, account, *rights])
        self.register_outputs({})

    def _opts(self, depends_on: list[pulumi.Resource] | None = None) -> ResourceOptions:
        return ResourceOptions.merge(self._child, ResourceOptions(parent=self, depends_on=depends_on))

    def _deployment(self, image: str, depends_on: list[pulumi.Resource]) -> None:
        labels = {"app.kubernetes.io/name": NAME}
        kubernetes.apps.v1.Deployment(
            NAME,
            metadata={"name": NAME, "namespace": NAMESPACE},
            spec={
                "replicas": 1,
                "selector": {"match_labels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "service_account_name": NAME,
                        "security_context": {
                            "run_as_user": NOBODY,
                            "run_as_group": NOBODY,
                            "run_as_non_root": True,
                            "seccomp_profile": {"type": SECCOMP},
                        },
                        "node_selector": {POOL_LABEL: SYSTEM_POOL},
                        "containers": [
                            {
                                "name": NAME,
                                "image": image,
                                "args": [f"--namespace={NAMESPACE}", f"--lock-namespace={NAMESPACE}"],
                                "security_context": {
                                    "allow_privilege_escalation": False,
                                    "capabilities": {"drop": ["ALL"]},
                                    "read_only_root_filesystem": True,
                                },
                                "liveness_probe": {"http_get": {"path": "/healthz", "port": 8080}},
                                "resources": {
                                    "requests": {"cpu": "50m", "memory": "64Mi"},
                                    "limits": {"memory": "512Mi"},
                                },
                            }
                        ],
                    },
                },
            },
            opts=self._opts(depends_on),
        )


def rules() -> list[PolicyRuleArgs]:
    """Return the rights that version 0.8.2 needs in the namespace; it runs without a gang scheduler."""
    return [
        rule(MPI_GROUP, ["mpijobs", "mpijobs/finalizers", "mpijobs/status"], (*WATCH, "patch", "update")),
        rule("", ["configmaps", "secrets", "services"], (*WATCH, "create", "update")),
        rule("", ["pods"], CHANGE),
        rule("", ["events"], ("create", "patch")),
        rule("batch", ["jobs"], ("create", "list", "update", "watch")),
        rule("coordination.k8s.io", ["leases"], ("create", "get", "update")),
    ]


def cluster_rules() -> list[PolicyRuleArgs]:
    return [rule("scheduling.k8s.io", ["priorityclasses"], WATCH)]


def _definition() -> CustomResourceDefinitionSpecArgs:
    version = CustomResourceDefinitionVersionArgs(
        name=MPI_VERSION,
        served=True,
        storage=True,
        subresources=CustomResourceSubresourcesArgs(status={}),
        schema=CustomResourceValidationArgs(open_apiv3_schema=schema()),
    )
    names = CustomResourceDefinitionNamesArgs(
        kind="MPIJob", list_kind="MPIJobList", plural="mpijobs", singular="mpijob"
    )
    return CustomResourceDefinitionSpecArgs(group=MPI_GROUP, names=names, scope="Namespaced", versions=[version])


def schema() -> JSONSchemaPropsArgs:
    """Return the schema of an MPIJob v2beta1. Pod templates are not checked here, since their pods are, nor the status,
    which is the operator's own."""
    text, free_form = _field("string"), _field("object", x_kubernetes_preserve_unknown_fields=True)
    number, long = _field("integer", format="int32"), _field("integer", format="int64")
    replicas = _section({"replicas": number, "restartPolicy": text, "template": free_form})
    policy = {
        "activeDeadlineSeconds": long,
        "backoffLimit": number,
        "cleanPodPolicy": text,
        "managedBy": text,
        "schedulingPolicy": free_form,
        "suspend": _field("boolean", default=False),
        "ttlSecondsAfterFinished": number,
    }
    job = {
        "launcherCreationPolicy": _field("string", default="AtStartup"),
        "mpiImplementation": _field("string", default="OpenMPI", enum=["OpenMPI", "Intel", "MPICH"]),
        "mpiReplicaSpecs": _field("object", additional_properties=replicas),
        "runLauncherAsWorker": _field("boolean", default=False),
        "runPolicy": _section(policy),
        "slotsPerWorker": _field("integer", format="int32", default=1),
        "sshAuthMountPath": _field("string", default="/root/.ssh"),
    }
    top = {"spec": _section(job, required=["mpiReplicaSpecs"]), "status": free_form, "metadata": _field("object")}
    return _section({"apiVersion": text, "kind": text, **top})


def _field(kind: str, **attributes: Any) -> JSONSchemaPropsArgs:
    return JSONSchemaPropsArgs(type=kind, **attributes)


def _section(fields: Mapping[str, JSONSchemaPropsArgs], **attributes: Any) -> JSONSchemaPropsArgs:
    return _field("object", properties=fields, **attributes)
