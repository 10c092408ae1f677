"""The dry run of a launch, with the caller's rights, before EKS makes a node group from a launch template.

EKS refuses a caller who may create node groups but not launch from the template
(https://github.com/aws/containers-roadmap/issues/1602, https://github.com/aws-samples/terraform-eks-code/issues/13).
It is not documented whether EKS tries a new template version too. Here it does, so a policy that passes is enough.
"""

from __future__ import annotations

from typing import Any

from infra.rehearsal.aws.eks.clusters import Cluster
from infra.rehearsal.aws.iam import arns
from infra.rehearsal.aws.iam.access import authorise, caller
from infra.rehearsal.aws.operations import AwsError
from infra.rehearsal.aws.ssm_parameters import recommended_image
from infra.rehearsal.aws.world import World


def check_launch(world: World, cluster: Cluster, group: dict[str, Any], version: Any) -> None:
    """Raise EKS's error unless the caller may launch from a template's `version` (None: EKS's own) in all subnets."""
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
