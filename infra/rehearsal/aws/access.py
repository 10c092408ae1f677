"""Who calls, and what that principal may do: moto holds users, roles and policies; this reads and evaluates them."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

from moto.iam.exceptions import NotFoundException

from infra.rehearsal.aws import policies
from infra.rehearsal.aws.keys import key_lets
from infra.rehearsal.aws.operations import AwsError
from infra.rehearsal.aws.policies import Context, Document, Question
from infra.rehearsal.aws.signing import Message, Signature, check_signature
from infra.rehearsal.aws.world import World

OPERATOR = "operator"
AGENT = "bivouac-site-agent"
AGENT_PATH = "/bivouac-site/"
"""Principals of the emulator itself: not part of the account that a certificate looks through."""
ADMINISTRATOR = "arn:aws:iam::aws:policy/AdministratorAccess"


@dataclass(frozen=True)
class Principal:
    """A user or the session of a role. `arn` is the session's; `identity_arn` that of the user or role."""

    arn: str
    identity_arn: str
    name: str
    session: str | None = None
    session_policy: str | None = None
    is_agent: bool = False


caller: ContextVar[Principal | None] = ContextVar("caller", default=None)
"""Whose request this thread answers; None for the emulator's own doing."""


def create_principals(world: World) -> None:
    """The operator (a person or CI with AdministratorAccess) and the emulator's own agent, each with a key."""
    iam = world.backend("iam")
    for name, path in ((OPERATOR, "/"), (AGENT, AGENT_PATH)):
        user = iam.create_user(world.region, name, path)
        iam.attach_user_policy(ADMINISTRATOR, name)
        key = user.create_access_key(prefix="AKIA")
        pair = (key.access_key_id, key.secret_access_key)
        if name == AGENT:
            world.agent_key = pair
        else:
            world.operator_key = pair


def authenticate(world: World, message: Message, signature: Signature, lifetime: timedelta | None = None) -> Principal:
    """The principal that signed; AwsError InvalidClientTokenId, ExpiredToken, SignatureDoesNotMatch.

    `lifetime` stands in for what a presigned URL says of itself.
    """
    if signature.token is None:
        secret, principal = _user(world, signature.access_key)
    else:
        secret, principal = _session(world, signature.access_key, signature.token)
    check_signature(message, signature, secret, lifetime)
    return principal


def _user(world: World, access_key: str) -> tuple[str, Principal]:
    for user in world.backend("iam").users.values():
        for key in user.access_keys:
            if key.access_key_id == access_key and key.status == "Active":
                principal = Principal(user.arn, user.arn, user.name, is_agent=user.path == AGENT_PATH)
                return key.secret_access_key, principal
    raise AwsError("InvalidClientTokenId", "the security token included in the request is invalid")


def _session(world: World, access_key: str, token: str) -> tuple[str, Principal]:
    session = world.backend("sts").get_assumed_role_from_access_key(access_key)
    if session is None or session.session_token != token:
        raise AwsError("InvalidClientTokenId", "the security token included in the request is invalid")
    if session.expiration.replace(tzinfo=UTC) < datetime.now(UTC):
        raise AwsError("ExpiredToken", "the security token included in the request is expired")
    principal = Principal(
        session.arn, session.role_arn, session.role_arn.rpartition("/")[2], session.session_name, session.policy
    )
    return session.secret_access_key, principal


def arn_of_key(world: World, access_key: str) -> str:
    """ARN of whom an access key belongs to, "" for nobody's."""
    if session := world.backend("sts").get_assumed_role_from_access_key(access_key):
        return str(session.arn)
    try:
        return _user(world, access_key)[1].arn
    except AwsError:
        return ""


def authorise(world: World, principal: Principal, action: str, resources: list[str] | None, context: Context) -> None:
    """Every resource must be allowed; AwsError AccessDenied names principal, action and resource."""
    if action == "sts:GetCallerIdentity" or principal.is_agent:
        return
    context = {**_about(world, principal), **context}
    try:
        granted, limits = list(_granted(world, principal)), list(_limits(world, principal))
    except NotFoundException as error:
        raise AwsError("InvalidClientTokenId", f"{principal.identity_arn} is no more") from error
    for resource in [None] if resources is None else resources:
        question = Question(action, resource, context)
        by_identity = policies.allowed(granted, question)
        if action.startswith("kms:") and ":key/" in str(resource):
            by_identity = key_lets(world, [principal.arn, principal.identity_arn], question, by_identity)
        if not by_identity or not all(policies.allowed([one], question) for one in limits):
            on = f" on resource: {resource}" if resource else ""
            raise AwsError("AccessDenied", f"User: {principal.arn} is not authorized to perform: {action}{on}")


