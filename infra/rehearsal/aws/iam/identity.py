"""Token reviews for Kubernetes (TokenReview) and role credentials for pods (eks-auth)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from moto.core.responses import ActionResult, BaseResponse
from moto.iam.responses import IamResponse

from infra.rehearsal.aws.eks.clusters import Cluster, find
from infra.rehearsal.aws.eks.entries import CLUSTER_ADMIN_POLICY
from infra.rehearsal.aws.iam.access import Principal, authenticate, open_session, role_trusts
from infra.rehearsal.aws.iam.signing import Message, read_signature
from infra.rehearsal.aws.operations import AwsError, Parameters, ServicePart, add_operations
from infra.rehearsal.aws.world import ServiceAccount, World

log = logging.getLogger(__name__)

PREFIX = "k8s-aws-v1."
CLUSTER_HEADER = "x-k8s-aws-id"
ADMIN_GROUP = "eks:cluster-admin"
LONGEST = timedelta(minutes=15)
AUDIENCE = "pods.eks.amazonaws.com"
SESSION_S = 6 * 3600
_BUILDS = ipaddress.ip_address("13.112.191.184")
"""Where builds come from: an address of CODEBUILD in https://ip-ranges.amazonaws.com/ip-ranges.json."""
QUERY = {"Action": "GetCallerIdentity", "Version": "2011-06-15"}


class Unknown(Exception):
    """The token has no valid owner, for the reason in the text."""


