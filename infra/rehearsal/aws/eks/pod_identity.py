"""Pod identity associations: the role of a service account's pods."""

from __future__ import annotations

import random
import string
from datetime import UTC, datetime
from typing import Any

from infra.rehearsal.aws.eks.clusters import EksResponse, find, find_active
from infra.rehearsal.aws.eks.entries import eks_arn
from infra.rehearsal.aws.iam.access import role_trusts
from infra.rehearsal.aws.operations import AwsError, Parameters, ServicePart, add_backend
from infra.rehearsal.aws.world import World

SERVICE = "pods.eks.amazonaws.com"
SUMMARY = ("clusterName", "namespace", "serviceAccount", "associationArn", "associationId")


class PodIdentity(ServicePart):
    def _refuse_role(self, role_arn: str) -> None:
        """Refuse a role that pods cannot assume. EKS notices only when a pod asks; here the cause is still visible."""
        for action in ("sts:AssumeRole", "sts:TagSession"):
            if not role_trusts(self.world, role_arn, SERVICE, action):
                message = f"Role {role_arn} does not exist or its trust policy does not allow {SERVICE} {action}"
                raise AwsError("InvalidParameterException", message)

    def _find(self, params: Parameters) -> dict[str, Any]:
        associations = find(self.world, params["clusterName"]).associations
        if params["associationId"] not in associations:
            raise AwsError("ResourceNotFoundException", f"No association found: {params['associationId']}")
        return associations[params["associationId"]]

    def create_pod_identity_association(self, params: Parameters) -> dict[str, Any]:
        cluster = find_active(self.world, params["clusterName"])
        self._refuse_role(params["roleArn"])
        subject = (params["namespace"], params["serviceAccount"])
        if any((row["namespace"], row["serviceAccount"]) == subject for row in cluster.associations.values()):
            raise AwsError("ResourceInUseException", f"Association already exists: {'/'.join(subject)}")
        number = "a-" + "".join(random.choices(string.ascii_lowercase + string.digits, k=17))
        association = {
            "clusterName": cluster.name,
            "namespace": subject[0],
            "serviceAccount": subject[1],
            "roleArn": params["roleArn"],
            "associationId": number,
            "associationArn": eks_arn(self.world, "podidentityassociation", cluster.name, number),
            "disableSessionTags": params.get("disableSessionTags", False),
            "tags": dict(params.get("tags") or {}),
            "createdAt": datetime.now(UTC),
            "modifiedAt": datetime.now(UTC),
        }
        cluster.associations[number] = association
        return {"association": association}

    def describe_pod_identity_association(self, params: Parameters) -> dict[str, Any]:
        return {"association": self._find(params)}

    def list_pod_identity_associations(self, params: Parameters) -> dict[str, Any]:
        matches = [
            {key: association[key] for key in SUMMARY}
            for association in find(self.world, params["clusterName"]).associations.values()
            if params.get("namespace") in (None, association["namespace"])
            and params.get("serviceAccount") in (None, association["serviceAccount"])
        ]
        return {"associations": matches}

    def update_pod_identity_association(self, params: Parameters) -> dict[str, Any]:
        association = self._find(params)
        if "roleArn" in params:
            self._refuse_role(params["roleArn"])
        association |= {key: params[key] for key in ("roleArn", "disableSessionTags") if key in params}
        association["modifiedAt"] = datetime.now(UTC)
        return {"association": association}

    def delete_pod_identity_association(self, params: Parameters) -> dict[str, Any]:
        association = self._find(params)
        del find(self.world, params["clusterName"]).associations[association["associationId"]]
        return {"association": association}


def install(world: World) -> None:
    identity = PodIdentity(world)
    add_backend(world, EksResponse, identity)
