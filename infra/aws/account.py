"""The AWS account we act in: one session, cached clients, and a refusal of foreign credentials."""

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
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
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

TOKEN_PREFIX = "k8s-aws-v1."
TOKEN_SECONDS = 60
"""Validity of the presigned URL; EKS itself lets a token live 15 minutes."""
EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired")
THROTTLED = r"Throttl|RequestLimitExceeded|TooManyRequests|SlowDown"
SERVER = r"InternalFailure|InternalError|ServiceUnavailable|ServerException"
"""Codes, as regular expressions, of refusals that pass by themselves."""
_REFUSED = (
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidSignatureException",
)
"""Of one fault, by service; EC2 says `AuthFailure`, as it does of other things."""
_ABSENT = (NoCredentialsError, PartialCredentialsError, ProfileNotFound, NoAuthTokenError)
_LAPSED = (SSOError, LoginError, TokenRetrievalError, CredentialRetrievalError, RefreshWithMFAUnsupportedError)
_BUSY = re.compile(rf"{THROTTLED}|{SERVER}|Unavailable$|RequestTimeout|ResourceContention|ScalingActivityInProgress")
"""The last two are Auto Scaling's, documented for TerminateInstanceInAutoScalingGroup."""
_KEY = re.compile(r"^KMS\.|^InvalidKMSKey|\bkms:(Decrypt|Encrypt|GenerateDataKey)")
"""Of a refusal, `code: message`, whose cause is the key: S3 passes on what KMS says, EC2 has a word of its own."""
_RENEW = "renew them (for instance `aws sso login`) and run the same command again: it continues"
RETRY_AFTER = timedelta(seconds=30)
_MISSING = ("NotFound", "NoSuch", "DoesNotExist", "404")
_RETRIES = Config(retries={"mode": "standard", "max_attempts": 6}, connect_timeout=5, read_timeout=60)
QUICK = Config(retries={"mode": "standard", "total_max_attempts": 3}, connect_timeout=3, read_timeout=15)
"""For who has other things to look at meanwhile, and asks again by itself."""


_READS = ("Get", "List", "Describe", "Head", "Assume", "BatchGet", "BatchCheck", "Select", "Simulate", "Lookup")
"""Operations whose names begin so change nothing."""
_LEASES = "/leases/"
_LEASE_TRIES = 2


@cache
def _models() -> Any:
    return create_loader()


def s3_config() -> Config:
    """How every client of S3 addresses and signs: at AWS `<bucket>.s3.<region>.amazonaws.com`, version 4.

    By itself botocore presigns for the global endpoint, also where its requests go to the region's: outside us-east-1
    that one redirects as long as a bucket is new, which breaks the signature, and for a region opened after March 2019
    it answers 400 (S3 User Guide, UsingRouting). Version 2 is no longer taken for new buckets.

    An endpoint that the environment names gets its buckets in the path: names below it need not resolve.
    """
    own = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    where = {"addressing_style": "path" if own else "virtual", "us_east_1_regional_endpoint": "regional"}
    return Config(signature_version="s3v4", s3=where)


