"""FSx for Lustre, linked to the data set in S3."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws
from pulumi import CustomTimeouts, Input, ResourceOptions

from infra.names import DATA_FOLDER, Names, buckets, data_prefix
from infra.spec import Spec


class Storage(pulumi.ComponentResource):
    """`lustre`, in the GPU nodes' own subnet; its folder `data` shows the data set as S3 holds it."""

    def __init__(
        self,
        spec: Spec,
        subnet_id: Input[str],
        security_group_id: Input[str],
        data_digest: str,
        depends_on: list[pulumi.Resource],
        opts: ResourceOptions | None = None,
    ) -> None:
        super().__init__("bivouac:infra:Storage", "storage", None, opts)
        shared = spec.storage.shared
        persistent = shared.deployment == "PERSISTENT_2"
        self.lustre = aws.fsx.LustreFileSystem(
            "shared",
            subnet_ids=subnet_id,
            security_group_ids=[security_group_id],
            storage_type="SSD",
            storage_capacity=shared.capacity_gib,
            deployment_type=shared.deployment,
            per_unit_storage_throughput=shared.throughput_mbs_per_tib if persistent else None,
            file_system_type_version="2.15",
            efa_enabled=True if shared.efa else None,
            metadata_configuration={"mode": "AUTOMATIC"} if shared.efa else None,
            data_compression_type="NONE",
            skip_final_backup=True,
            tags={"Name": Names(spec).file_system},
            opts=ResourceOptions(
                parent=self, depends_on=depends_on, custom_timeouts=CustomTimeouts(create="40m", delete="40m")
            ),
        )
        source = f"s3://{buckets(spec.account, spec.region).data}/{data_prefix(data_digest)}"
        self.data = aws.fsx.DataRepositoryAssociation(
            "data",
            file_system_id=self.lustre.id,
            file_system_path=f"/{DATA_FOLDER}",
            data_repository_path=source,
            batch_import_meta_data_on_create=True,
            delete_data_in_filesystem=False,
            opts=ResourceOptions(parent=self, custom_timeouts=CustomTimeouts(create="30m", delete="30m")),
        )
        self.register_outputs({"file_system_id": self.lustre.id, "mount_name": self.lustre.mount_name})
