"""Access entries and their policies, which map IAM principals to Kubernetes users."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from moto.iam.exceptions import NotFoundException

from infra.rehearsal.aws.eks.clusters import Cluster, EksResponse, find, find_active
from infra.rehearsal.aws.eks.entries import access_entry
from infra.rehearsal.aws.operations import AwsError, Parameters, ServicePart, add_backend
from infra.rehearsal.aws.world import World

POLICY_ARN = "arn:aws:eks::aws:cluster-access-policy/"
POLICIES = (
    "AmazonEKSAdminPolicy",
    "AmazonEKSAdminViewPolicy",
    "AmazonEKSClusterAdminPolicy",
    "AmazonEKSEditPolicy",
    "AmazonEKSViewPolicy",
)
"""Only AmazonEKSClusterAdminPolicy on the whole cluster has an effect in a rehearsal: see identity.py."""
KINDS = ("STANDARD", "EC2_LINUX")


class AccessEntries(ServicePart):
    def _cluster(self, params: Parameters) -> Cluster:
        cluster = find(self.world, params["clusterName"])
        if not cluster.uses_entries:
            mode = cluster.document["accessConfig"]["authenticationMode"]
            raise AwsError(
                "InvalidRequestException",
                f"The cluster's authentication mode must be set to one of [API, API_AND_CONFIG_MAP], not {mode}",
            )
        return cluster

    def _entry(self, params: Parameters) -> dict[str, Any]:
        entries = self._cluster(params).entries
        if params["principalArn"] not in entries:
            message = f"The specified principalArn could not be found: {params['principalArn']}"
            raise AwsError("ResourceNotFoundException", message)
        return entries[params["principalArn"]]

    def create_access_entry(self, params: Parameters) -> dict[str, Any]:
        find_active(self.world, params["clusterName"])
        cluster, principal, kind = self._cluster(params), params["principalArn"], params.get("type") or "STANDARD"
        if principal in cluster.entries:
            message = f"The specified access entry resource is already in use: {principal}"
            raise AwsError("ResourceInUseException", message)
        if kind not in KINDS:
            raise AwsError("InvalidParameterException", f"the emulated EKS has no access entries of type {kind}")
        self._refuse_unknown(principal)
        groups = params.get("kubernetesGroups") or []
        if kind != "STANDARD" and (groups or params.get("username")):
            raise AwsError("InvalidParameterException", f"type {kind} takes neither groups nor a username")
        if any(group.startswith(("system:", "eks:")) for group in groups):
            message = f"The kubernetes group name {groups} is invalid: reserved prefix"
            raise AwsError("InvalidParameterException", message)
        entry = access_entry(self.world, cluster.name, principal, kind)
        entry["askedFor"] = entry["createdAt"]
        if kind == "STANDARD":
            entry |= {"kubernetesGroups": groups, "username": params.get("username") or entry["username"]}
        entry["tags"].update(params.get("tags") or {})
        cluster.entries[principal] = entry
        return {"accessEntry": entry}

    def _refuse_unknown(self, principal: str) -> None:
        iam = self.world.backend("iam")
        try:
            if ":role/" in principal:
                iam.get_role_by_arn(principal)
                return
        except NotFoundException:
            pass
        if not any(user.arn == principal for user in iam.users.values()) and not principal.endswith(":root"):
            message = f"The specified principalArn is invalid: invalid principal {principal}"
            raise AwsError("InvalidParameterException", message)

    def describe_access_entry(self, params: Parameters) -> dict[str, Any]:
        return {"accessEntry": self._entry(params)}

    def list_access_entries(self, params: Parameters) -> dict[str, Any]:
        entries, policy = self._cluster(params).entries, params.get("associatedPolicyArn")
        return {
            "accessEntries": [arn for arn, entry in entries.items() if policy is None or policy in entry["policies"]]
        }

    def update_access_entry(self, params: Parameters) -> dict[str, Any]:
        entry = self._entry(params)
        entry |= {key: params[key] for key in ("kubernetesGroups", "username") if key in params}
        entry["modifiedAt"] = datetime.now(UTC)
        return {"accessEntry": entry}

    def delete_access_entry(self, params: Parameters) -> None:
        del self._cluster(params).entries[self._entry(params)["principalArn"]]

    def associate_access_policy(self, params: Parameters) -> dict[str, Any]:
        entry, policy = self._entry(params), params["policyArn"]
        if policy.removeprefix(POLICY_ARN) not in POLICIES:
            raise AwsError("ResourceNotFoundException", f"The specified policyArn could not be found: {policy}")
        if entry["type"] != "STANDARD":
            raise AwsError("InvalidRequestException", "Access policies can only be associated with STANDARD entries")
        scope = params["accessScope"]
        entry["policies"][policy] = association = {
            "policyArn": policy,
            "accessScope": {"type": scope["type"], "namespaces": scope.get("namespaces", [])},
            "associatedAt": datetime.now(UTC),
            "modifiedAt": datetime.now(UTC),
        }
        return self._entry_context(params) | {"associatedAccessPolicy": association}

    def disassociate_access_policy(self, params: Parameters) -> None:
        if self._entry(params)["policies"].pop(params["policyArn"], None) is None:
            raise AwsError("ResourceNotFoundException", "The specified policy is not associated with the access entry")

    def list_associated_access_policies(self, params: Parameters) -> dict[str, Any]:
        policies = list(self._entry(params)["policies"].values())
        return self._entry_context(params) | {"associatedAccessPolicies": policies}

    def list_access_policies(self, params: Parameters) -> dict[str, Any]:
        return {"accessPolicies": [{"name": name, "arn": POLICY_ARN + name} for name in POLICIES]}

    @staticmethod
    def _entry_context(params: Parameters) -> dict[str, str]:
        return {"clusterName": params["clusterName"], "principalArn": params["principalArn"]}


def install(world: World) -> None:
    entries = AccessEntries(world)
    add_backend(world, EksResponse, entries)
