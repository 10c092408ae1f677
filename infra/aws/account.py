"""The AWS account: one session, cached clients, and a refusal of foreign credentials."""

from __future__ import annotations

import base64
import os
import re
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from typing import Any

import boto3
from botocore.config import Config
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    LoginError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    RefreshWithMFAUnsupportedError,
    SSOError,
    TokenRetrievalError,
)
from botocore.loaders import create_loader
from botocore.session import get_session
from botocore.signers import RequestSigner

from infra.errors import BivouacError, PermanentError, TemporaryError, UserError

S3_STYLE = "BIVOUAC_S3_STYLE"
"""Variable of pods: `virtual` if their S3 at an endpoint of its own expects the bucket in the host's name."""
TOKEN_PREFIX = "k8s-aws-v1."
TOKEN_SECONDS = 60
"""Validity of the presigned URL; EKS accepts a token for 15 minutes."""
EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired")
THROTTLED = r"Throttl|RequestLimitExceeded|TooManyRequests|SlowDown"
SERVER = r"InternalFailure|InternalError|ServiceUnavailable|ServerException|^50[0234]$|\(50[0234]\)"
"""Regular expressions for error codes of temporary refusals; botocore gives a page of a proxy its status as code."""
_REFUSED = (
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidSignatureException",
)
"""Codes of invalid credentials, by service. EC2's `AuthFailure` has other causes too."""
_ABSENT = (NoCredentialsError, PartialCredentialsError, ProfileNotFound, NoAuthTokenError)
_LAPSED = (SSOError, LoginError, TokenRetrievalError, CredentialRetrievalError, RefreshWithMFAUnsupportedError)
_BUSY = re.compile(rf"{THROTTLED}|{SERVER}|Unavailable$|RequestTimeout|ResourceContention|ScalingActivityInProgress")
"""Codes of a busy service. Auto Scaling documents the last two for TerminateInstanceInAutoScalingGroup."""
_KEY = re.compile(r"^KMS\.|^InvalidKMSKey|\bkms:(Decrypt|Encrypt|GenerateDataKey)")
"""Refusals (`code: message`) caused by the KMS key: S3 passes on KMS's code, EC2 has its own."""
_DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")
ASK_THE_ORGANIZATION = "ask who administers the AWS organization: its policy denies this to the whole account"
_RENEW = "renew them (for instance `aws sso login`) and run the same command again: it continues"
RETRY_AFTER = timedelta(seconds=30)
_MISSING = ("NotFound", "NoSuch", "DoesNotExist", "404")
_RETRIES = Config(retries={"mode": "standard", "max_attempts": 6}, connect_timeout=5, read_timeout=60)
QUICK = Config(retries={"mode": "standard", "total_max_attempts": 3}, connect_timeout=3, read_timeout=15)
"""For callers with other work, which repeat their requests themselves."""


_READS = ("Get", "List", "Describe", "Head", "Assume", "BatchGet", "BatchCheck", "Select", "Simulate", "Lookup")
"""Prefixes of operations that change nothing."""
_PAGE = re.compile(rb"\s*<(!doctype\s+)?html", re.IGNORECASE)
_FAILED = 500
_LEASES = "/leases/"
_LEASE_TRIES = 2


@cache
def _models() -> Any:
    return create_loader()


def s3_config() -> Config:
    """Return addressing and signature of every S3 client: `<bucket>.s3.<region>.amazonaws.com` at AWS, version 4.

    By default botocore presigns for the global endpoint even if its requests use the region's. Outside us-east-1 that
    endpoint redirects while a bucket is new, which breaks the signature, and answers 400 for regions opened after March
    2019 (S3 User Guide, UsingRouting). Signature version 2 is not accepted for new buckets.

    With an endpoint from the environment the bucket is in the path, since names below the endpoint need not resolve,
    unless `S3_STYLE` says otherwise.
    """
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    style = os.environ.get(S3_STYLE) or ("path" if endpoint else "virtual")
    options = {"addressing_style": style, "us_east_1_regional_endpoint": "regional"}
    return Config(signature_version="s3v4", s3=options)


def _without_page(event_name: str, response_dict: dict[str, Any], **_: Any) -> None:
    """Turn a web page in place of an answer, such as a proxy's, into an error that botocore knows and may retry.

    botocore takes only a page that begins with `<html>` for a failure. Others raise `ResponseParserError`, which is no
    `BotoCoreError`. Raises `HTTPClientError` for a page with a status below 500.
    """
    body, status = response_dict.get("body"), response_dict["status_code"]
    if not isinstance(body, bytes) or not _PAGE.match(body):
        return
    if status < _FAILED:
        operation = event_name.partition(".")[2]
        raise HTTPClientError(error=f"{operation} was answered with a web page and status {status}, not by AWS")
    response_dict["body"] = b""


