"""The login to the private registry of a job's image: read where it lies, and given to the kubelets.

No error holds the password, and no file, record or event does. It lies in one secret of the cluster, which pods of our
accounts can neither mount nor read; a kubelet reads it because a pod of its node names it.
"""

from __future__ import annotations

import base64
import json

from lightkube import Client
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Secret

from infra.aws.account import Account
from infra.aws.job_image import Login
from infra.cluster.gang import CAMPAIGN_LABEL, PULL_SECRET
from infra.cluster.kubernetes import create
from infra.cluster.secrets import SecretRefused, text_of, value_of
from infra.errors import UserError
from infra.spec.campaign import Spec
from infra.spec.image_reference import HUB, ImageReference
from infra.spec.secrets import SecretSource

_HUB_KEY = "https://index.docker.io/v1/"
"""Docker Hub's name in such a secret, https://kubernetes.io/docs/tasks/configure-pod-container/pull-image-private-registry/"""
_FORM = '{"username": "...", "password": "..."}'


def login(account: Account, spec: Spec) -> Login | None:
    """Return the login that the spec names, None if it names none. Raises `UserError` for one that cannot be read or
    has another form, `TemporaryError` while AWS does not answer."""
    source = spec.pull_secret
    if source is None:
        return None
    try:
        return _login_in(value_of(text_of(account, source), source), source)
    except SecretRefused as refused:
        cure = f"store it as {_FORM}; the operator's policy reads secrets and parameters `bivouac_pull*`"
        raise UserError("the login of `workload.pull_secret` cannot be had", seen=refused, cure=cure) from None


def _login_in(text: str, source: SecretSource) -> Login:
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    document = document if isinstance(document, dict) else {}
    # `accessToken` is the password in secrets of ECR's pull-through caches.
    fields = {"username": document.get("username"), "password": document.get("password", document.get("accessToken"))}
    user, password = (_printable(value, name, source) for name, value in fields.items())
    if ":" in user:
        raise SecretRefused(f"{source.place} has a colon in `username`")
    return Login(user, password)


def _printable(value: object, name: str, source: SecretSource) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise SecretRefused(f"{source.place} has no printable text under `{name}`")
    return value


def give(client: Client, account: Account, spec: Spec) -> None:
    """Put the login into the campaign's namespace, or a changed one in its place; nothing if the spec names none."""
    account_login = login(account, spec)
    if account_login is None:
        return
    create(client, _secret(spec, account_login), replace=True)


def _secret(spec: Spec, account_login: Login) -> Secret:
    assert spec.workload is not None and spec.workload.image is not None, "the spec's model holds it"
    registry = ImageReference.parse(spec.workload.image).registry
    pair = base64.b64encode(f"{account_login.user}:{account_login.password}".encode()).decode()
    entry = {"username": account_login.user, "password": account_login.password, "auth": pair}
    text = json.dumps({"auths": {_HUB_KEY if registry == HUB else registry: entry}})
    return Secret(
        metadata=ObjectMeta(name=PULL_SECRET, labels={CAMPAIGN_LABEL: spec.campaign}),
        type="kubernetes.io/dockerconfigjson",
        data={".dockerconfigjson": base64.b64encode(text.encode()).decode()},
    )
