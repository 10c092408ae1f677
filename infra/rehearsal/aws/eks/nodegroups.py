"""Managed node groups, each with an Auto Scaling group, profile and access entry; ACTIVE once nodes have joined."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime
from typing import Any

from infra.rehearsal.aws.ec2.autoscaling import CAPACITY
from infra.rehearsal.aws.eks import nodegroup_parts as parts
from infra.rehearsal.aws.eks import nodegroup_rules as rules
from infra.rehearsal.aws.eks.clusters import Cluster, EksResponse, find, find_active
from infra.rehearsal.aws.eks.entries import access_entry, eks_arn
from infra.rehearsal.aws.eks.nodegroup_parts import ManagedGroup
from infra.rehearsal.aws.iam import arns
from infra.rehearsal.aws.iam.access import authorise, caller
from infra.rehearsal.aws.operations import AwsError, Parameters, ServicePart, add_backend
from infra.rehearsal.aws.ssm_parameters import recommended_image
from infra.rehearsal.aws.world import World

PERIOD_S = 0.25
DEFAULT_TYPES = ["t3.medium"]
SETTLE_S = 0.3


class NodeGroups(ServicePart):
    def _find(self, params: Parameters) -> tuple[Cluster, ManagedGroup]:
        cluster = find(self.world, params["clusterName"])
        if params["nodegroupName"] not in cluster.nodegroups:
            message = f"No node group found for name: {params['nodegroupName']}."
            raise AwsError("ResourceNotFoundException", message)
        return cluster, cluster.nodegroups[params["nodegroupName"]]

    def create_nodegroup(self, params: Parameters) -> dict[str, Any]:
        world, cluster = self.world, find_active(self.world, params["clusterName"])
        scaling = {"minSize": 1, "maxSize": 2, "desiredSize": 2} | (params.get("scalingConfig") or {})
        rules.check_sizes(scaling)
        version = self._template(params.get("launchTemplate"))
        rules.check(world, cluster, params, version.data if version else None)
        number = str(uuid.uuid4())
        group = ManagedGroup(
            self._document(cluster, params, scaling, version, number),
            f"eks-{params['nodegroupName']}-{number}",
            f"eks-{number}",
        )
        check_launch(world, cluster, group.document, version)
        if version is None:
            version = parts.make_template(world, cluster, group, number)
        parts.make_profile(world, group, params["nodeRole"])
        if cluster.uses_entries and params["nodeRole"] not in cluster.entries:
            entry = access_entry(world, cluster.name, params["nodeRole"], "EC2_LINUX")
            cluster.entries[params["nodeRole"]] = entry
        parts.make_scaling_group(world, cluster, group, version)
        cluster.nodegroups[group.name] = group
        return {"nodegroup": self._description(group)}

    def _template(self, reference: dict[str, str] | None) -> Any:
        """Return the LaunchTemplateVersion of a request, or None."""
        if not reference:
            return None
        ec2 = self.world.backend("ec2")
        templates = ec2.launch_templates.values()
        matches = [
            template
            for template in templates
            if reference.get("id") == template.id or reference.get("name") == template.name
        ]
        if not matches:
            raise rules.invalid(f"Launch template {reference} does not exist")
        return matches[0].get_version(reference.get("version") or "$Default")

    def _document(
        self, cluster: Cluster, params: Parameters, scaling: dict[str, int], version: Any, number: str
    ) -> dict[str, Any]:
        name = params["nodegroupName"]
        own_image = bool(version and version.data.get("ImageId"))
        document = {
            "nodegroupName": name,
            "nodegroupArn": eks_arn(self.world, "nodegroup", cluster.name, name, number),
            "clusterName": cluster.name,
            "createdAt": datetime.now(UTC),
            "modifiedAt": datetime.now(UTC),
            "status": "CREATING",
            "capacityType": params.get("capacityType") or "ON_DEMAND",
            "scalingConfig": scaling,
            "subnets": params["subnets"],
            "amiType": "CUSTOM" if own_image else params.get("amiType") or "AL2023_x86_64_STANDARD",
            "nodeRole": params["nodeRole"],
            "labels": dict(params.get("labels") or {}),
            "taints": list(params.get("taints") or []),
            "resources": {"autoScalingGroups": [{"name": f"eks-{name}-{number}"}]},
            "health": {"issues": []},
            "updateConfig": params.get("updateConfig") or {"maxUnavailable": 1},
            "tags": dict(params.get("tags") or {}),
        }
        kubernetes = params.get("version") or cluster.document["version"]
        recent = params.get("releaseVersion") or f"{kubernetes}.0-20261101"
        document |= {"version": kubernetes, "releaseVersion": version.data["ImageId"] if own_image else recent}
        if params.get("nodeRepairConfig"):
            document["nodeRepairConfig"] = params["nodeRepairConfig"]
        if version:
            template = version.template
            document["launchTemplate"] = {"id": template.id, "name": template.name, "version": str(version.number)}
        if not version or not version.data.get("InstanceType"):
            document["instanceTypes"] = params.get("instanceTypes") or DEFAULT_TYPES
        if not version:
            document["diskSize"] = params.get("diskSize") or 20
        return document

    def _scaling_group(self, group: ManagedGroup) -> Any:
        return self.world.auto_scaling.groups.get(group.scaling_group)

    def _description(self, group: ManagedGroup) -> dict[str, Any]:
        """Describe the group with the Auto Scaling group's sizes, since others may change these."""
        scaling_group = self._scaling_group(group)
        if scaling_group is not None and group.document["status"] != "DELETING":
            sizes = {
                "minSize": scaling_group.min_size,
                "maxSize": scaling_group.max_size,
                "desiredSize": scaling_group.desired_capacity,
            }
            group.document["scalingConfig"] = sizes
        return group.document

    def describe_nodegroup(self, params: Parameters) -> dict[str, Any]:
        return {"nodegroup": self._description(self._find(params)[1])}

    def list_nodegroups(self, params: Parameters) -> dict[str, Any]:
        return {"nodegroups": sorted(find(self.world, params["clusterName"]).nodegroups)}

    def update_nodegroup_config(self, params: Parameters) -> dict[str, Any]:
        cluster, group = self._find(params)
        self._refuse_unless_settled(group)
        document, scaling_group = group.document, self._scaling_group(group)
        if scaling := params.get("scalingConfig"):
            sizes = self._description(group)["scalingConfig"] | scaling
            rules.check_sizes(sizes)
            scaling_group.min_size, scaling_group.max_size = sizes["minSize"], sizes["maxSize"]
            scaling_group.set_desired_capacity(sizes["desiredSize"])
        rules.mark(document, params.get("labels") or {}, params.get("taints") or {})
        for key in ("updateConfig", "nodeRepairConfig"):
            if params.get(key):
                document[key] = params[key]
        document["modifiedAt"] = datetime.now(UTC)
        group.was, group.since, document["status"] = document["status"], time.monotonic(), "UPDATING"
        update = cluster.record("ConfigUpdate", rules.update_parameters(params), nodegroupName=group.name)
        return {"update": self._under_way(group, update)}

    def _under_way(self, group: ManagedGroup, update: dict[str, Any]) -> dict[str, Any]:
        if self.world.strictness.on and group.document["status"] == "UPDATING":
            update["status"], group.update = "InProgress", update
        return update

    @staticmethod
    def _refuse_unless_settled(group: ManagedGroup) -> None:
        if group.document["status"] in ("DELETING", "CREATING", "UPDATING"):
            message = f"Nodegroup cannot be updated as it is currently not in Active State: {group.document['status']}"
            raise AwsError("ResourceInUseException", message)

    def update_nodegroup_version(self, params: Parameters) -> dict[str, Any]:
        """Apply a new launch template version: every node is replaced (here all at once)."""
        cluster, group = self._find(params)
        self._refuse_unless_settled(group)
        reference = params.get("launchTemplate")
        if reference and "launchTemplate" in group.document:
            version = self._template({**group.document["launchTemplate"], **reference})
            check_launch(self.world, cluster, group.document, version)
            group.document["launchTemplate"]["version"] = str(version.number)
            if group.document["amiType"] == "CUSTOM":
                group.document["releaseVersion"] = version.data["ImageId"]
            scaling_group = self._scaling_group(group)
            scaling_group.launch_template_version = scaling_group.provided_launch_template_version = str(version.number)
            parts.set_recipe(self.world, cluster, group, version)
            for state in scaling_group.instance_states:
                state.health_status = "Unhealthy"
            group.document["status"], group.since = "UPDATING", time.monotonic()
        return {"update": self._under_way(group, cluster.record("VersionUpdate", nodegroupName=group.name))}

    def delete_nodegroup(self, params: Parameters) -> dict[str, Any]:
        _, group = self._find(params)
        group.document["status"] = "DELETING"
        if (scaling_group := self._scaling_group(group)) is not None:
            scaling_group.min_size = 0
            scaling_group.set_desired_capacity(0)
        return {"nodegroup": group.document}

    def _reconcile(self) -> None:
        for cluster in list(self.world.clusters.values()):
            groups = list(cluster.nodegroups.values())
            waiting = any(candidate.document["status"] in ("CREATING", "UPDATING") for candidate in groups)
            plane = self.world.control_planes.get(cluster.name)
            ready = self.world.ready_nodes(plane) if waiting and plane is not None else set()
            with self.world.lock:
                for group in groups:
                    self._settle(cluster, group, ready)
                    if group.update is not None and group.document["status"] != "UPDATING":
                        outcome = "Successful" if group.document["status"] == "ACTIVE" else "Failed"
                        group.update["status"], group.update = outcome, None

    def _settle(self, cluster: Cluster, group: ManagedGroup, ready: set[str]) -> None:
        scaling_group, status = self._scaling_group(group), group.document["status"]
        if status == "DELETING":
            if scaling_group is None or not scaling_group.instance_states:
                self._leave(cluster, group)
            return
        group.document["health"] = {"issues": self._issues(group, scaling_group)}
        if status not in ("CREATING", "UPDATING") or time.monotonic() - group.since < SETTLE_S:
            return
        if status == "UPDATING" and group.was is not None:
            group.document["status"], group.was = group.was, None
            return
        if status == "CREATING" and (trouble := self.world.troubles.find("node-group", group.name, "create")):
            if trouble.outcome == "fail":
                group.document["status"] = "CREATE_FAILED"
                group.document["health"]["issues"].append(_issue("InternalFailure", trouble.message, group))
            return
        working = [state.instance for state in scaling_group.instance_states if state.lifecycle_state in CAPACITY]
        members = [machine for machine in working if f"aws:///{machine.placement.zone}/{machine.id}" in ready]
        if len(members) >= (scaling_group.desired_capacity or 0):
            group.document["status"] = "ACTIVE"
        elif time.monotonic() - group.since > self.world.join_within_s:
            group.document["status"] = "CREATE_FAILED" if status == "CREATING" else "DEGRADED"
            absent = [machine.id for machine in working if machine not in members]
            if absent:
                message = "Instances failed to join the kubernetes cluster"
                issue = {"code": "NodeCreationFailure", "message": message, "resourceIds": absent}
                group.document["health"]["issues"].append(issue)

    def _leave(self, cluster: Cluster, group: ManagedGroup) -> None:
        trouble = self.world.troubles.find("node-group", group.name, "delete")
        if trouble is None:
            self._remove(cluster, group)
        elif trouble.outcome == "fail":
            group.document["status"] = "DELETE_FAILED"
            group.document["health"] = {"issues": [_issue("InternalFailure", trouble.message, group)]}

    def _issues(self, group: ManagedGroup, auto_scaling_group: Any) -> list[dict[str, Any]]:
        issues = [issue for issue in group.document["health"]["issues"] if issue["code"] == "NodeCreationFailure"]
        if auto_scaling_group is None:
            message = "We couldn't find the Auto Scaling group associated with your managed node group."
            return [*issues, _issue("AutoScalingGroupNotFound", message, group)]
        activity = (self.world.auto_scaling.activities.get(group.scaling_group) or [{}])[0]
        present = sum(state.lifecycle_state in CAPACITY for state in auto_scaling_group.instance_states)
        if present < (auto_scaling_group.desired_capacity or 0) and activity.get("StatusCode") == "Failed":
            message = f"Could not launch Instances. {activity['StatusMessage']}"
            issues.append(_issue("AsgInstanceLaunchFailures", message, group))
        return issues

    def _remove(self, cluster: Cluster, group: ManagedGroup) -> None:
        world, role = self.world, group.document["nodeRole"]
        if (scaling_group := self._scaling_group(group)) is not None:
            world.auto_scaling.remove(scaling_group)
        world.backend("iam").delete_instance_profile(group.profile, ignore_attached_roles=True)
        if group.own_template:
            world.backend("ec2").delete_launch_template(None, group.own_template)
        cluster.nodegroups.pop(group.name, None)
        if not any(peer.document["nodeRole"] == role for peer in cluster.nodegroups.values()):
            cluster.entries.pop(role, None)


