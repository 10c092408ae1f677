"""Launch templates as EC2 shows them: current tags, versions derived from others, data without the own tags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from moto.core.responses import ActionResult
from moto.ec2.models.launch_templates import LaunchTemplate, LaunchTemplateBackend
from moto.ec2.responses import EC2Response

from infra.rehearsal.aws.operations import wrap
from infra.rehearsal.aws.world import World


def _create(
    moto: Callable[..., LaunchTemplate],
    ec2: Any,
    name: str,
    description: str,
    data: dict[str, Any],
    tags: dict[str, dict[str, str]],
) -> LaunchTemplate:
    """Keep the template's own tags apart: moto mixes them into those of launched resources."""
    instance_tags = [
        specification
        for specification in data.pop("TagSpecifications", [])
        if specification["ResourceType"] != "launch-template"
    ]
    return moto(ec2, name, description, data | ({"TagSpecifications": instance_tags} if instance_tags else {}), tags)


def _create_version(moto: Callable[..., ActionResult], response: Any) -> ActionResult:
    """Take what the request leaves out from its source version."""
    source = response._get_param("SourceVersion")
    # Read first: `$Latest` changes with the new version, and an unknown source must leave nothing behind.
    source_version = None if source is None else _template(response).get_version(source)
    answer = moto(response)
    if source_version is not None:
        result: Any = answer.result
        version_document = result["LaunchTemplateVersion"]
        version = source_version.template.get_version(version_document["VersionNumber"])
        if "TagSpecifications" not in version.data:
            version.instance_tags = source_version.instance_tags
        version.data = version_document["LaunchTemplateData"] = source_version.data | version.data
    return answer


def _template(response: Any) -> LaunchTemplate:
    ec2, name = response.ec2_backend, response._get_param("LaunchTemplateName")
    if name:
        return cast(LaunchTemplate, ec2.get_launch_template_by_name(name))
    return cast(LaunchTemplate, ec2.get_launch_template(response._get_param("LaunchTemplateId")))


def install(world: World) -> None:
    # moto reads the tags only once, when it makes the template.
    LaunchTemplate.tags = property(lambda template: template.get_tags(), lambda template, tags: None)  # type: ignore[assignment]
    wrap(LaunchTemplateBackend, "create_launch_template", _create)
    wrap(EC2Response, "create_launch_template_version", _create_version)