def _about(world: World, principal: Principal) -> dict[str, list[str]]:
    return {
        "aws:principalarn": [principal.identity_arn],
        "aws:principalaccount": [world.account],
        "aws:requestedregion": [world.region],
        "aws:securetransport": ["true"],
        "aws:currenttime": [datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")],
    } | ({} if principal.session else {"aws:username": [principal.name]})


def _identity(world: World, principal: Principal) -> Any:
    iam = world.backend("iam")
    return iam.get_role(principal.name) if principal.session else iam.get_user(principal.name)


def _granted(world: World, principal: Principal) -> Iterator[Document]:
    identity = _identity(world, principal)
    if (before := world.settling(identity.arn, "granted")) is not None:
        yield from before
        return
    owners = [identity]
    if not principal.session:
        owners += world.backend("iam").get_groups_for_user(principal.name)
    for owner in owners:
        yield from (policies.parse(unquote_once(document)) for document in owner.policies.values())
        yield from (managed_document(policy) for policy in owner.managed_policies.values())


def _limits(world: World, principal: Principal) -> Iterator[Document]:
    boundary = getattr(_identity(world, principal), "permissions_boundary_arn", None)
    if boundary:
        yield managed_document(world.backend("iam").get_policy(boundary))
    if principal.session_policy:
        yield policies.parse(principal.session_policy)


def managed_document(policy: Any) -> Document:
    return policies.parse(next(version.document for version in policy.versions if version.is_default))


def unquote_once(document: str) -> str:
    return unquote(document) if document.startswith("%7B") else document


def trust_policy(world: World, role_arn: str) -> Document:
    """AwsError NoSuchEntity where the role is not there."""
    try:
        role = world.backend("iam").get_role_by_arn(role_arn)
    except NotFoundException as error:
        raise AwsError("NoSuchEntity", f"the role {role_arn} does not exist") from error
    for before in world.settling(role_arn, "trust") or ():
        return before  # type: ignore[no-any-return]
    return policies.parse(unquote_once(role.assume_role_policy_document))


def role_trusts(world: World, role_arn: str, service: str, action: str = "sts:AssumeRole") -> bool:
    """Whether the role is there and lets the AWS service `service`, for instance ec2.amazonaws.com, assume it."""
    try:
        document = trust_policy(world, role_arn)
    except AwsError:
        return False
    context = {"aws:sourceaccount": [world.account]}
    return policies.trusts(document, [service], action, context)


def authorise_assume_role(world: World, principal: Principal, role_arn: str, params: dict[str, Any]) -> None:
    """The role's trust policy must name the caller or its account; the emulator's agent speaks for AWS services."""
    if principal.is_agent:
        trust_policy(world, role_arn)
        return
    context = {"sts:externalid": [params["ExternalId"]]} if params.get("ExternalId") else {}
    context["aws:principalarn"] = [principal.identity_arn]
    root = f"arn:aws:iam::{world.account}:root"
    names = [principal.arn, principal.identity_arn, root, world.account]
    if not policies.trusts(trust_policy(world, role_arn), names, "sts:AssumeRole", context):
        denied = f"User: {principal.arn} is not authorized to perform: sts:AssumeRole on resource: {role_arn}"
        raise AwsError("AccessDenied", denied)


def open_session(world: World, role_arn: str, name: str, duration_s: int = 3600) -> Any:
    """A session of a role for an AWS service: moto's AssumedRole, with access_key_id and so on."""
    trust_policy(world, role_arn)
    return world.backend("sts").assume_role(
        region_name=world.region,
        role_session_name=name[:64],
        role_arn=role_arn,
        policy=None,
        duration=duration_s,
        external_id=None,
    )
