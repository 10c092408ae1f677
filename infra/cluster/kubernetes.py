"""The Kubernetes API of the campaign's cluster, from outside (EKS token) or from a pod (service account)."""

from __future__ import annotations

import base64
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx2
from botocore.exceptions import BotoCoreError, ClientError
from lightkube import Client, KubeConfig
from lightkube.config.client_adapter import user_auth, verify_cluster
from lightkube.config.models import Cluster, User
from lightkube.core.decoders import decode_list, decode_status, decode_watch_event
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.authentication_v1 import TokenReview
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import ConfigMap, Event, Node, Pod, Secret

from infra.aws.account import Account
from infra.spec.campaign import Spec
from infra.spec.names import NAMESPACE

Value = TypeVar("Value")
MODELS = (ConfigMap, Deployment, Event, Job, Node, Pod, Secret, TokenReview)
"""Every resource of lightkube that infra uses."""
_lock = threading.Lock()
_ready = False


def prepare_models() -> None:
    """Decode a list of each model once, before threads share a client.

    msgspec builds what it knows of a type when it first decodes it. Two threads that meet in this end the process with
    SIGSEGV (msgspec 0.22.0 under lightkube 1.0.1).
    """
    global _ready
    with _lock:
        if _ready:
            return
        for model in MODELS:
            decode_list(b'{"items": []}', model)
        decode_status(b"{}")
        decode_watch_event(b'{"type": "", "object": {}}')
        _ready = True


