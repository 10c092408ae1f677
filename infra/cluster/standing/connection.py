"""The driver's connections to an existing cluster and to its S3, which stand in the place of an AWS account."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import boto3
import httpx2
import yaml
from botocore.config import Config
from lightkube import Client, KubeConfig
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.resources.authentication_v1 import SelfSubjectReview
from lightkube.resources.core_v1 import Secret

from infra.aws.account import Account
from infra.cluster.kubernetes import PATIENCE_S, from_outside, prepare_models
from infra.errors import PermanentError, UserError
from infra.spec.campaign import Spec
from infra.spec.names import Names
from infra.spec.standing import WEBHOOK_KEY, StandingCluster, StandingS3

LOGIN_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
"""Keys of the Secret with the login to S3."""
_DEFAULT_CONFIG = "~/.kube/config"
UNKNOWN = 401
"""Status of an answer to a login that is not known."""


def connect(cluster: StandingCluster, *, dry_run: bool = False) -> Client:
    """Return a client of the spec's context, in its namespace. `dry_run`: the server makes nothing.

    Raises `UserError` if no kubeconfig has the context.
    """
    prepare_models()
    files = [Path(name).expanduser() for name in _config_files()]
    contexts: list[str] = []
    for file in files:
        try:
            config = KubeConfig.from_file(file)
        except ConfigError:
            continue  # kubectl passes over a file that is not there, too
        except (OSError, yaml.YAMLError, LookupError, TypeError, ValueError) as error:
            raise UserError("the kubeconfig cannot be read", seen=f"{file}: {error}", cure="mend it") from error
        if cluster.context in config.contexts:
            return _client(config, cluster, dry_run)
        contexts += config.contexts
    raise UserError(
        "no kubeconfig has the context of cluster.context",
        seen=f"{cluster.context}; in {', '.join(map(str, files))}: {', '.join(contexts) or 'none'}",
        cure="write one that `kubectl config get-contexts` shows, or set KUBECONFIG",
    )


def _config_files() -> list[str]:
    return [name for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name] or [_DEFAULT_CONFIG]


def _client(config: KubeConfig, cluster: StandingCluster, dry_run: bool) -> Client:
    try:
        single = config.get(context_name=cluster.context)
        timeout = httpx2.Timeout(PATIENCE_S)
        return Client(
            config=single, namespace=cluster.namespace, field_manager="bivouac", timeout=timeout, dry_run=dry_run
        )
    except (ConfigError, OSError, LookupError, ValueError) as error:
        cure = f"mend it until `kubectl --context {cluster.context} get pods` works"
        raise UserError("the context cannot be used", seen=f"{cluster.context}: {error}", cure=cure) from error


def login_of(client: Client, place: StandingS3) -> dict[str, str]:
    """Return the login to S3 by the Secret's keys, and the webhook's address, without those that it lacks. Raises
    `ApiError`."""
    data = client.get(Secret, place.secret).data or {}
    return {key: base64.b64decode(data[key]).decode() for key in (*LOGIN_KEYS, WEBHOOK_KEY) if data.get(key)}


def user_of(client: Client, cluster: StandingCluster) -> str:
    """Return the name by which the API server knows this login. Raises `UserError` if it knows none, or is silent."""
    try:
        review = client.create(SelfSubjectReview())
    except ApiError as error:
        if error.status.code != UNKNOWN:
            raise
        cure = f"log in until `kubectl --context {cluster.context} auth whoami` works"
        raise UserError("the cluster does not know this login", seen=error.status.message, cure=cure) from error
    except httpx2.TransportError as error:
        cure = f"see that `kubectl --context {cluster.context} version` works: network, VPN, proxy"
        raise UserError("the cluster does not answer", seen=f"{cluster.context}: {error}", cure=cure) from error
    user = review.status.userInfo if review.status else None
    return (user.username if user else None) or "nobody"


class StandingAccount(Account):
    """The S3 of a spec's cluster, in the place of an AWS account. No other service can be asked through it."""

    def __init__(self, place: StandingS3, login: dict[str, str]) -> None:
        """Raises `UserError` without the whole login, or without the file of the service's CA."""
        super().__init__(place.region)
        self._place = place
        if lacking := [key for key in LOGIN_KEYS if key not in login]:
            cure = "make the Secret of cluster.s3.secret anew, as docs/kubernetes.md shows"
            raise UserError("the login to S3 is not whole", seen=f"{place.secret} has no {lacking[0]}", cure=cure)
        key, secret = (login[name] for name in LOGIN_KEYS)
        self.session = boto3.Session(key, secret, region_name=place.region)
        self._ca = _ca_file(place)

    def _made(self, service: str, config: Config) -> Any:
        if service != "s3":
            raise PermanentError(
                "AWS was to be asked about a campaign in an existing cluster",
                seen=service,
                cure="this is a fault of Bivouac: report it, with the command",
            )
        return self.session.client(service, config=config, endpoint_url=self._place.endpoint, verify=self._ca)

    def _s3_config(self) -> Config:
        style = "path" if self._place.path_style else "virtual"
        return Config(signature_version="s3v4", s3={"addressing_style": style})


def open_account(spec: Spec) -> tuple[Account, str]:
    """Return where a campaign's record lies, and who we are there: the spec's AWS account, or the S3 of its cluster.

    Raises `UserError` for credentials of another account, and for a login that the cluster does not know.
    """
    if spec.cluster is None:
        account = Account(spec.region)
        return account, account.refuse_foreign(spec.account)
    client = connect(spec.cluster)
    user = user_of(client, spec.cluster)
    place = spec.cluster.s3
    try:
        login = login_of(client, place)
    except ApiError as error:
        cure = "let an admin make the Secret, or apply what `bivouac grant` prints"
        raise UserError("the login to S3 cannot be read", seen=error.status.message, cure=cure) from error
    if WEBHOOK_KEY in login:
        os.environ[WEBHOOK_KEY] = login[WEBHOOK_KEY]  # as pods with this Secret have it
    return StandingAccount(place, login), user


def client_of(spec: Spec, account: Account) -> Client:
    """Return a client of the campaign's cluster and namespace: its own, or the spec's."""
    if spec.cluster is None:
        return from_outside(account, Names(spec.campaign).cluster)
    return connect(spec.cluster)


def s3_client(place: StandingS3, login: dict[str, str]) -> Any:
    """Return a boto3 client of the spec's S3. Raises `UserError` without the file of its CA."""
    ca = _ca_file(place)
    key, secret = (login[name] for name in LOGIN_KEYS)
    style = "path" if place.path_style else "virtual"
    options = Config(
        s3={"addressing_style": style},
        retries={"mode": "standard", "total_max_attempts": 2},
        connect_timeout=5,
        read_timeout=PATIENCE_S,
    )
    return boto3.Session(key, secret, region_name=place.region).client(
        "s3",
        endpoint_url=place.endpoint,
        verify=ca,
        config=options,
    )


def _ca_file(place: StandingS3) -> str | None:
    """Return the file of the service's own CA; None for the public ones. Raises `UserError` if it is not there."""
    if place.ca is None:
        return None
    path = Path(place.ca).expanduser()
    if not path.is_file():
        cure = "give the path of a PEM file of this machine"
        raise UserError("there is no file cluster.s3.ca", seen=place.ca, cure=cure)
    return str(path)
