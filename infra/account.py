"""The AWS account we act in: one session, cached clients, and a refusal of foreign credentials."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.loaders import create_loader
from botocore.session import get_session
from botocore.signers import RequestSigner

from infra.errors import BivouacError, PermanentError, TemporaryError, UserError

TOKEN_PREFIX = "k8s-aws-v1."
TOKEN_SECONDS = 60
"""Validity of the presigned URL; EKS itself lets a token live 15 minutes."""
EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired")
RETRY_AFTER = timedelta(seconds=30)
_RETRIES = Config(retries={"mode": "standard", "max_attempts": 6}, connect_timeout=5, read_timeout=60)
_SIGNED = {"s3": Config(signature_version="s3v4")}
"""Presigned requests would else have version 2 in some regions, which S3 no longer takes for new buckets."""


_READS = ("Get", "List", "Describe", "Head", "Assume", "BatchGet", "BatchCheck", "Select", "Simulate", "Lookup")
"""Operations whose names begin so change nothing."""
_LEASES = "/leases/"
_LEASE_TRIES = 2


@cache
def _models() -> Any:
    return create_loader()


class Account:
    """Clients of one region; thread-safe."""

    def __init__(self, region: str) -> None:
        self.region = region
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
                config = _RETRIES.merge(_SIGNED.get(service, Config()))
                made = self._clients[service] = self.session.client(service, config=config)
                made.meta.events.register("before-send", self._before_send)
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
            return self.session.client("s3", config=_SIGNED["s3"].merge(quick))

    def _before_send(self, event_name: str, request: Any, **_: Any) -> None:
        """A process that was stopped wakes up anywhere, also between a look at its lease and the call behind it."""
        operation = event_name.rpartition(".")[2]
        # Leases guard themselves: each write of one is conditional.
        if self.guard is not None and not operation.startswith(_READS) and _LEASES not in request.url:
            self.guard()

    def identity(self) -> dict[str, str]:
        """`Account` and `Arn` of the credentials. Raises `UserError` when there are none or they are expired."""
        try:
            answer = self.client("sts").get_caller_identity()
        except ClientError as error:
            cure = "renew them (for instance `aws sso login`) and run the same command again: it continues"
            raise UserError("AWS refuses the credentials", seen=error.response["Error"]["Code"], cure=cure) from error
        except BotoCoreError as error:
            cure = "set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            raise UserError("AWS cannot be reached or there are no credentials", seen=str(error), cure=cure) from error
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


def explained(error: Exception) -> BivouacError:
    """What an AWS error that reached the command line means for the person who runs it."""
    if isinstance(error, ClientError):
        code = error.response.get("Error", {}).get("Code", "")
        if code in EXPIRED:
            cure = "renew them (for instance `aws sso login`) and run the same command again: it continues"
            return UserError("the AWS credentials have expired", seen=code, cure=cure)
        return PermanentError(
            f"AWS refused {error.operation_name}",
            seen=f"{code}: {error.response.get('Error', {}).get('Message', '')}",
            cure="allow it or mend the cause, and run the same command again: it continues",
        )
    return TemporaryError(
        "AWS or the cluster cannot be reached, or refuses",
        seen=str(error),
        delay=RETRY_AFTER,
        cure="check network, endpoint and credentials, and run the same command again: it continues",
    )
