"""S3 requests of one part each through the AWS Common Runtime: many at once on native threads.

The runtime's multipart upload cannot continue after its process was killed, so we manage the parts; requests,
connections and retries are the runtime's. botocore presigns each request, so endpoint, addressing style and credentials
are the given client's.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from botocore.exceptions import ClientError, HTTPClientError

_PRESIGNED_S = 3600
_RETRIES = 3
_BACKOFF_MS = 100
_BACKOFF_LIMIT_S = 5
_CODE = re.compile(rb"<Code>([^<]+)</Code>")
_MESSAGE = re.compile(rb"<Message>([^<]*)</Message>")


class Altered(Exception):
    """The sent or fetched data are not the promised bytes."""


class PartTransfers:
    """Requests of one part each; thread-safe. The runtime starts with the first one, so a process may fork before."""

    def __init__(self, s3: Any) -> None:
        self._s3 = s3
        self._lock = threading.Lock()

    def put(self, part: dict[str, Any], headers: dict[str, str], body: BinaryIO, size: int) -> Future[dict[str, str]]:
        """Upload `part` (Bucket, Key, UploadId, PartNumber); the future holds the answer's headers.

        The future raises `ClientError` as boto3 would, or `HTTPClientError` for transport errors.
        """
        url = self._s3.generate_presigned_url("upload_part", Params=part, ExpiresIn=_PRESIGNED_S, HttpMethod="PUT")
        answer: Future[dict[str, str]] = Future()
        request_headers = {"Content-Length": str(size), **headers}
        self._start("UploadPart", "PUT", url, request_headers, answer, lambda answer_headers: answer_headers, body=body)
        return answer

    def get(self, source: dict[str, Any], start: int, into: memoryview, object_size: int) -> Future[int]:
        """Fill `into` with bytes from `start` on of `source` (Bucket, Key, VersionId), which has `object_size` bytes.

        The future raises `HTTPClientError` for a shorter answer, `Altered` if the object has another size.
        """
        url = self._s3.generate_presigned_url("get_object", Params=source, ExpiresIn=_PRESIGNED_S)
        answer: Future[int] = Future()
        size, byte_count = len(into), 0

        def on_body(chunk: bytes, offset: int, **_: Any) -> None:
            # Offsets are the object's; each byte is copied once. A request that the runtime retries starts over.
            nonlocal byte_count
            position = offset - start
            if 0 <= position <= byte_count and position + len(chunk) <= size:
                into[position : position + len(chunk)] = chunk
                byte_count = position + len(chunk)

        def result(answer_headers: dict[str, str]) -> int:
            total = answer_headers.get("content-range", "").rpartition("/")[2]
            if total.isdigit() and int(total) != object_size:
                raise Altered(f"{source['Key']}: {total} bytes, not {object_size}")
            if byte_count != size:
                raise HTTPClientError(error=f"{byte_count} of {size} bytes came")
            return byte_count

        headers = {"Range": f"bytes={start}-{start + size - 1}"}
        self._start("GetObject", "GET", url, headers, answer, result, on_body=on_body)
        return answer

    def _start(
        self,
        operation: str,
        method: str,
        url: str,
        headers: dict[str, str],
        answer: Future[Any],
        result: Callable[[dict[str, str]], Any],
        body: BinaryIO | None = None,
        **callbacks: Any,
    ) -> None:
        from awscrt import http
        from awscrt.s3 import S3RequestType

        split = urlsplit(url)
        all_headers = http.HttpHeaders([("Host", split.netloc), *headers.items()])
        request = http.HttpRequest(method, f"{split.path}?{split.query}", all_headers, body)
        answer_headers: dict[str, str] = {}

        def on_headers(status_code: int, headers: list[tuple[str, str]], **_: Any) -> None:
            answer_headers.update({name.lower(): value for name, value in headers})

        def on_done(error: Exception | None = None, **_: Any) -> None:
            try:
                if error is not None:
                    raise as_client_error(error, operation)
                answer.set_result(result(answer_headers))
            except Exception as failure:
                answer.set_exception(failure)

        callbacks |= {"on_headers": on_headers, "on_done": on_done}
        self._client.make_request(type=S3RequestType.DEFAULT, request=request, operation_name=operation, **callbacks)

    @property
    def _client(self) -> Any:
        with self._lock:
            return self._runtime

    @cached_property
    def _runtime(self) -> Any:
        from awscrt.io import ClientBootstrap, ClientTlsContext, DefaultHostResolver, EventLoopGroup, TlsContextOptions
        from awscrt.s3 import S3Client, S3RequestTlsMode, S3RetryConfig

        loops = EventLoopGroup(min(8, os.cpu_count() or 1))
        secure = urlsplit(self._s3.meta.endpoint_url).scheme == "https"
        tls = None
        if secure and (bundle := os.environ.get("AWS_CA_BUNDLE")):
            tls_options = TlsContextOptions()
            tls_options.override_default_trust_store_from_path(ca_filepath=bundle)
            tls = ClientTlsContext(tls_options).new_connection_options()
        return S3Client(
            bootstrap=ClientBootstrap(loops, DefaultHostResolver(loops)),
            region=self._s3.meta.region_name,
            tls_mode=S3RequestTlsMode.ENABLED if secure else S3RequestTlsMode.DISABLED,
            tls_connection_options=tls,
            retry_config=S3RetryConfig(_RETRIES, _BACKOFF_MS, _BACKOFF_LIMIT_S),
        )


def as_client_error(error: Exception, operation: str) -> Exception:
    """Return the runtime's error as botocore would raise it."""
    status = getattr(error, "status_code", None)
    if status is None or status < 300:
        return HTTPClientError(error=f"{operation}: {error}")
    body = bytes(getattr(error, "body", None) or b"")
    code, message = _CODE.search(body), _MESSAGE.search(body)
    response = {
        "Error": {
            "Code": code.group(1).decode() if code else str(status),
            "Message": message.group(1).decode() if message else str(error),
        },
        "ResponseMetadata": {"HTTPStatusCode": int(status)},
    }
    return ClientError(response, operation)  # type: ignore[arg-type]