class Account:
    """Clients of one region; thread-safe."""

    webhook = ""
    """Address of the webhook that stands beside an existing cluster's login; empty for an account of AWS."""

    def __init__(self, region: str, tries: Config | None = None) -> None:
        """`tries`: timeouts and number of tries of each call."""
        self.region, self._tries = region, tries or _RETRIES
        self.heard: Callable[[str, str | None], None] = lambda source, date: None
        """Receives the source of each answer, `S3` or `AWS`, and its `Date`."""
        self.guard: Callable[[], None] | None = None
        """Called before each mutating request and each of its retries; raises to prevent it."""
        # EC2's models alone take half a second to read: once per process for all accounts.
        underlying = get_session()
        underlying.register_component("data_loader", _models())
        self.session = boto3.Session(region_name=region, botocore_session=underlying)
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()

    def client(self, service: str) -> Any:
        with self._lock:
            if service not in self._clients:
                config = self._tries.merge(self._s3_config()) if service == "s3" else self._tries
                new_client = self._clients[service] = self._made(service, config)
                new_client.meta.events.register("before-send", self._before_send)
                new_client.meta.events.register("before-parse", _without_page)
                new_client.meta.events.register("after-call", self._after_call)
            return self._clients[service]

    def lease_client(self, ttl: timedelta) -> Any:
        """Return an S3 client for leases of duration `ttl`: two tries, each with `ttl`/10 to connect, `ttl`/3 to read.

        The usual client waits a minute for an answer, twice the duration of a lease: one hung socket would lose it. The
        guard is not called before its requests, since every write of a lease is conditional.
        """
        connect, read = ttl.total_seconds() / 10, ttl.total_seconds() / 3
        quick = Config(
            retries={"mode": "standard", "total_max_attempts": _LEASE_TRIES}, connect_timeout=connect, read_timeout=read
        )
        with self._lock:
            client = self._made("s3", self._s3_config().merge(quick))
        client.meta.events.register("before-parse", _without_page)
        client.meta.events.register("after-call", self._after_call)
        return client

    def _made(self, service: str, config: Config) -> Any:
        return self.session.client(service, config=config)

    def _s3_config(self) -> Config:
        return s3_config()

    def _before_send(self, event_name: str, request: Any, **_: Any) -> None:
        """Call the guard as late as possible: a stopped process may continue between its lease check and the call."""
        operation = event_name.rpartition(".")[2]
        # Leases need no guard: each of their writes is conditional.
        if self.guard is not None and not operation.startswith(_READS) and _LEASES not in request.url:
            self.guard()

    def _after_call(self, event_name: str, http_response: Any, **_: Any) -> None:
        self.heard("S3" if event_name.split(".")[1] == "s3" else "AWS", http_response.headers.get("date"))

    def identity(self) -> dict[str, str]:
        """Return `Account` and `Arn` of the credentials.

        Raises `UserError` if they are absent, refused or expired, or if AWS cannot be reached.
        """
        try:
            answer = self.client("sts").get_caller_identity()
        except ClientError as error:
            raise refused_credentials(error.response["Error"]["Code"]) from error
        except BotoCoreError as error:
            cure = "check network, proxy and AWS_ENDPOINT_URL, and run the same command again"
            refusal = UserError("AWS cannot be reached", seen=str(error), cure=cure)
            raise without_credentials(error) or refusal from error
        return {"Account": answer["Account"], "Arn": answer["Arn"]}

    def ends_by_itself(self) -> bool:
        """Return True for credentials that expire and that nobody renews: a session's, given as they are."""
        credentials = self.session.get_credentials()
        return bool(credentials and credentials.token) and not isinstance(credentials, RefreshableCredentials)

    def principal(self, arn: str) -> str | None:
        """Return the IAM principal of a caller. An assumed role's caller ARN lacks the role's path, so IAM is asked.

        None if IAM refuses.
        """
        if ":assumed-role/" not in arn:
            return arn
        try:
            return str(self.client("iam").get_role(RoleName=arn.split("/")[1])["Role"]["Arn"])
        except ClientError:
            return None

    def refuse_foreign(self, account: str) -> str:
        """Return the caller's ARN; raise `UserError` if the credentials are for another account."""
        identity = self.identity()
        if identity["Account"] != account:
            raise UserError(
                "these credentials are for another account",
                seen=f"{identity['Account']}, the spec says {account}",
                cure="use credentials for the spec's account",
            )
        return identity["Arn"]

    def cluster_token(self, cluster: str) -> str:
        """Return an EKS bearer token: a presigned GetCallerIdentity with the cluster's name in a header."""
        client = self.session.client("sts", region_name=self.region)
        signer = RequestSigner(
            client.meta.service_model.service_id,
            self.region,
            "sts",
            "v4",
            self.session.get_credentials(),
            self.session.events,
        )
        url = signer.generate_presigned_url(
            {
                "method": "GET",
                "url": f"{client.meta.endpoint_url}/?Action=GetCallerIdentity&Version=2011-06-15",
                "body": {},
                "headers": {"x-k8s-aws-id": cluster},
                "context": {},
            },
            region_name=self.region,
            expires_in=TOKEN_SECONDS,
            operation_name="",
        )
        return TOKEN_PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def every(client: Any, operation: str, member: str, **request: Any) -> Iterator[Any]:
    """Yield each item of a listing from all pages; `operation` is a client method, `member` a list in its answer.

    AWS ends a page anywhere and may leave the first one empty.
    """
    if client.can_paginate(operation):
        for page in client.get_paginator(operation).paginate(**request):
            yield from page.get(member) or ()
        return
    # botocore has no paginator for some listings with pages.
    next_page = dict[str, str]()
    while True:
        answer = getattr(client, operation)(**request, **next_page)
        yield from answer.get(member) or ()
        if not answer.get("NextToken"):
            return
        next_page = {"NextToken": answer["NextToken"]}


