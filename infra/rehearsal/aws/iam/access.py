"""Who calls, and what that principal may do: moto holds users, roles and policies; this reads and evaluates them."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

from moto.iam.exceptions import NotFoundException

from infra.rehearsal.aws.iam import policies
from infra.rehearsal.aws.iam.policies import Context, Document, Question
from infra.rehearsal.aws.iam.signing import Message, Signature, check_signature
from infra.rehearsal.aws.operations import AwsError
from infra.rehearsal.aws.s3 import bucket_policies
from infra.rehearsal.aws.s3.keys import key_lets
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
LINK = "https"
"""What a site's one link stands for. It is plain HTTP inside the site's own namespace, where no certificate of AWS's
could be had; on AWS the same clients come by TLS. One that says otherwise of itself, as behind a balancer that ends
TLS, is believed: X-Forwarded-Proto."""
_transport: ContextVar[str] = ContextVar("transport", default=LINK)


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
    _transport.set(message.headers.get("x-forwarded-proto", LINK))
    if signature.token is None:
        secret, principal = _user(world, signature.access_key)
    else:
        secret, principal = _session(world, signature.access_key, signature.token)
    check_signature(message, signature, secret, lifetime)
    return principal


def _user(world: World, access_key: str) -> tuple[str, Principal]:
    for user in list(world.backend("iam").users.values()):
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
        if not _may(world, principal, Question(action, resource, context), granted, limits):
            on = f" on resource: {resource}" if resource else ""
            raise AwsError("AccessDenied", f"User: {principal.arn} is not authorized to perform: {action}{on}")


def _may(
    world: World, principal: Principal, question: Question, granted: list[Document], limits: list[Document]
) -> bool:
    """Allowed by the caller's policies or by the resource's own, within every limit, and denied by none of them.

    AWS lets a resource's policy that names a session pass some limits; here every limit holds.
    """
    said = policies.verdict(granted, question)
    # A policy that names the account leaves it to IAM: it denies by that, and allows nobody.
    own, all_names = [principal.arn, principal.identity_arn], _names(world, principal)
    by_resource = bucket_policies.verdict(world, own, all_names, question)
    if "Deny" in (said, by_resource) or not all(policies.allowed([one], question) for one in limits):
        return False
    if question.action.startswith("kms:") and ":key/" in str(question.resource):
        return key_lets(world, own, question, said == "Allow")
    return "Allow" in (said, by_resource)


def _names(world: World, principal: Principal) -> list[str]:
    """As whom the policy of a resource may name the caller."""
    return [principal.arn, principal.identity_arn, f"arn:aws:iam::{world.account}:root", world.account]


def _about(world: World, principal: Principal) -> dict[str, list[str]]:
    return {
        "aws:principalarn": [principal.identity_arn],
        "aws:principalaccount": [world.account],
        "aws:requestedregion": [world.region],
        "aws:securetransport": [str(_transport.get() == "https").lower()],
        "aws:currenttime": [datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")],
        "aws:epochtime": [str(int(datetime.now(UTC).timestamp()))],
        "aws:principaltype": ["AssumedRole" if principal.session else "User"],
        "aws:principalisawsservice": ["false"],
        "aws:viaawsservice": ["false"],
        **_principal_tags(world, principal),
    } | ({} if principal.session else {"aws:username": [principal.name]})


def _principal_tags(world: World, principal: Principal) -> dict[str, list[str]]:
    """Of the role or user itself; this emulation's sessions carry none of their own."""
    iam = world.backend("iam")
    try:
        if principal.session:
            tags = [{"Key": key, "Value": value} for key, value in role_tags(iam.get_role(principal.name)).items()]
        else:
            tags = list(iam.list_user_tags(principal.name))
    except NotFoundException:
        return {}
    return {f"aws:principaltag/{one['Key'].lower()}": [one["Value"]] for one in tags}


def role_tags(role: Any) -> dict[str, str]:
    """moto keeps them by key, or as a list."""
    tags = role.tags.values() if isinstance(role.tags, dict) else role.tags
    return {str(one["Key"]): str(one["Value"]) for one in tags or ()}


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
        yield from (policies.parse(unquote_once(document)) for document in list(owner.policies.values()))
        yield from (managed_document(policy) for policy in list(owner.managed_policies.values()))


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


_SOURCES = {
    "budgets.amazonaws.com": "arn:aws:budgets::{account}:budget/*",
    "scheduler.amazonaws.com": "arn:aws:scheduler:{region}:{account}:schedule-group/default",
}
"""Service -> what it says as aws:SourceArn when it takes a role, as its documentation on confused deputies has it.

EC2 says neither account nor ARN; of EKS, and of its pods, only the account is told here, since a role is looked at
before its cluster is named.
"""
_WITHOUT_SOURCE = {"ec2.amazonaws.com"}


def role_trusts(world: World, role_arn: str, service: str, action: str = "sts:AssumeRole") -> bool:
    """Whether the role is there and lets the AWS service `service`, for instance ec2.amazonaws.com, assume it."""
    try:
        document = trust_policy(world, role_arn)
    except AwsError:
        return False
    context = {"aws:principalisawsservice": ["true"], "aws:securetransport": ["true"]}
    if service not in _WITHOUT_SOURCE:
        context["aws:sourceaccount"] = [world.account]
    if service in _SOURCES:
        context["aws:sourcearn"] = [_SOURCES[service].format(account=world.account, region=world.region)]
    return policies.trusts(document, [service], action, context)


def authorise_assume_role(world: World, principal: Principal, role_arn: str, params: dict[str, Any]) -> None:
    """The role's trust policy must name the caller or its account; the emulator's agent speaks for AWS services."""
    if principal.is_agent:
        trust_policy(world, role_arn)
        return
    context = _about(world, principal) | {"sts:rolesessionname": [str(params.get("RoleSessionName"))]}
    if params.get("ExternalId"):
        context["sts:externalid"] = [params["ExternalId"]]
    if tags := params.get("Tags"):
        context["aws:tagkeys"] = [one["Key"] for one in tags]
        context |= {f"aws:requesttag/{one['Key'].lower()}": [one["Value"]] for one in tags}
    document, names = trust_policy(world, role_arn), _names(world, principal)
    for action in ("sts:AssumeRole", *(["sts:TagSession"] if tags else [])):
        if not policies.trusts(document, names, action, context):
            denied = f"User: {principal.arn} is not authorized to perform: {action} on resource: {role_arn}"
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
