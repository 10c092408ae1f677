"""The link-local services of an instance: IMDSv2 on 169.254.169.254, the Pod Identity agent on 169.254.170.23."""

from __future__ import annotations

import json
import secrets
import socketserver
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from infra.errors import BivouacError
from infra.rehearsal.nodelet.credentials import RoleCredentials
from infra.rehearsal.nodelet.machine import MachineConfig

METADATA_ADDRESS = "169.254.169.254"
POD_IDENTITY_ADDRESS = "169.254.170.23"
LONGEST_TOKEN_S = 21_600


class Unavailable(Exception):
    def __init__(self, status: HTTPStatus, text: str = "") -> None:
        super().__init__(text)
        self.status, self.text = status, text


class Metadata:
    """The metadata tree. A file `metadata/<path>` in the machine's folder adds or replaces a leaf, as a spot notice."""

    def __init__(self, config: MachineConfig, credentials: RoleCredentials) -> None:
        self._config, self._credentials = config, credentials
        self._tokens: dict[str, float] = {}
        self._started = datetime.now(UTC)

    def new_token(self, ttl: str | None) -> str:
        if not ttl or not ttl.isdigit() or not 1 <= int(ttl) <= LONGEST_TOKEN_S:
            raise Unavailable(HTTPStatus.BAD_REQUEST)
        token = secrets.token_urlsafe(32)
        self._tokens[token] = time.monotonic() + int(ttl)
        return token

    def read(self, path: str, token: str | None) -> str:
        """Return a leaf or a list of children. Raises Unavailable: 401 without a session token (IMDSv1 is off), 404."""
        if time.monotonic() > self._tokens.get(token or "", 0.0):
            raise Unavailable(HTTPStatus.UNAUTHORIZED)
        path = path.strip("/").removeprefix("latest/")
        extra_file = Path(self._config.work) / "metadata" / path
        if extra_file.is_file():
            return extra_file.read_text()
        leaves = self._leaves()
        if path in leaves:
            return leaves[path]()
        prefix = path + "/" if path else ""
        children = {leaf[len(prefix) :].partition("/") for leaf in leaves if leaf.startswith(prefix)}
        if not children:
            raise Unavailable(HTTPStatus.NOT_FOUND)
        return "\n".join(sorted(name + slash for name, slash, _ in children))

    def _leaves(self) -> dict[str, Callable[[], str]]:
        config = self._config
        plain = {
            "ami-launch-index": "0",
            "hostname": config.hostname,
            "instance-id": config.instance_id,
            "instance-life-cycle": config.lifecycle,
            "instance-type": config.instance_type,
            "local-hostname": config.hostname,
            "local-ipv4": config.address,
            "placement/availability-zone": config.zone,
            "placement/region": config.region,
            "services/domain": "amazonaws.com",
            "services/partition": "aws",
            **{f"tags/instance/{key}": value for key, value in config.tags.items() if "/" not in key},
        }
        leaves: dict[str, Callable[[], str]] = {f"meta-data/{key}": lambda v=value: v for key, value in plain.items()}  # type: ignore[misc]
        leaves["dynamic/instance-identity/document"] = self._identity
        if config.user_data:
            leaves["user-data"] = lambda: config.user_data
        if config.role_arn:
            role = config.role_arn.rpartition("/")[2]
            leaves["meta-data/iam/info"] = lambda: json.dumps(
                {"Code": "Success", "InstanceProfileArn": config.role_arn}
            )
            leaves[f"meta-data/iam/security-credentials/{role}"] = self._role
        return leaves

    def _identity(self) -> str:
        config = self._config
        document = {
            "accountId": config.account,
            "architecture": "x86_64",
            "availabilityZone": config.zone,
            "instanceId": config.instance_id,
            "instanceType": config.instance_type,
            "pendingTime": self._started.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "privateIp": config.address,
            "region": config.region,
            "version": "2017-09-30",
        }
        return json.dumps(document, indent=1)

    def _role(self) -> str:
        try:
            session = self._credentials.current()
        except BivouacError as error:
            raise Unavailable(HTTPStatus.NOT_FOUND, str(error)) from error
        document = {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "LastUpdated": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "AccessKeyId": session.access_key,
            "SecretAccessKey": session.secret_key,
            "Token": session.token,
            "Expiration": session.expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        return json.dumps(document, indent=1)


def pod_credentials(credentials: RoleCredentials, cluster: str, token: str | None) -> str:
    """Return the agent's answer to a pod that sends its service account token."""
    if not token:
        raise Unavailable(HTTPStatus.UNAUTHORIZED, "Service account token cannot be empty")
    try:
        answer = credentials.client("eks-auth").assume_role_for_pod_identity(clusterName=cluster, token=token)
    except ClientError as error:
        status = HTTPStatus(error.response["ResponseMetadata"].get("HTTPStatusCode", HTTPStatus.BAD_REQUEST))
        raise Unavailable(status, str(error)) from error
    except (BotoCoreError, BivouacError) as error:
        raise Unavailable(HTTPStatus.INTERNAL_SERVER_ERROR, str(error)) from error
    answer_credentials = answer["credentials"]
    document = {
        "AccessKeyId": answer_credentials["accessKeyId"],
        "SecretAccessKey": answer_credentials["secretAccessKey"],
        "Token": answer_credentials["sessionToken"],
        "AccountId": answer["assumedRoleUser"]["arn"].split(":")[4],
        "Expiration": answer_credentials["expiration"].astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return json.dumps(document)


class Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, produce: Callable[[], str], kind: str = "text/plain") -> None:
        status, text = HTTPStatus.OK, ""
        try:
            text = produce()
        except Unavailable as error:
            status, text = error.status, error.text
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


class LocalServer(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        # HTTPServer's own method asks a name server for its name; there is none, so it would hang for seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]


def serve_metadata(metadata: Metadata) -> None:
    class InstanceHandler(Quiet):
        def do_PUT(self) -> None:
            if self.path != "/latest/api/token":
                return self.answer(_not_found)
            ttl = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
            self.answer(lambda: metadata.new_token(ttl))

        def do_GET(self) -> None:
            self.answer(lambda: metadata.read(self.path, self.headers.get("X-aws-ec2-metadata-token")))

    _serve(METADATA_ADDRESS, InstanceHandler)


def serve_pod_identity(credentials: RoleCredentials, cluster: str) -> None:
    class PodHandler(Quiet):
        def do_GET(self) -> None:
            if self.path != "/v1/credentials":
                return self.answer(_not_found)
            token = self.headers.get("Authorization")
            self.answer(lambda: pod_credentials(credentials, cluster, token), "application/json")

    _serve(POD_IDENTITY_ADDRESS, PodHandler)


def _not_found() -> str:
    raise Unavailable(HTTPStatus.NOT_FOUND)


def _serve(address: str, handler: type[BaseHTTPRequestHandler]) -> None:
    server = LocalServer((address, 80), handler)
    threading.Thread(target=server.serve_forever, name=f"http {address}", daemon=True).start()
