"""Volumes of `s3.csi.aws.com`: an S3 prefix as a folder, read with the pod's own role.

Mountpoint answers each read from S3; here all objects are fetched when a pod mounts the volume, so what changes later
is not seen. Rights are asked for alike: listing under the prefix, and each object.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from infra.errors import TemporaryError
from infra.rehearsal.nodelet.client import Object
from infra.rehearsal.nodelet.credentials import RETRY, RoleCredentials
from infra.rehearsal.nodelet.metadata import Unavailable, pod_credentials

DRIVER, ADD_ON = "s3.csi.aws.com", "aws-mountpoint-s3-csi-driver"


class Mountpoint:
    """The driver's part on one node."""

    def __init__(self, credentials: RoleCredentials, cluster: str) -> None:
        self._credentials, self._cluster = credentials, cluster

    def mount(self, volume: Object, token: str, folder: Path) -> Path:
        """Fetch what the volume shows into a folder, and return it. `token`: the pod's, for EKS pod identities.

        Raises `TemporaryError`: the driver, the pod's role or the bucket may still come.
        """
        attributes, options = volume["csi"]["volumeAttributes"], volume.get("mountOptions") or []
        if attributes.get("authenticationSource") != "pod":
            raise TemporaryError("the driver has no role", seen=attributes, delay=RETRY)
        prefix = next((option.partition(" ")[2] for option in options if option.startswith("prefix ")), "")
        try:
            self._credentials.agent_client("eks").describe_addon(clusterName=self._cluster, addonName=ADD_ON)
            role = json.loads(pod_credentials(self._credentials, self._cluster, token))
            s3 = self._credentials.session("s3", role["AccessKeyId"], role["SecretAccessKey"], role["Token"])
            self._fetch(s3, attributes["bucketName"], prefix, folder)
        except (ClientError, BotoCoreError, Unavailable) as error:
            raise TemporaryError("Failed to create S3 client", seen=error, delay=RETRY) from error
        return folder

    def _fetch(self, s3: Any, bucket: str, prefix: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for entry in page.get("Contents", ()):
                target = folder / entry["Key"][len(prefix) :]
                if entry["Key"].endswith("/") or not target.resolve().is_relative_to(folder.resolve()):
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                s3.download_file(bucket, entry["Key"], str(target))
