"""Signature version 4 on the server's side, in a header or a presigned URL."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, quote, unquote

from botocore.utils import normalize_url_path

from infra.rehearsal.aws.operations import AwsError

CLOCK_SKEW = timedelta(minutes=15)
UNSIGNED = "UNSIGNED-PAYLOAD"


@dataclass(frozen=True)
class Message:
    """An HTTP request as received: raw path, raw query, header names in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body_hash: str = ""
    """Hexadecimal SHA-256; for S3 the value of the header x-amz-content-sha256."""


@dataclass(frozen=True)
class Signature:
    """A request's claims: the signer, the signed headers, time and service."""

    access_key: str
    scope: str
    region: str
    service: str
    signed_headers: tuple[str, ...]
    value: str
    time: str
    token: str | None
    expires: timedelta | None
    """Lifetime of a presigned URL."""


def read_signature(message: Message) -> Signature | None:
    """Return None for an unsigned request. Raises AwsError if the signature cannot be read."""
    header = message.headers.get("authorization", "")
    query = dict(parse_qsl(message.query, keep_blank_values=True))
    try:
        if header.startswith("AWS4-HMAC-SHA256"):
            parts = dict(
                part.strip().partition("=")[::2] for part in header.removeprefix("AWS4-HMAC-SHA256").split(",")
            )
            key, scope, value = parts["Credential"], parts["SignedHeaders"], parts["Signature"]
            time, token = message.headers["x-amz-date"], message.headers.get("x-amz-security-token")
            expires = None
        elif "X-Amz-Signature" in query:
            key, scope, value = query["X-Amz-Credential"], query["X-Amz-SignedHeaders"], query["X-Amz-Signature"]
            time, token = query["X-Amz-Date"], query.get("X-Amz-Security-Token")
            expires = timedelta(seconds=int(query["X-Amz-Expires"]))
        else:
            return None
        access_key, date, region, service, _ = key.split("/")
    except (KeyError, ValueError) as error:
        raise AwsError("IncompleteSignature", f"the signature cannot be read: {error}") from error
    header_names = tuple(scope.split(";"))
    return Signature(
        access_key,
        f"{date}/{region}/{service}/aws4_request",
        region,
        service,
        header_names,
        value,
        time,
        token,
        expires,
    )


def check_signature(message: Message, signature: Signature, secret: str, lifetime: timedelta | None = None) -> None:
    """Raise AwsError SignatureDoesNotMatch, ExpiredToken or RequestTimeTooSkewed."""
    now = datetime.now(UTC)
    signed_at = datetime.strptime(signature.time, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    if signature.expires is not None and now > signed_at + (lifetime or signature.expires):
        raise AwsError("ExpiredToken", "the presigned URL has expired")
    if signature.expires is None and abs(now - signed_at) > CLOCK_SKEW:
        raise AwsError("RequestTimeTooSkewed", f"signed at {signed_at.isoformat()}, received at {now.isoformat()}")
    if not hmac.compare_digest(_sign(message, signature, secret), signature.value):
        raise AwsError("SignatureDoesNotMatch", "the request signature does not match the signature provided")


def _sign(message: Message, signature: Signature, secret: str) -> str:
    to_sign = "\n".join(
        (
            "AWS4-HMAC-SHA256",
            signature.time,
            signature.scope,
            hashlib.sha256(_canonical(message, signature).encode()).hexdigest(),
        )
    )
    key = ("AWS4" + secret).encode()
    for part in signature.scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()


def _canonical(message: Message, signature: Signature) -> str:
    # S3 signs the path as sent; every other service normalises it and encodes it once more.
    path = message.path if signature.service == "s3" else quote(normalize_url_path(message.path), safe="/~")
    pairs = []
    for item in filter(None, message.query.split("&")):
        name, _, value = item.partition("=")
        if name != "X-Amz-Signature":
            pairs.append((quote(unquote(name), safe="-_.~"), quote(unquote(value), safe="-_.~")))
    query = "&".join(f"{name}={value}" for name, value in sorted(pairs))
    headers = "".join(
        f"{name}:{' '.join(message.headers.get(name, '').split())}\n" for name in signature.signed_headers
    )
    is_presigned = signature.expires is not None and signature.service == "s3"
    body_hash = UNSIGNED if is_presigned else message.body_hash
    return "\n".join((message.method, path, query, headers, ";".join(signature.signed_headers), body_hash))
