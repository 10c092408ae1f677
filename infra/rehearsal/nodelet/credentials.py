"""The instance role's credentials: STS issues them to the emulator's principal, as EC2 does for IMDS."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from infra.errors import PermanentError, TemporaryError
from infra.rehearsal.nodelet.machine import MachineConfig

RENEW_BEFORE = timedelta(minutes=15)
RETRY = timedelta(seconds=2)


@dataclass(frozen=True)
class Credentials:
    access_key: str
    secret_key: str
    token: str
    expires: datetime


class RoleCredentials:
    """One role session per machine, named after its instance ID; thread-safe."""

    def __init__(self, config: MachineConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._held: Credentials | None = None
        self._clients: dict[str, Any] = {}
        self._agents: dict[str, Any] = {}

    def current(self) -> Credentials:
        """Return credentials. Raises PermanentError without a role or if STS refuses, TemporaryError if it is away."""
        with self._lock:
            if self._held is None or self._held.expires - datetime.now(UTC) < RENEW_BEFORE:
                self._held = self._mint()
                self._clients.clear()
            return self._held

    def client(self, service: str) -> Any:
        session = self.current()
        with self._lock:
            if service not in self._clients:
                self._clients[service] = self._make(service, session.access_key, session.secret_key, session.token)
            return self._clients[service]

    def agent_client(self, service: str) -> Any:
        """Return a boto3 client of the emulator's own principal, for the control plane's part of the work."""
        with self._lock:
            if service not in self._agents:
                self._agents[service] = self._make(service, *self._config.agent_key)
            return self._agents[service]

    def session(self, service: str, key: str, secret: str, token: str) -> Any:
        """Return a boto3 client of somebody's session."""
        return self._make(service, key, secret, token)

    def _make(self, service: str, key: str, secret: str, token: str | None = None) -> Any:
        session = boto3.Session(key, secret, token, region_name=self._config.region)
        return session.client(service, endpoint_url=self._config.endpoint_url)

    def _mint(self) -> Credentials:
        if not self._config.role_arn:
            raise PermanentError("the instance has no role", cure="give it an instance profile")
        sts = self._make("sts", *self._config.agent_key)
        try:
            answer = sts.assume_role(RoleArn=self._config.role_arn, RoleSessionName=self._config.instance_id)
        except ClientError as error:
            raise PermanentError("STS refuses the instance role", seen=error, cure="see its trust policy") from error
        except BotoCoreError as error:
            raise TemporaryError("STS does not answer", seen=error, delay=RETRY) from error
        credentials = answer["Credentials"]
        return Credentials(
            credentials["AccessKeyId"],
            credentials["SecretAccessKey"],
            credentials["SessionToken"],
            credentials["Expiration"].astimezone(UTC),
        )
