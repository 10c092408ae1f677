"""boto3 clients, cached per service and region: creating one takes up to half a second."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from typing import Any

from infra.rehearsal.plugins.package import OperationFailed
from infra.rehearsal.plugins.wire import Props


class Clients:
    """Clients with the credentials and region of the provider's configuration, or of the environment."""

    def __init__(self, config: Props) -> None:
        self._config = config
        self._made: dict[tuple[str, str], Any] = {}
        self._locks: dict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)
        self._session_lock = threading.Lock()
        self._session: Any = None
        self._account = ""

    @property
    def region(self) -> str:
        region = self._config.get("region") or os.environ.get("AWS_REGION") or self.session().region_name
        if not region:
            raise OperationFailed("no region is configured; cure: give the provider a `region`, or set AWS_REGION")
        return str(region)

    @property
    def account(self) -> str:
        if not self._account:
            self._account = self.get("sts").get_caller_identity()["Account"]
        return self._account

    def session(self) -> Any:
        with self._session_lock:
            if self._session is None:
                import boto3

                self._session = boto3.Session(
                    aws_access_key_id=self._config.get("accessKey"),
                    aws_secret_access_key=self._config.get("secretKey"),
                    aws_session_token=self._config.get("token"),
                    profile_name=self._config.get("profile"),
                )
            return self._session

    def get(self, service: str, region: str | None = None) -> Any:
        key = (service, region or self.region)
        with self._locks[key]:
            if key not in self._made:
                self._made[key] = self._make(*key)
            return self._made[key]

    def _make(self, service: str, region: str) -> Any:
        from botocore.config import Config

        settings = Config(
            retries={"mode": "standard", "max_attempts": int(self._config.get("maxRetries") or 10)},
            max_pool_connections=32,
            connect_timeout=5,
            read_timeout=60,
            s3={"addressing_style": "path"} if self._config.get("s3UsePathStyle") else None,
        )
        session = self.session()
        endpoint = self._endpoint(service)
        with self._session_lock:
            return session.client(service, region_name=region, endpoint_url=endpoint, config=settings)

    def _endpoint(self, service: str) -> str | None:
        """Return a service's URL in `endpoints`; without an entry boto3 reads AWS_ENDPOINT_URL itself."""
        for endpoints in self._config.get("endpoints") or []:
            if endpoints.get(service):
                return str(endpoints[service])
        return None