JobSet = create_namespaced_resource("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
MPIJob = create_namespaced_resource("kubeflow.org", "v2beta1", "MPIJob", "mpijobs")

TOKEN_RENEWAL_S = 600.0
"""EKS lets a token live 15 minutes."""
OF_WORLD = (ClientError, BotoCoreError, httpx2.HTTPError)
"""Errors of AWS and the API server: `ApiError` and lost connections are `HTTPError`."""
PATIENCE_S = 15.0
"""Per request, for an API server that cannot be reached; botocore waits as long for AWS."""
READS = ("GET", "HEAD", "OPTIONS")


class TokenTransport(httpx2.HTTPTransport):
    """Puts a valid token on every request: a client outlives many tokens.

    It calls the account's guard before each request that changes something, as before each such call to AWS. It repeats
    a request whose connection fails, for up to `PATIENCE_S`: all our writes are idempotent (a second creation answers
    409, a second deletion 404).
    """

    def __init__(self, account: Account, cluster: str, verify: ssl.SSLContext | bool) -> None:
        # Followed logs hold a connection each.
        super().__init__(verify=verify, trust_env=False, limits=httpx2.Limits(max_keepalive_connections=20))
        self._account, self._cluster = account, cluster
        self._token, self._made = "", 0.0
        self._lock = threading.Lock()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        end, pause = time.monotonic() + PATIENCE_S, 0.5
        while True:
            request.headers["Authorization"] = f"Bearer {self._current()}"
            if request.method not in READS and self._account.guard is not None:
                self._account.guard()
            try:
                return super().handle_request(request)
            except httpx2.TransportError:
                if time.monotonic() + pause > end:
                    raise
                time.sleep(pause)
                pause *= 2

    def _current(self) -> str:
        # CLOCK_BOOTTIME goes on while the machine sleeps, and the token ages meanwhile.
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        with self._lock:
            if not self._token or now - self._made > TOKEN_RENEWAL_S:
                self._token, self._made = self._account.cluster_token(self._cluster), now
            return self._token


def kubectl(spec: Spec, words: str) -> str:
    """Return a command line of kubectl for a campaign's cluster, in backticks, for people."""
    if spec.cluster is None:
        return f"`bivouac shell {spec.campaign} -- kubectl {words}`"
    return f"`kubectl --context {spec.cluster.context} -n {spec.cluster.namespace} {words}`"


def from_outside(account: Account, cluster: str) -> Client:
    """Return a client that renews its EKS token as long as the AWS credentials are valid."""
    prepare_models()
    server = _server(account, cluster)
    config = KubeConfig.from_one(cluster=server, user=User(), context_name=cluster)
    transport = _transport(account, cluster, server)
    return Client(config=config, namespace=NAMESPACE, field_manager="bivouac", trust_env=False, transport=transport)


def streams_from_outside(account: Account, cluster: str) -> httpx2.Client:
    """Return an HTTP client for what lightkube has no interactive call for: commands in pods, and logs by position."""
    server = _server(account, cluster)
    return httpx2.Client(
        base_url=server.server, transport=_transport(account, cluster, server), timeout=PATIENCE_S, trust_env=False
    )


def _server(account: Account, cluster: str) -> Cluster:
    description = account.client("eks").describe_cluster(name=cluster)["cluster"]
    return Cluster(server=description["endpoint"], certificate_auth_data=description["certificateAuthority"]["data"])


def _transport(account: Account, cluster: str, server: Cluster) -> TokenTransport:
    return TokenTransport(account, cluster, verify_cluster(server, User(), lambda path: path, trust_env=False))


class DatedTransport(httpx2.HTTPTransport):
    """Passes on the `Date` of each answer: the API server's clock is a witness of the time."""

    def __init__(self, verify: ssl.SSLContext | bool, on_date: Callable[[str, str | None], None]) -> None:
        super().__init__(verify=verify, trust_env=False)
        self._heard = on_date

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = super().handle_request(request)
        self._heard("Kubernetes", answer.headers.get("date"))
        return answer


def from_pod(on_date: Callable[[str, str | None], None]) -> Client:
    """Return a client of the pod's own cluster, as its account and in its namespace; `on_date`: see
    `DatedTransport`."""
    prepare_models()
    config = KubeConfig.from_service_account().get()
    assert config is not None, "made from one cluster and one user"
    verify = verify_cluster(config.cluster, config.user or User(), config.abs_file, trust_env=False)
    transport = DatedTransport(verify, on_date)
    return Client(config=config, field_manager="bivouac-steward", trust_env=False, transport=transport)


def followers_of(client: Client) -> httpx2.Client:
    """Return an HTTP client to follow logs, one connection per pod, apart from those that the decisions need."""
    config = client.config
    user = config.user or User()
    return httpx2.Client(
        base_url=config.cluster.server,
        auth=user_auth(user),
        verify=verify_cluster(config.cluster, user, config.abs_file, trust_env=False),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
        timeout=PATIENCE_S,
        trust_env=False,
    )


def kubeconfig(account: Account, cluster: str) -> dict[str, object]:
    """Return a kubeconfig that gets each token from `bivouac token`; it holds no secret."""
    server = _server(account, cluster)
    certificate = str(server.certificate_auth_data)
    base64.b64decode(certificate, validate=True)
    command = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "bivouac",
        "args": ["token", "--cluster", cluster, "--region", account.region],
        "interactiveMode": "Never",
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": cluster,
        "clusters": [
            {"name": cluster, "cluster": {"server": server.server, "certificate-authority-data": certificate}}
        ],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": cluster, "namespace": NAMESPACE}}],
        "users": [{"name": cluster, "user": {"exec": command}}],
    }


def may_pass(error: httpx2.HTTPError) -> bool:
    """Return whether a later try may succeed: no answer, or the server is overloaded or restarting."""
    if isinstance(error, httpx2.HTTPStatusError):
        code = error.response.status_code if error.response is not None else 0
        return code == 429 or code >= 500
    return isinstance(error, httpx2.TransportError)


def is_gone(error: ApiError) -> bool:
    return error.status.code == 404


def or_none(act: Callable[[], Value]) -> Value | None:
    """Return None if the object does not exist."""
    try:
        return act()
    except ApiError as error:
        if not is_gone(error):
            raise
        return None


def create(client: Client, resource: Any, replace: bool = False) -> None:
    """Create an object. One of its name stays as it is, or is replaced."""
    try:
        client.create(resource)
    except ApiError as error:
        if error.status.code != 409:
            raise
        if replace:
            client.replace(resource)
