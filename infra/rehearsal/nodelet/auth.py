"""EKS's bearer token: a presigned sts:GetCallerIdentity that names the cluster.

https://github.com/kubernetes-sigs/aws-iam-authenticator#api-authorization-from-outside-a-cluster
"""

from __future__ import annotations

import base64
import threading
import time

from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as SigningKey

from infra.rehearsal.nodelet.credentials import RoleCredentials

PREFIX = "k8s-aws-v1."
RENEW_AFTER_S = 600.0
"""The authenticator accepts a token for 15 minutes after its date, whatever its URL says."""
EXPIRES_S = 60


class EksTokens:
    """Tokens of one machine for one cluster, renewed well before they expire."""

    def __init__(self, cluster: str, credentials: RoleCredentials, endpoint_url: str, region: str) -> None:
        self._cluster, self._credentials = cluster, credentials
        self._endpoint_url, self._region = endpoint_url.rstrip("/"), region
        self._lock = threading.Lock()
        self._token, self._made = "", 0.0

    def token(self) -> str:
        with self._lock:
            if not self._token or time.monotonic() - self._made > RENEW_AFTER_S:
                self._token, self._made = self._sign(), time.monotonic()
            return self._token

    def forget(self) -> None:
        """Discard the token after a 401, so that the next one is signed afresh."""
        with self._lock:
            self._token = ""

    def _sign(self) -> str:
        session = self._credentials.current()
        query = {"Action": "GetCallerIdentity", "Version": "2011-06-15"}
        request = AWSRequest("GET", f"{self._endpoint_url}/", {"x-k8s-aws-id": self._cluster}, params=query)
        key = SigningKey(session.access_key, session.secret_key, session.token)
        SigV4QueryAuth(key, "sts", self._region, expires=EXPIRES_S).add_auth(request)
        url = request.prepare().url
        return PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")