class Account:
    """Clients of one region; thread-safe."""

    def __init__(self, region: str, tries: Config | None = None) -> None:
        """`tries`: how long each call is waited for and how often it is repeated."""
        self.region, self._tries = region, tries or _RETRIES
        self.heard: Callable[[str, str | None], None] = lambda source, date: None
        """Told who answered, `S3` or `AWS`, and the `Date` of each answer."""
        self.guard: Callable[[], None] | None = None
        """Asked right before each request that changes something, each retry of it too; raises to stop it."""
        # The models of EC2 alone take half a second to read: once per process, whatever the number of accounts.
        underlying = get_session()
        underlying.register_component("data_loader", _models())
        self.session = boto3.Session(region_name=region, botocore_session=underlying)
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()

    def client(self, service: str) -> Any:
        with self._lock:
            if service not in self._clients:
                config = self._tries.merge(s3_config()) if service == "s3" else self._tries
                made = self._clients[service] = self.session.client(service, config=config)
                made.meta.events.register("before-send", self._before_send)
                made.meta.events.register("after-call", self._after_call)
            return self._clients[service]

    def lease_client(self, ttl: timedelta) -> Any:
        """S3 for leases of this life alone: two tries, each with `ttl`/10 to connect and `ttl`/3 for its answer.

        The client for all else waits a minute for an answer, twice the life of a lease: one socket that hangs would
        lose it. Nothing is asked before its requests: each write of a lease is conditional, so it guards itself.
        """
        connect, read = ttl.total_seconds() / 10, ttl.total_seconds() / 3
        quick = Config(
            retries={"mode": "standard", "total_max_attempts": _LEASE_TRIES}, connect_timeout=connect, read_timeout=read
        )
        with self._lock:
            made = self.session.client("s3", config=s3_config().merge(quick))
        made.meta.events.register("after-call", self._after_call)
        return made

    def _before_send(self, event_name: str, request: Any, **_: Any) -> None:
        """A process that was stopped wakes up anywhere, also between a look at its lease and the call behind it."""
        operation = event_name.rpartition(".")[2]
        # Leases guard themselves: each write of one is conditional.
        if self.guard is not None and not operation.startswith(_READS) and _LEASES not in request.url:
            self.guard()

    def _after_call(self, event_name: str, http_response: Any, **_: Any) -> None:
        self.heard("S3" if event_name.split(".")[1] == "s3" else "AWS", http_response.headers.get("date"))

    def identity(self) -> dict[str, str]:
        """`Account` and `Arn` of the credentials.

        Raises `UserError` when there are none, they are refused or expired, and where nothing of AWS can be reached:
        who can do without asks for that.
        """
        try:
            answer = self.client("sts").get_caller_identity()
        except ClientError as error:
            raise refused_credentials(error.response["Error"]["Code"]) from error
        except BotoCoreError as error:
            cure = "check network, proxy and AWS_ENDPOINT_URL, and run the same command again"
            unreached = UserError("AWS cannot be reached", seen=str(error), cure=cure)
            raise without_credentials(error) or unreached from error
        return {"Account": answer["Account"], "Arn": answer["Arn"]}

    def principal(self, arn: str) -> str | None:
        """The IAM principal behind a caller: for an assumed role the role itself, whose path the caller's ARN lacks.

        None when IAM does not say.
        """
        if ":assumed-role/" not in arn:
            return arn
        try:
            return str(self.client("iam").get_role(RoleName=arn.split("/")[1])["Role"]["Arn"])
        except ClientError:
            return None

    def refuse_foreign(self, account: str) -> str:
        """The caller's ARN, if the credentials are for this account; else `UserError`, before anything is touched."""
        identity = self.identity()
        if identity["Account"] != account:
            raise UserError(
                "these credentials are for another account",
                seen=f"{identity['Account']}, the spec says {account}",
                cure="use credentials for the spec's account",
            )
        return identity["Arn"]

    def cluster_token(self, cluster: str) -> str:
        """A bearer token for an EKS cluster: a presigned GetCallerIdentity that names the cluster in a header."""
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
    """Each item of a listing, from all its pages; `operation` is a method of the client, `member` a list in its answer.

    AWS ends a page where it likes, and may leave the first one empty.
    """
    if client.can_paginate(operation):
        for page in client.get_paginator(operation).paginate(**request):
            yield from page.get(member) or ()
        return
    # botocore knows no pages of some listings that have them.
    more = dict[str, str]()
    while True:
        answer = getattr(client, operation)(**request, **more)
        yield from answer.get(member) or ()
        if not answer.get("NextToken"):
            return
        more = {"NextToken": answer["NextToken"]}


def says_missing(error: ClientError) -> bool:
    """Whether AWS says that there is no such thing: each service in words of its own."""
    return any(word in error.response.get("Error", {}).get("Code", "") for word in _MISSING)


def explained(error: Exception) -> BivouacError:
    """What an AWS error that reached the command line means for the person who runs it."""
    if isinstance(error, ClientError):
        code = error.response.get("Error", {}).get("Code", "")
        if code in EXPIRED:
            return UserError("the AWS credentials have expired", seen=code, cure=_RENEW)
        seen = f"{code}: {error.response.get('Error', {}).get('Message', '')}"
        if code in _REFUSED or (code == "AuthFailure" and "credentials" in seen):
            return refused_credentials(seen)
        if _KEY.search(seen):
            return UserError(
                "the KMS key does not serve: what is encrypted with it can be neither read nor written",
                seen=seen,
                cure="enable the key (`aws kms enable-key`) or mend its policy, and run the same command again",
            )
        if _BUSY.search(code):
            cure = "run the same command again: it continues"
            return TemporaryError(f"AWS takes no {error.operation_name} now", seen=seen, delay=RETRY_AFTER, cure=cure)
        return PermanentError(
            f"AWS refused {error.operation_name}",
            seen=seen,
            cure="allow it or mend the cause, and run the same command again: it continues",
        )
    unreached = TemporaryError(
        "AWS or the cluster cannot be reached, or refuses",
        seen=str(error),
        delay=RETRY_AFTER,
        cure="check network, endpoint and credentials, and run the same command again: it continues",
    )
    return without_credentials(error) or unreached


def refused_credentials(seen: str) -> UserError:
    """Of credentials that AWS does not take: unknown, deleted, or signed with another secret."""
    return UserError("AWS refuses the credentials", seen=seen, cure=_RENEW)


class NoCredentials(UserError):
    """The environment names no credentials."""


def without_credentials(error: Exception) -> UserError | None:
    """For an error of botocore's that says that nothing could be signed; None for any other.

    Another try finds no credentials either: whoever runs the command must set or renew them.
    """
    if isinstance(error, _ABSENT):
        cure = "set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        return NoCredentials("there are no AWS credentials, or only half of them", seen=str(error), cure=cure)
    if isinstance(error, _LAPSED):
        return UserError("the AWS credentials cannot be renewed", seen=str(error), cure=_RENEW)
    return None
