"""The image of a workload, from any registry: its tag is resolved once, and its pods name the digest."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx2

from infra.aws.account import Account
from infra.aws.manifests import ACCEPTED, INDEXES, PLATFORM, choose_manifest, digest_of
from infra.aws.registry import NoSuchImage, Registry
from infra.errors import PermanentError, TemporaryError, UserError
from infra.spec.image_reference import ImageReference

_WITHIN_S = 20.0
_AGAIN = timedelta(seconds=30)
_UNAUTHORIZED, _MISSING, _BUSY = 401, 404, (429, 500, 502, 503, 504)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Login:
    """Credentials of a private registry. Nothing prints the password."""

    user: str
    password: str = field(repr=False)


def find_job_image(account: Account, text: str, login: Login | None = None) -> str:
    """Return `registry/repository@sha256:...` of the image for our nodes' platform; read-only. `login`: to a registry
    other than ECR; None: as an anonymous client.

    Raises `UserError` for an image that is missing, closed to this client or for another platform, `TemporaryError`
    while the registry does not answer.
    """
    reference = ImageReference.parse(text)
    if reference.ecr is None:
        digest, config = _Distribution(reference, login).resolve()
    else:
        owner, region = reference.ecr
        ecr = Registry(account if region == account.region else Account(region), owner)
        try:
            image = ecr.image(reference.repository, reference.which)
        except NoSuchImage as error:
            raise UserError(error.what, seen=text, cure="push it, or correct `workload.image`") from error
        digest, config = image.digest, json.loads(ecr.blob(reference.repository, image.config))
    platform = str(config.get("os")), str(config.get("architecture"))
    if platform != PLATFORM:
        cure = f"build it with --platform {'/'.join(PLATFORM)}"
        raise UserError("the workload's image is for another platform", seen=f"{text}: {'/'.join(platform)}", cure=cure)
    return f"{reference.name}@{digest}"


@dataclass
class _Distribution:
    """A registry that speaks the OCI distribution protocol.

    https://github.com/opencontainers/distribution-spec/blob/main/spec.md, tokens by
    https://distribution.github.io/distribution/spec/auth/token/
    """

    reference: ImageReference
    login: Login | None
    way_in: str = field(default="", repr=False)
    """Value of the header `Authorization`; empty: the registry has not asked for one."""

    def resolve(self) -> tuple[str, dict[str, Any]]:
        """Return the digest of the platform's manifest and the image's configuration."""
        tag = self.reference.which
        digest, manifest = self._document("manifests", tag)
        if manifest.get("mediaType") in INDEXES or "manifests" in manifest:
            digest, manifest = self._document("manifests", choose_manifest(manifest, str(self.reference)))
        config = (manifest.get("config") or {}).get("digest")
        if config is None:
            detail = f"{self.reference}: {manifest.get('mediaType') or 'schema 1'}"
            cure = "push it again with a current docker or buildx"
            raise UserError("the registry's manifest has no configuration of an image", seen=detail, cure=cure)
        return digest, self._document("blobs", config)[1]

    def _document(self, kind: str, reference: str) -> tuple[str, dict[str, Any]]:
        """Return the digest and content of a JSON document; one that is named by its digest must have it."""
        body = self._get(f"{kind}/{reference}")
        digest = digest_of(body)
        if reference.startswith("sha256:") and digest != reference:
            raise PermanentError("the registry answers with another document", seen=f"{digest} instead of {reference}")
        try:
            return digest, dict(json.loads(body))
        except (ValueError, TypeError) as error:
            detail = f"{self.reference}: {body[:80]!r}"
            raise PermanentError("the registry's answer is no JSON object", seen=detail) from error

    def _get(self, path: str) -> bytes:
        url = f"{self.reference.endpoint}/v2/{self.reference.repository}/{path}"
        answer = self._ask(url)
        if answer.status_code == _UNAUTHORIZED and not self.way_in:
            self.way_in = self._asked_for(answer.headers.get("www-authenticate", ""))
            answer = self._ask(url)
        if answer.status_code in _BUSY:
            raise self._busy(url, answer)
        if answer.status_code == _MISSING:
            cure = "push it, or correct `workload.image`"
            raise UserError("the registry has no such image", seen=str(self.reference), cure=cure)
        if answer.status_code != httpx2.codes.OK:
            raise self._refusal(answer.status_code)
        return bytes(answer.content)

    def _busy(self, url: str, answer: httpx2.Response) -> TemporaryError:
        return TemporaryError(
            "the registry does not answer now", seen=f"{url}: {answer.status_code}", delay=_AGAIN,
            cure="run the same command again",
        )  # fmt: skip

    def _refusal(self, status: int) -> UserError:
        detail = f"{self.reference}: {status}"
        if self.login is not None:
            cure = "correct the user name and password behind `workload.pull_secret`, and give them the right to pull"
            return UserError("the registry refuses the login of `workload.pull_secret`", seen=detail, cure=cure)
        return UserError(
            "the registry does not let an anonymous client read the image",
            seen=detail,
            cure="name a login in `workload.pull_secret`, copy the image to the account's ECR, or name it through an "
            "ECR pull-through cache, which keeps the registry's credentials",
        )

    def _ask(self, url: str) -> httpx2.Response:
        # A redirect to the registry's storage must not carry token or password: httpx drops them for another host.
        headers = {"Accept": ", ".join(ACCEPTED), **({"Authorization": self.way_in} if self.way_in else {})}
        return self._fetch(url, headers=headers, follow_redirects=True)

    def _fetch(self, url: str, **options: Any) -> httpx2.Response:
        try:
            return httpx2.get(url, timeout=_WITHIN_S, **options)
        except httpx2.HTTPError as error:
            raise TemporaryError(
                "the registry of the workload's image cannot be reached", seen=f"{url}: {error}", delay=_AGAIN,
                cure="check its name and the network, and run the same command again",
            ) from error  # fmt: skip

    def _asked_for(self, challenge: str) -> str:
        """Return the header that the registry asks for, or an empty string if we have none of this sort."""
        sort, parameters = challenge.partition(" ")[0].lower(), dict(_CHALLENGE.findall(challenge))
        realm = urlsplit(parameters.pop("realm", ""))
        if sort == "basic" and self.login is not None:
            return _basic(self.login)
        if sort != "bearer" or realm.scheme not in ("https", "http"):
            return ""
        headers = {}
        if self.login is not None:
            if realm.scheme == "http" and self.reference.endpoint.startswith("https"):
                cure = "tell whoever runs the registry: its tokens are given out without TLS"
                raise UserError("the registry asks for the password without TLS", seen=realm.geturl(), cure=cure)
            headers = {"Authorization": _basic(self.login)}
        answer = self._fetch(realm.geturl(), params=parameters, headers=headers)
        if answer.status_code in _BUSY:
            raise self._busy(realm.geturl(), answer)
        try:
            content = answer.json() if answer.status_code == httpx2.codes.OK else {}
        except ValueError:
            content = {}
        token = (content.get("token") or content.get("access_token")) if isinstance(content, dict) else None
        if token is None and self.login is not None:
            raise self._refusal(answer.status_code)
        return f"Bearer {token}" if token else ""


def _basic(login: Login) -> str:
    return f"Basic {base64.b64encode(f'{login.user}:{login.password}'.encode()).decode()}"
