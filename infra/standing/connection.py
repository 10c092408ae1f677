"""The driver's connections to an existing cluster and to its S3."""

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
from lightkube.core.exceptions import ConfigError
from lightkube.resources.core_v1 import Secret

from infra.cluster.kubernetes import PATIENCE_S, prepare_models
from infra.errors import UserError
from infra.spec.standing import StandingCluster, StandingS3

LOGIN_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
"""Keys of the Secret with the login to S3."""
_DEFAULT_CONFIG = "~/.kube/config"


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
    """Return the login to S3 by the Secret's keys, without those that it lacks. Raises `ApiError`."""
    data = client.get(Secret, place.secret).data or {}
    return {key: base64.b64decode(data[key]).decode() for key in LOGIN_KEYS if data.get(key)}


def s3_client(place: StandingS3, login: dict[str, str]) -> Any:
    """Return a boto3 client of the spec's S3. Raises `UserError` without the file of its CA."""
    if place.ca is not None and not Path(place.ca).expanduser().is_file():
        cure = "give the path of a PEM file of this machine"
        raise UserError("there is no file cluster.s3.ca", seen=place.ca, cure=cure)
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
        verify=None if place.ca is None else str(Path(place.ca).expanduser()),
        config=options,
    )
