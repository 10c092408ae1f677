"""The SHA-256 that a client sends with an object: S3 refuses one that the body does not have, moto takes any.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Any

from moto.s3.exceptions import S3ClientError
from moto.s3.responses import S3Response

from infra.rehearsal.aws.operations import wrap
from infra.rehearsal.aws.world import World

_HEADER = "x-amz-checksum-sha256"


def _check_object(moto: Callable[..., Any], response: S3Response, *args: Any, **kwargs: Any) -> Any:
    header = response.headers.get(_HEADER)
    if header:
        actual = base64.b64encode(hashlib.sha256(response.raw_body).digest()).decode()
        if header != actual:
            raise S3ClientError("BadDigest", "The SHA256 you specified did not match the calculated checksum.")
    return moto(response, *args, **kwargs)


def install(world: World) -> None:
    wrap(S3Response, "put_object", _check_object)
