"""A campaign's infrastructure: each part comes after those that it depends on."""

from __future__ import annotations

from typing import Any

import pulumi_aws as aws
from pulumi import ResourceOptions

from infra.spec.image_reference import repository_url
from infra.spec.names import CAMPAIGN_TAG, CNI_ACCOUNT, OWNER_TAG, buckets
from infra.stack.access.identity import Roles
from infra.stack.budget import Budget
from infra.stack.cluster.addons import AddonStage, unused_drivers
from infra.stack.cluster.cluster import EksCluster
from infra.stack.cluster.nodes import DataNodes, GpuNodes, SystemNodes
from infra.stack.cluster.workloads import Workloads
from infra.stack.guard import Guard
from infra.stack.network.addresses import second_zone
from infra.stack.network.network import place_of
from infra.stack.network.security import Security
from infra.stack.settings import CampaignSettings
from infra.stack.storage import LustreStorage
from infra.stack.tags import instant, tags


def campaign(settings: CampaignSettings) -> dict[str, Any]:
    """Make the campaign; return its outputs, keyed as `CampaignOutputs`.

    Deletion goes backwards: the first add-ons, guard, roles and rules outlive the nodes that need them.
    """
    spec, deadline = settings.spec, settings.deadline
    marks = tags(spec, deadline, settings.identity)
    provider = aws.Provider("aws", region=spec.region, allowed_account_ids=[spec.account], default_tags={"tags": marks})
    opts = ResourceOptions(providers=[provider])
    guard = Guard(spec, deadline, settings.closer_code, settings.preparing, opts)
    network = place_of(spec, settings.control_plane_zones or (spec.zone, second_zone(spec)), guard.first, opts)
    security = Security(spec, network.vpc_id, settings.mount_groups or (), opts)
    roles = Roles(spec, settings.key_arn, settings.closer_code, opts)
    subnets, network_parts = network.control_plane, network.made
    cluster = EksCluster(spec, roles, subnets, settings.operator_arn, network_parts, settings.key_arn, opts)
    security.let_driver_in(cluster.security_group_id, spec.network.driver_cidrs)
    interface_tags = {key: marks[key] for key in (CAMPAIGN_TAG, OWNER_TAG)}
    # A pod of vpc-cni that starts before its role is associated gets the node's, which may not change interfaces.
    cni_ready = [cluster.roles[CNI_ACCOUNT], *roles.node_ready]
    early_addons = AddonStage(
        "before-nodes", cluster.eks.name, interface_tags, cni_ready, spec.addons, spec.kubernetes, opts=opts
    )
    budget = Budget(spec, opts)
    apart = [security, *network.made]
    shared, group = spec.storage.shared, security.lustre
    storage = None
    if shared is not None and group is not None:
        storage = LustreStorage(
            spec, shared, network.gpu, group.id, settings.data_digest, apart, settings.key_arn, opts
        )

    groups = [security.nodes.id, cluster.security_group_id]
    ready = [*early_addons.all, *roles.node_ready, *network.made, security]
    key, node_role = settings.key_arn, roles.node.arn
    system = SystemNodes(spec, cluster, marks, node_role, network.control_plane[0], groups, ready, key, opts)
    after_guards = [*ready, *guard.before_gpu, budget]
    gpu = GpuNodes(spec, cluster, marks, node_role, network.gpu, groups, after_guards, key, opts, settings.node_image)
    if settings.preparing:
        DataNodes(spec, cluster, marks, node_role, network.gpu, groups, [*ready, *guard.of_data, budget], key, opts)
    unused_addons = unused_drivers(spec)
    late_addons = AddonStage(
        "after-nodes",
        cluster.eks.name,
        interface_tags,
        [system.group],
        spec.addons,
        spec.kubernetes,
        unused_addons,
        opts,
    )
    cluster_opts = ResourceOptions(providers=[provider, cluster.kubernetes_after(system.group)])
    runs_on = [system.group, *late_addons.all]
    Workloads(spec, cluster, storage, runs_on, cluster_opts, mount_names=settings.mount_names)

    bucket_names = buckets(spec.account, spec.region)
    outputs: dict[str, Any] = {
        "cluster_name": cluster.eks.name,
        "cluster_endpoint": cluster.endpoint,
        "kubeconfig": cluster.kubeconfig,
        "vpc_id": network.vpc_id,
        "gpu_subnet_id": network.gpu,
        "system_subnet_id": network.control_plane[0],
        "network_made": spec.network.made,
        "node_security_group_id": security.nodes.id,
        "gpu_group": gpu.group.node_group_name,
        "system_group": system.group.node_group_name,
        "file_system_id": None if storage is None else storage.lustre.id,
        "mount_name": None if storage is None else storage.lustre.mount_name,
        "node_role_arn": roles.node.arn,
        "steward_role_arn": roles.steward.arn,
        "trainer_role_arn": roles.trainer.arn,
        "archive_role_arn": roles.archive.arn,
        "repository_url": repository_url(spec.account, spec.region),
        "state_bucket": bucket_names.state,
        "archive_bucket": bucket_names.archive,
        "deadline": instant(deadline),
    }
    return outputs
