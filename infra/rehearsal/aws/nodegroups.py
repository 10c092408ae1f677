"""Managed node groups: an Auto Scaling group, a profile and an access entry each; ACTIVE when the nodes have joined."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from infra.rehearsal.aws import nodegroup_rules as rules
from infra.rehearsal.aws.autoscaling import CAPACITY, Recipe
from infra.rehearsal.aws.eks import Cluster, EksResponse, find, find_active
from infra.rehearsal.aws.eks_entries import access_entry, eks_arn
from infra.rehearsal.aws.instances import CLUSTER_TAG, NODE_GROUP_TAG
from infra.rehearsal.aws.nodegroup_rights import check_launch
from infra.rehearsal.aws.operations import AwsError, Parameters, add_operations
from infra.rehearsal.aws.ssm_parameters import recommended
from infra.rehearsal.aws.world import World

PERIOD_S = 0.25
DEFAULT_TYPES = ["t3.medium"]
SETTLE_S = 0.3
SCALE_DOWN = timedelta(minutes=40)
"""So long before a capacity block's end EKS empties the node group."""


@dataclass
class NodeGroup:
    document: dict[str, Any]
    scaling_group: str
    profile: str
    own_template: str | None = None
    """The launch template that EKS made where none was given."""
    since: float = field(default_factory=time.monotonic)
    update: dict[str, Any] | None = None
    """That which is in progress."""
    was: str | None = None
    """Status before a change of configuration that is under way."""

    @property
    def name(self) -> str:
        return str(self.document["nodegroupName"])