def says_missing(error: ClientError) -> bool:
    """Return True if AWS answers that the resource does not exist; the codes differ by service."""
    return any(word in error.response.get("Error", {}).get("Code", "") for word in _MISSING)


def says_denied(error: ClientError) -> bool:
    """Return True if AWS answers that the caller may not do it."""
    return error.response.get("Error", {}).get("Code", "") in _DENIED


def explained(error: Exception) -> BivouacError:
    """Return an AWS error as one with a cure, for the person who runs the command."""
    if isinstance(error, ClientError):
        code = error.response.get("Error", {}).get("Code", "")
        if code in EXPIRED:
            return UserError("the AWS credentials have expired", seen=code, cure=_RENEW)
        detail = f"{code}: {error.response.get('Error', {}).get('Message', '')}"
        if code in _REFUSED or (code == "AuthFailure" and "credentials" in detail):
            return refused_credentials(detail)
        if _KEY.search(detail):
            return UserError(
                "the KMS key cannot be used: data encrypted with it can be neither read nor written",
                seen=detail,
                cure="enable the key (`aws kms enable-key`) or correct its policy, and run the same command again",
            )
        if _BUSY.search(code):
            cure = "run the same command again: it continues"
            return TemporaryError(f"AWS refuses {error.operation_name} now", seen=detail, delay=RETRY_AFTER, cure=cure)
        mend = "allow it or correct the cause"
        if says_denied(error):
            mend = "use credentials that may do it; infra/ci/README.md says which policy is enough for which command"
        if "control policy" in detail:
            mend = ASK_THE_ORGANIZATION
        return PermanentError(
            f"AWS refused {error.operation_name}",
            seen=detail,
            cure=f"{mend}, and run the same command again: it continues",
        )
    refusal = TemporaryError(
        "AWS or the cluster cannot be reached, or refuses",
        seen=str(error),
        delay=RETRY_AFTER,
        cure="check network, endpoint and credentials, and run the same command again: it continues",
    )
    return without_credentials(error) or refusal


def refused_credentials(detail: str) -> UserError:
    """Return the error for credentials that AWS refuses: unknown, deleted, or signed with another secret."""
    return UserError("AWS refuses the credentials", seen=detail, cure=_RENEW)


class NoCredentials(UserError):
    """The environment names no credentials."""


def without_credentials(error: Exception) -> UserError | None:
    """Return the error if botocore found no usable credentials; None for any other error.

    A retry cannot help: a person must set or renew the credentials.
    """
    if isinstance(error, _ABSENT):
        cure = "set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        return NoCredentials("there are no AWS credentials, or they are incomplete", seen=str(error), cure=cure)
    if isinstance(error, _LAPSED):
        return UserError("the AWS credentials cannot be renewed", seen=str(error), cure=_RENEW)
    return None