class Reviewer(ServicePart):
    """The webhook that replaces EKS's authenticator."""

    def review(self, name: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Answer a TokenReview of the cluster `name`."""
        request = json.loads(body)
        try:
            with self.world.lock:
                status = {"authenticated": True, "user": self._user(name, request["spec"]["token"])}
        except (Unknown, AwsError) as error:
            log.info("token refused for %s: %s", name, error)
            status = {"authenticated": False, "error": str(error)}
        return 200, {"apiVersion": request["apiVersion"], "kind": "TokenReview", "status": status}

    def _user(self, name: str, token: str) -> dict[str, Any]:
        cluster = find(self.world, name)
        principal, access_key = self._principal(name, token)
        if not _admits(cluster.document["resourcesVpcConfig"], principal):
            raise Unknown(f"{principal.arn} comes from {_BUILDS}, which publicAccessCidrs does not admit")
        entry = next((candidate for arn, candidate in cluster.entries.items() if _same_principal(arn, principal)), None)
        if entry is None or self._too_young(entry):
            raise Unknown(f"no access entry for {principal.identity_arn}" + (" that is in force yet" if entry else ""))
        username = (
            entry["username"]
            .replace("{{SessionName}}", principal.session or "")
            .replace("{{EC2PrivateDNSName}}", self._host(entry, principal))
        )
        groups = [*entry["kubernetesGroups"], *_policy_groups(entry)]
        uid = f"aws-iam-authenticator:{self.world.account}:{principal.identity_arn}"
        extra = {
            "arn": [principal.arn],
            "canonicalArn": [principal.identity_arn],
            "accessKeyId": [access_key],
            "sessionName": [principal.session or ""],
        }
        return {"username": username, "uid": uid, "groups": groups, "extra": extra}

    def _too_young(self, entry: dict[str, Any]) -> bool:
        """Return True for a caller's entry not yet in force; EKS's own entries are ready with cluster and nodes."""
        birth = entry.get("askedFor")
        return birth is not None and datetime.now(UTC) - birth < timedelta(seconds=self.world.entries_count_after_s)

    def _host(self, entry: dict[str, Any], principal: Principal) -> str:
        """Return the Node name, the private DNS name of the running instance that a node's session is named after."""
        if entry["type"] != "EC2_LINUX":
            return ""
        instance = self.world.backend("ec2").get_instance_by_id(principal.session or "")
        if instance is None or instance.state not in ("pending", "running"):
            raise Unknown(f"{principal.arn}: no such instance runs")
        return str(instance.private_dns_name)

    def _principal(self, cluster: str, token: str) -> tuple[Principal, str]:
        if not token.startswith(PREFIX):
            raise Unknown("not a k8s-aws-v1 token")
        text = token.removeprefix(PREFIX)
        try:
            url = urlsplit(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode())
        except (binascii.Error, UnicodeDecodeError) as error:
            raise Unknown("the token is not base64 of a URL") from error
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        if url.path not in ("", "/") or any(query.get(key) != value for key, value in QUERY.items()):
            raise Unknown("the token's URL is not sts:GetCallerIdentity")
        host = urlsplit(self.world.endpoint_url).netloc
        hosts = (f"sts.{self.world.region}.amazonaws.com", "sts.amazonaws.com", host)
        if url.netloc not in hosts:
            raise Unknown(f"the token's URL is for {url.netloc}, expected one of {hosts}")
        headers = {"host": url.netloc, CLUSTER_HEADER: cluster}
        message = Message("GET", url.path or "/", url.query, headers, hashlib.sha256(b"").hexdigest())
        signature = read_signature(message)
        if signature is None or CLUSTER_HEADER not in signature.signed_headers or signature.service != "sts":
            raise Unknown(f"the URL is not signed with the header {CLUSTER_HEADER}")
        if signature.expires is None or signature.expires > LONGEST:
            raise Unknown("the URL lives longer than 15 minutes")
        # As on EKS, 60 s in X-Amz-Expires do not shorten the token: it is valid for 15 minutes after its date.
        return authenticate(self.world, message, signature, LONGEST), signature.access_key


def _admits(config: dict[str, Any], principal: Principal) -> bool:
    """Return whether the endpoint admits a caller by its address, which is known of builds alone. On AWS, as EKS's API
    reference says (VpcConfigRequest, publicAccessCidrs), others are denied: no connection comes about at all."""
    if not (principal.session or "").startswith("AWSCodeBuild-"):
        return True
    ranges = config["publicAccessCidrs"] if config["endpointPublicAccess"] else ()
    return any(_BUILDS in ipaddress.ip_network(network) for network in ranges)


def _same_principal(entry_arn: str, principal: Principal) -> bool:
    """Compare an entry with a principal, as EKS does, without a role's path."""
    return entry_arn == principal.identity_arn or (
        principal.session is not None
        and entry_arn.split(":")[:5] == principal.identity_arn.split(":")[:5]
        and entry_arn.rpartition("/")[2] == principal.name
        and ":role/" in entry_arn
    )


def _policy_groups(entry: dict[str, Any]) -> list[str]:
    association = entry["policies"].get(CLUSTER_ADMIN_POLICY)
    return [ADMIN_GROUP] if association and association["accessScope"]["type"] == "cluster" else []


class EksAuthResponse(BaseResponse):
    def __init__(self) -> None:
        super().__init__(service_name="eks-auth")
        self.automated_parameter_parsing = True


class PodCredentials(ServicePart):
    def assume_role_for_pod_identity(self, params: Parameters) -> dict[str, Any]:
        cluster = find(self.world, params["clusterName"])
        # Without the world's lock: the API server may call our token review while it checks the token.
        account = self._owner(cluster, params["token"])
        with self.world.lock:
            return self._session(cluster, account)

    def _session(self, cluster: Cluster, account: ServiceAccount) -> dict[str, Any]:
        world = self.world
        subject = (account.namespace, account.name)
        matches = [
            candidate
            for candidate in cluster.associations.values()
            if (candidate["namespace"], candidate["serviceAccount"]) == subject
        ]
        if not matches:
            message = f"No association found for service account {'/'.join(subject)}"
            raise AwsError("ResourceNotFoundException", message)
        association = matches[0]
        role = association["roleArn"]
        if not all(role_trusts(world, role, AUDIENCE, action) for action in ("sts:AssumeRole", "sts:TagSession")):
            raise AwsError("AccessDeniedException", f"{AUDIENCE} may not assume {role}: see its trust policy")
        name = f"eks-{cluster.name[:20]}-{(account.pod or account.name)[:28]}-{association['associationId'][2:10]}"
        session = open_session(world, role, name, SESSION_S)
        return {
            "subject": {"namespace": account.namespace, "serviceAccount": account.name},
            "audience": AUDIENCE,
            "podIdentityAssociation": {key: association[key] for key in ("associationArn", "associationId")},
            "assumedRoleUser": {"arn": session.arn, "assumeRoleId": session.user_id},
            "credentials": {
                "accessKeyId": session.access_key_id,
                "secretAccessKey": session.secret_access_key,
                "sessionToken": session.session_token,
                "expiration": session.expiration,
            },
        }

    def _owner(self, cluster: Cluster, token: str) -> Any:
        plane = self.world.control_planes.get(cluster.name)
        try:
            owner = self.world.token_owner(plane, token, AUDIENCE) if plane is not None else None
        except Exception as error:
            raise AwsError("ServiceUnavailableException", f"the cluster does not answer: {error}") from error
        if owner is None:
            raise AwsError("InvalidTokenException", f"the token is not one of {cluster.name} for {AUDIENCE}")
        return owner


def install(world: World) -> None:
    world.routes["/_site/token-review/"] = Reviewer(world).review
    world.services["eks-auth"] = EksAuthResponse
    credentials = PodCredentials(world)

    def profile_tags(params: Parameters) -> dict[str, Any]:
        profile = world.backend("iam").get_instance_profile(params["InstanceProfileName"])
        return {"Tags": list(profile.tags), "IsTruncated": False}

    add_operations(world, IamResponse, {"list_instance_profile_tags": profile_tags})

    def assume(response: EksAuthResponse) -> ActionResult:
        return ActionResult(credentials.assume_role_for_pod_identity(dict(response.params)))

    EksAuthResponse.assume_role_for_pod_identity = assume  # type: ignore[attr-defined]
