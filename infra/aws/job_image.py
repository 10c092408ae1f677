"""The image of a workload, from any registry: its tag is resolved once, and its pods name the digest."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx2

from infra.aws.account import Account
from infra.aws.manifests import ACCEPTED, INDEXES, PLATFORM, chosen, digest_of
from infra.aws.registry import NoSuchImage, Registry
from infra.errors import PermanentError, TemporaryError, UserError
from infra.spec.image_reference import ImageReference

_WITHIN_S = 20.0
_AGAIN = timedelta(seconds=30)
_UNAUTHORIZED, _MISSING, _BUSY = 401, 404, (429, 500, 502, 503, 504)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


def find_job_image(account: Account, text: str) -> str:
    """Return `registry/repository@sha256:...` of the image for our nodes' platform; read-only.

    Raises `UserError` for an image that is missing, private or for another platform, `TemporaryError` while the
    registry does not answer.
    """
    reference = ImageReference.parse(text)
    if reference.ecr is None:
        digest, config = _Distribution(reference).found()
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
    """A registry that speaks the OCI distribution protocol, asked as an anonymous client.

    https://github.com/opencontainers/distribution-spec/blob/main/spec.md, tokens by
    https://distribution.github.io/distribution/spec/auth/token/
    """

    reference: ImageReference
    token: str = ""

    def found(self) -> tuple[str, dict[str, Any]]:
        """Return the digest of the platform's manifest and the image's configuration."""
        which = self.reference.which
        digest, manifest = self._document("manifests", which)
        if manifest.get("mediaType") in INDEXES or "manifests" in manifest:
            digest, manifest = self._document("manifests", chosen(manifest, str(self.reference)))
        config = (manifest.get("config") or {}).get("digest")
        if config is None:
            seen = f"{self.reference}: {manifest.get('mediaType') or 'schema 1'}"
            cure = "push it again with a current docker or buildx"
            raise UserError("the registry's manifest has no configuration of an image", seen=seen, cure=cure)
        return digest, self._document("blobs", config)[1]

    def _document(self, kind: str, which: str) -> tuple[str, dict[str, Any]]:
        """Return the digest and content of a JSON document; one that is named by its digest must have it."""
        body = self._get(f"{kind}/{which}")
        digest = digest_of(body)
        if which.startswith("sha256:") and digest != which:
            raise PermanentError("the registry answers with another document", seen=f"{digest} instead of {which}")
        try:
            return digest, dict(json.loads(body))
        except (ValueError, TypeError) as error:
            seen = f"{self.reference}: {body[:80]!r}"
            raise PermanentError("the registry's answer is no JSON object", seen=seen) from error

    def _get(self, path: str) -> bytes:
        url = f"{self.reference.endpoint}/v2/{self.reference.repository}/{path}"
        answer = self._ask(url)
        if answer.status_code == _UNAUTHORIZED and not self.token:
            self.token = self._token(answer.headers.get("www-authenticate", ""))
            answer = self._ask(url)
        if answer.status_code in _BUSY:
            raise TemporaryError(
                "the registry does not answer now", seen=f"{url}: {answer.status_code}", delay=_AGAIN,
                cure="run the same command again",
            )  # fmt: skip
        if answer.status_code == _MISSING:
            cure = "push it, or correct `workload.image`"
            raise UserError("the registry has no such image", seen=str(self.reference), cure=cure)
        if answer.status_code != httpx2.codes.OK:
            raise UserError(
                "the registry does not let an anonymous client read the image",
                seen=f"{self.reference}: {answer.status_code}",
                cure="copy it to the account's ECR, or name it through an ECR pull-through cache, which keeps the "
                "registry's credentials",
            )
        return bytes(answer.content)

    def _ask(self, url: str) -> httpx2.Response:
        headers = {"Accept": ", ".join(ACCEPTED)}
        # A redirect to the registry's storage must not carry the token: httpx drops it for another host.
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            return httpx2.get(url, headers=headers, timeout=_WITHIN_S, follow_redirects=True)
        except httpx2.HTTPError as error:
            raise TemporaryError(
                "the registry of the workload's image cannot be reached", seen=f"{url}: {error}", delay=_AGAIN,
                cure="check its name and the network, and run the same command again",
            ) from error  # fmt: skip

    def _token(self, challenge: str) -> str:
        """Return an anonymous token for what the registry asks, or an empty string if it wants another sort."""
        asked = dict(_CHALLENGE.findall(challenge))
        realm = asked.pop("realm", "")
        if not challenge.lower().startswith("bearer") or urlsplit(realm).scheme not in ("https", "http"):
            return ""
        try:
            answer = httpx2.get(realm, params=asked, timeout=_WITHIN_S)
            content = answer.json() if answer.status_code == httpx2.codes.OK else {}
        except (httpx2.HTTPError, ValueError):
            return ""
        return str(content.get("token") or content.get("access_token") or "")