class NodeGroups:
    def __init__(self, world: World) -> None:
        self.world = world

    def _find(self, params: Parameters) -> tuple[Cluster, NodeGroup]:
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
        group = NodeGroup(
            self._document(cluster, params, scaling, version, number),
            f"eks-{params['nodegroupName']}-{number}",
            f"eks-{number}",
        )
        check_launch(world, cluster, group.document, version)
        if version is None:
            version = self._make_template(cluster, group, number, params)
        self._make_profile(group, params["nodeRole"])
        if cluster.uses_entries and params["nodeRole"] not in cluster.entries:
            entry = access_entry(world, cluster.name, params["nodeRole"], "EC2_LINUX")
            cluster.entries[params["nodeRole"]] = entry
        self._make_scaling_group(cluster, group, version)
        cluster.nodegroups[group.name] = group
        return {"nodegroup": self._shown(group)}

    def _template(self, given: dict[str, str] | None) -> Any:
        """The LaunchTemplateVersion of a request, or None."""
        if not given:
            return None
        ec2 = self.world.backend("ec2")
        templates = ec2.launch_templates.values()
        found = [one for one in templates if given.get("id") == one.id or given.get("name") == one.name]
        if not found:
            raise rules.invalid(f"Launch template {given} does not exist")
        return found[0].get_version(given.get("version") or "$Default")

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

    def _make_template(self, cluster: Cluster, group: NodeGroup, number: str, params: Parameters) -> Any:
        disk = {"VolumeSize": group.document["diskSize"], "VolumeType": "gp3", "DeleteOnTermination": True}
        data = {"BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": disk}], "UserData": None}
        tags = {"launch-template": {CLUSTER_TAG: cluster.name, NODE_GROUP_TAG: group.name}}
        ec2 = self.world.backend("ec2")
        template = ec2.create_launch_template(f"eks-{number}", "", data, tags)
        group.own_template = template.id
        return template.default_version()

    def _make_profile(self, group: NodeGroup, role_arn: str) -> None:
        self.world.backend("iam").create_instance_profile(group.profile, "/", [role_arn.rpartition("/")[2]])

    def _make_scaling_group(self, cluster: Cluster, group: NodeGroup, version: Any) -> None:
        document, world = group.document, self.world
        self._set_recipe(cluster, group, version)
        tags = {
            CLUSTER_TAG: cluster.name,
            NODE_GROUP_TAG: group.name,
            f"kubernetes.io/cluster/{cluster.name}": "owned",
            "k8s.io/cluster-autoscaler/enabled": "true",
            f"k8s.io/cluster-autoscaler/{cluster.name}": "owned",
        }
        scaling = document["scalingConfig"]
        world.backend("autoscaling").create_auto_scaling_group(
            name=group.scaling_group,
            availability_zones=[],
            desired_capacity=scaling["desiredSize"],
            max_size=scaling["maxSize"],
            min_size=scaling["minSize"],
            launch_config_name=None,
            launch_template={"LaunchTemplateId": version.template.id, "Version": str(version.number)},
            vpc_zone_identifier=",".join(document["subnets"]),
            default_cooldown=None,
            health_check_period=15,
            health_check_type="EC2",
            load_balancers=[],
            target_group_arns=[],
            placement_group=None,
            termination_policies=["AllocationStrategy", "OldestLaunchTemplate", "OldestInstance"],
            tags=[{"Key": key, "Value": value, "PropagateAtLaunch": True} for key, value in tags.items()],
            capacity_rebalance=document["capacityType"] == "SPOT",
        )
        if document["capacityType"] == "CAPACITY_BLOCK":
            self._end_with_block(group, version)

    def _end_with_block(self, group: NodeGroup, version: Any) -> None:
        """As EKS does: a scheduled action that empties the group before EC2 ends what runs in the block."""
        ends = self.world.block_ends(rules.block_id(version.data))
        if ends is not None:
            self.world.backend("autoscaling").put_scheduled_update_group_action(
                name=group.scaling_group, desired_capacity=0, max_size=None, min_size=0,
                scheduled_action_name="Amazon EKS Node Group Capacity Scaledown Before Reservation End",
                start_time=(ends - SCALE_DOWN).isoformat(), end_time=None, recurrence=None, timezone=None,
            )  # fmt: skip

    def _set_recipe(self, cluster: Cluster, group: NodeGroup, version: Any) -> None:
        document, data = group.document, version.data
        merged = None
        if not data.get("ImageId"):
            own = data["UserData"].decode() if data.get("UserData") else ""
            merged = rules.merged_user_data(cluster, document, own)
        profile = self.world.backend("iam").get_instance_profile(group.profile)
        self.world.auto_scaling.recipes[group.scaling_group] = Recipe(
            instance_types=document.get("instanceTypes", []),
            security_groups=[cluster.security_group],
            user_data=merged,
            profile_arn=profile.arn,
            market="spot" if document["capacityType"] == "SPOT" else None,
            image="" if document["amiType"] == "CUSTOM" else recommended(document["version"], document["amiType"]),
        )

    def _scaling_group(self, group: NodeGroup) -> Any:
        return self.world.auto_scaling.groups.get(group.scaling_group)

    def _shown(self, group: NodeGroup) -> dict[str, Any]:
        """The sizes are the Auto Scaling group's, whoever changed them."""
        found = self._scaling_group(group)
        if found is not None and group.document["status"] != "DELETING":
            sizes = {"minSize": found.min_size, "maxSize": found.max_size, "desiredSize": found.desired_capacity}
            group.document["scalingConfig"] = sizes
        return group.document

    def describe_nodegroup(self, params: Parameters) -> dict[str, Any]:
        return {"nodegroup": self._shown(self._find(params)[1])}

    def list_nodegroups(self, params: Parameters) -> dict[str, Any]:
        return {"nodegroups": sorted(find(self.world, params["clusterName"]).nodegroups)}

    def update_nodegroup_config(self, params: Parameters) -> dict[str, Any]:
        cluster, group = self._find(params)
        self._refuse_unless_settled(group)
        document, found = group.document, self._scaling_group(group)
        if given := params.get("scalingConfig"):
            sizes = self._shown(group)["scalingConfig"] | given
            rules.check_sizes(sizes)
            found.min_size, found.max_size = sizes["minSize"], sizes["maxSize"]
            found.set_desired_capacity(sizes["desiredSize"])
        rules.mark(document, params.get("labels") or {}, params.get("taints") or {})
        for key in ("updateConfig", "nodeRepairConfig"):
            if params.get(key):
                document[key] = params[key]
        document["modifiedAt"] = datetime.now(UTC)
        group.was, group.since, document["status"] = document["status"], time.monotonic(), "UPDATING"
        update = cluster.record("ConfigUpdate", rules.told(params), nodegroupName=group.name)
        return {"update": self._under_way(group, update)}

    def _under_way(self, group: NodeGroup, update: dict[str, Any]) -> dict[str, Any]:
        if self.world.strictness.on and group.document["status"] == "UPDATING":
            update["status"], group.update = "InProgress", update
        return update

    @staticmethod
    def _refuse_unless_settled(group: NodeGroup) -> None:
        if group.document["status"] in ("DELETING", "CREATING", "UPDATING"):
            message = f"Nodegroup cannot be updated as it is currently not in Active State: {group.document['status']}"
            raise AwsError("ResourceInUseException", message)

    def update_nodegroup_version(self, params: Parameters) -> dict[str, Any]:
        """A new launch template version: every node is replaced (here all at once)."""
        cluster, group = self._find(params)
        self._refuse_unless_settled(group)
        given = params.get("launchTemplate")
        if given and "launchTemplate" in group.document:
            version = self._template({**group.document["launchTemplate"], **given})
            check_launch(self.world, cluster, group.document, version)
            group.document["launchTemplate"]["version"] = str(version.number)
            if group.document["amiType"] == "CUSTOM":
                group.document["releaseVersion"] = version.data["ImageId"]
            found = self._scaling_group(group)
            found.launch_template_version = found.provided_launch_template_version = str(version.number)
            self._set_recipe(cluster, group, version)
            for state in found.instance_states:
                state.health_status = "Unhealthy"
            group.document["status"], group.since = "UPDATING", time.monotonic()
        return {"update": self._under_way(group, cluster.record("VersionUpdate", nodegroupName=group.name))}

    def delete_nodegroup(self, params: Parameters) -> dict[str, Any]:
        _, group = self._find(params)
        group.document["status"] = "DELETING"
        if (found := self._scaling_group(group)) is not None:
            found.min_size = 0
            found.set_desired_capacity(0)
        return {"nodegroup": group.document}

    def _reconcile(self) -> None:
        for cluster in list(self.world.clusters.values()):
            groups = list(cluster.nodegroups.values())
            waiting = any(one.document["status"] in ("CREATING", "UPDATING") for one in groups)
            plane = self.world.control_planes.get(cluster.name)
            ready = self.world.ready_nodes(plane) if waiting and plane is not None else set()
            with self.world.lock:
                for group in groups:
                    self._settle(cluster, group, ready)
                    if group.update is not None and group.document["status"] != "UPDATING":
                        over = "Successful" if group.document["status"] == "ACTIVE" else "Failed"
                        group.update["status"], group.update = over, None

    def _settle(self, cluster: Cluster, group: NodeGroup, ready: set[str]) -> None:
        found, status = self._scaling_group(group), group.document["status"]
        if status == "DELETING":
            if found is None or not found.instance_states:
                self._leave(cluster, group)
            return
        group.document["health"] = {"issues": self._issues(group, found)}
        if status not in ("CREATING", "UPDATING") or time.monotonic() - group.since < SETTLE_S:
            return
        if status == "UPDATING" and group.was is not None:
            group.document["status"], group.was = group.was, None
            return
        if status == "CREATING" and (trouble := self.world.troubles.of("node-group", group.name, "create")):
            if trouble.outcome == "fail":
                group.document["status"] = "CREATE_FAILED"
                group.document["health"]["issues"].append(_issue("InternalFailure", trouble.message, group))
            return
        working = [state.instance for state in found.instance_states if state.lifecycle_state in CAPACITY]
        joined = [one for one in working if f"aws:///{one.placement.zone}/{one.id}" in ready]
        if len(joined) >= (found.desired_capacity or 0):
            group.document["status"] = "ACTIVE"
        elif time.monotonic() - group.since > self.world.join_within_s:
            group.document["status"] = "CREATE_FAILED" if status == "CREATING" else "DEGRADED"
            lost = [one.id for one in working if one not in joined]
            if lost:
                message = "Instances failed to join the kubernetes cluster"
                issue = {"code": "NodeCreationFailure", "message": message, "resourceIds": lost}
                group.document["health"]["issues"].append(issue)

    def _leave(self, cluster: Cluster, group: NodeGroup) -> None:
        trouble = self.world.troubles.of("node-group", group.name, "delete")
        if trouble is None:
            self._remove(cluster, group)
        elif trouble.outcome == "fail":
            group.document["status"] = "DELETE_FAILED"
            group.document["health"] = {"issues": [_issue("InternalFailure", trouble.message, group)]}

    def _issues(self, group: NodeGroup, found: Any) -> list[dict[str, Any]]:
        issues = [one for one in group.document["health"]["issues"] if one["code"] == "NodeCreationFailure"]
        if found is None:
            message = "We couldn't find the Auto Scaling group associated with your managed node group."
            return [*issues, _issue("AutoScalingGroupNotFound", message, group)]
        last = (self.world.auto_scaling.activities.get(group.scaling_group) or [{}])[0]
        present = sum(state.lifecycle_state in CAPACITY for state in found.instance_states)
        if present < (found.desired_capacity or 0) and last.get("StatusCode") == "Failed":
            message = f"Could not launch Instances. {last['StatusMessage']}"
            issues.append(_issue("AsgInstanceLaunchFailures", message, group))
        return issues

    def _remove(self, cluster: Cluster, group: NodeGroup) -> None:
        world, role = self.world, group.document["nodeRole"]
        if (found := self._scaling_group(group)) is not None:
            world.auto_scaling.remove(found)
        world.backend("iam").delete_instance_profile(group.profile, ignore_attached_roles=True)
        if group.own_template:
            world.backend("ec2").delete_launch_template(None, group.own_template)
        cluster.nodegroups.pop(group.name, None)
        if not any(one.document["nodeRole"] == role for one in cluster.nodegroups.values()):
            cluster.entries.pop(role, None)


def _issue(code: str, message: str, group: NodeGroup) -> dict[str, Any]:
    return {"code": code, "message": message, "resourceIds": [group.scaling_group]}


def install(world: World) -> None:
    groups = NodeGroups(world)
    names = [name for name in vars(NodeGroups) if not name.startswith("_")]
    add_operations(world, EksResponse, {name: getattr(groups, name) for name in names})
    world.every(PERIOD_S, groups._reconcile, apart=True)
