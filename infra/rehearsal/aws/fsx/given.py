"""The route `/_site/filesystem`: a file system that somebody has, with the files of a folder of this machine.

The body is `{"id": "fs-...", "path": "folder/of/it", "folder": PATH}`, the id that of the spec. The file system is
AVAILABLE at once and has neither a network nor a tag.
"""

from __future__ import annotations

import json
import shutil
from http import HTTPStatus
from typing import Any

from infra.rehearsal.aws.fsx.systems import FileSystem
from infra.rehearsal.aws.world import World


def install(world: World) -> None:
    def route(query: str, body: bytes) -> tuple[int, dict[str, Any]]:
        request = json.loads(body)
        id, systems = str(request["id"]), world.backend("fsx").file_systems
        shutil.copytree(request["folder"], world.fsx_root / id / request["path"], dirs_exist_ok=True)
        systems.setdefault(id, _file_system(world, id))
        return HTTPStatus.OK, {"id": id}

    world.routes["/_site/filesystem"] = route


def _file_system(world: World, id: str) -> FileSystem:
    return FileSystem(
        file_system_id=id,
        resource_arn=f"arn:aws:fsx:{world.region}:{world.account}:file-system/{id}",
        owner_id=world.account,
        dns_name=f"{id}.fsx.{world.region}.amazonaws.com",
        vpc_id="",
        subnet_ids=[],
        network_interface_ids=[],
        storage_capacity=1200,
        storage_type="SSD",
        version="2.15",
        lustre={"DeploymentType": "SCRATCH_2", "MountName": id[-8:]},
        folder=world.fsx_root / id,
        token=None,
        lifecycle="AVAILABLE",
    )