def _issue(code: str, message: str, group: ManagedGroup) -> dict[str, Any]:
    return {"code": code, "message": message, "resourceIds": [group.scaling_group]}


def install(world: World) -> None:
    groups = NodeGroups(world)
    add_backend(world, EksResponse, groups)
    world.schedule_every(PERIOD_S, groups._reconcile, apart=True)


def check_launch(world: World, cluster: Cluster, group: dict[str, Any], version: Any) -> None:
    """Raise EKS's error unless the caller may launch from a template's `version` (None: EKS's own) in all subnets.

    https://github.com/aws/containers-roadmap/issues/1602, https://github.com/aws-samples/terraform-eks-code/issues/13.
    It is not documented whether EKS tries a new template version too. Here it does, so a policy that passes is enough.
    """
    principal = caller.get()
    if version is None or principal is None:
        return
    data, overrides = version.data, dict[str, Any](SubnetIds=group["subnets"])
    if not data.get("ImageId"):
        overrides["ImageId"] = recommended_image(group["version"], group["amiType"])
    if not any(source.get("Groups") for source in [{"Groups": data.get("SecurityGroupIds")}, *_interfaces(data)]):
        overrides["SecurityGroupIds"] = [cluster.security_group]
    template = {"LaunchTemplateId": version.template.id, "Version": str(version.number)}
    try:
        for need in arns.launch(world, template, overrides):
            authorise(world, principal, need.action, need.resources, need.context)
    except AwsError as error:
        if error.code != "AccessDenied":
            raise
        # AWS encodes the refused action; plain text is of more use here.
        message = "You are not authorized to launch instances with this launch template. Encoded authorization failure"
        raise AwsError("InvalidRequestException", f"{message} message: {error.message}") from error


def _interfaces(data: dict[str, Any]) -> list[dict[str, Any]]:
    return list(data.get("NetworkInterfaces") or [])
