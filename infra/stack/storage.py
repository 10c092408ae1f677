"""FSx for Lustre, linked to the data set in S3."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws
from pulumi import Input, ResourceOptions

from infra.spec import waits
from infra.spec.campaign import SharedStorage, Spec
from infra.spec.names import DATA_FOLDER, Names, buckets, data_prefix
from infra.spec.workload.mounts import mount_folder
from infra.stack.lustre import file_system
from infra.stack.timeouts import timeouts_of

_IMPORTS_LATER_CODE = aws.fsx.DataRepositoryAssociationS3Args(
    auto_import_policy=aws.fsx.DataRepositoryAssociationS3AutoImportPolicyArgs(events=["NEW"])
)
"""A relaunch with changed code uploads it beside the first."""
_FOLLOWS_S3 = aws.fsx.DataRepositoryAssociationS3Args(
    auto_import_policy=aws.fsx.DataRepositoryAssociationS3AutoImportPolicyArgs(events=["NEW", "CHANGED", "DELETED"])
)


class LustreStorage(pulumi.ComponentResource):
    """`lustre`, in the GPU nodes' subnet; its folder `data` shows the data set in S3."""

    def __init__(
        self,
        spec: Spec,
        shared: SharedStorage,
        subnet_id: Input[str],
        security_group_id: Input[str],
        data_digest: str | None,
        depends_on: list[pulumi.Resource],
        key_arn: str | None = None,
        opts: ResourceOptions | None = None,
    ) -> None:
        """`data_digest`: None if there are no data yet. `key_arn`: the customer's key; None: FSx's own."""
        super().__init__("bivouac:infra:Storage", "storage", None, opts)
        self.lustre = aws.fsx.LustreFileSystem(
            "shared",
            subnet_ids=subnet_id,
            security_group_ids=[security_group_id],
            **file_system(shared),
            kms_key_id=key_arn,
            skip_final_backup=True,
            tags={"Name": Names(spec).file_system},
            opts=ResourceOptions(parent=self, depends_on=depends_on, custom_timeouts=timeouts_of(waits.FILE_SYSTEM)),
        )
        self.data = None if data_digest is None else self._link(spec, data_digest)
        for name, prefix in spec.links.items():
            aws.fsx.DataRepositoryAssociation(
                f"mount-{name}",
                file_system_id=self.lustre.id,
                file_system_path=f"/{mount_folder(name)}",
                data_repository_path=prefix,
                batch_import_meta_data_on_create=True,
                s3=_FOLLOWS_S3,
                delete_data_in_filesystem=False,
                # FSx makes one link of a file system after the other.
                opts=ResourceOptions(parent=self, custom_timeouts=timeouts_of(waits.FURTHER_LINK)),
            )
        self.register_outputs({"file_system_id": self.lustre.id, "mount_name": self.lustre.mount_name})

    def _link(self, spec: Spec, data_digest: str) -> aws.fsx.DataRepositoryAssociation:
        source = f"s3://{buckets(spec.account, spec.region).data}/{data_prefix(data_digest)}"
        return aws.fsx.DataRepositoryAssociation(
            "data",
            file_system_id=self.lustre.id,
            file_system_path=f"/{DATA_FOLDER}",
            data_repository_path=source,
            batch_import_meta_data_on_create=True,
            s3=None if spec.runtime.is_built_in else _IMPORTS_LATER_CODE,
            delete_data_in_filesystem=False,
            opts=ResourceOptions(parent=self, custom_timeouts=timeouts_of(waits.DATA_LINK)),
        )
