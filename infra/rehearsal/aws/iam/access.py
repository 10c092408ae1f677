"""Authentication and authorisation: moto stores users, roles and policies; this module evaluates them."""

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
"""Path of the emulator's own principals, which a certificate does not search."""
ADMINISTRATOR = "arn:aws:iam::aws:policy/AdministratorAccess"


@dataclass(frozen=True)
class Principal:
    """A user or a role session. `arn` is the session's; `identity_arn` that of the user or role."""

    arn: str
    identity_arn: str
    name: str
    session: str | None = None
    session_policy: str | None = None
    is_agent: bool = False


caller: ContextVar[Principal | None] = ContextVar("caller", default=None)
"""Principal of the request that this thread answers; None for the emulator's own actions."""
LINK = "https"
"""The link's assumed scheme. A site has plain HTTP in its own namespace, without a certificate of AWS's; on AWS the
same clients use TLS. X-Forwarded-Proto overrides it, as behind a balancer that ends TLS."""
_transport: ContextVar[str] = ContextVar("transport", default=LINK)


def create_principals(world: World) -> None:
    """Create the operator (a person or CI with AdministratorAccess) and the emulator's own principal, with keys."""
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
    """Return the principal that signed. Raises AwsError InvalidClientTokenId, ExpiredToken, SignatureDoesNotMatch.

    `lifetime` replaces the expiry of a presigned URL.
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
    """Return the ARN of an access key's owner, or an empty string."""
    if session := world.backend("sts").get_assumed_role_from_access_key(access_key):
        return str(session.arn)
    try:
        return _user(world, access_key)[1].arn
    except AwsError:
        return ""


def authorise(world: World, principal: Principal, action: str, resources: list[str] | None, context: Context) -> None:
    """Raise AwsError AccessDenied, with principal, action and resource, unless every resource is allowed."""
    if action == "sts:GetCallerIdentity" or principal.is_agent:
        return
    context = {**_question_context(world, principal), **context}
    try:
        documents, limits = list(_policies_of(world, principal)), list(_limits(world, principal))
    except NotFoundException as error:
        raise AwsError("InvalidClientTokenId", f"{principal.identity_arn} does not exist any more") from error
    for resource in [None] if resources is None else resources:
        if not _may(world, principal, Question(action, resource, context), documents, limits):
            on = f" on resource: {resource}" if resource else ""
            raise AwsError("AccessDenied", f"User: {principal.arn} is not authorized to perform: {action}{on}")


def _may(
    world: World, principal: Principal, question: Question, documents: list[Document], limits: list[Document]
) -> bool:
    """Return True if the caller's or the resource's policies allow it, every limit does, and none denies.

    AWS lets a resource policy that names a session bypass some limits; here every limit holds.
    """
    by_identity = policies.verdict(documents, question)
    # A resource policy that names the account can deny by that, but allows nobody: it leaves that to IAM.
    arns, all_names = [principal.arn, principal.identity_arn], _names(world, principal)
    by_resource = bucket_policies.verdict(world, arns, all_names, question)
    if "Deny" in (by_identity, by_resource) or not all(policies.allowed([boundary], question) for boundary in limits):
        return False
    if question.action.startswith("kms:") and ":key/" in str(question.resource):
        return key_lets(world, arns, question, by_identity == "Allow")
    return "Allow" in (by_identity, by_resource)


def _names(world: World, principal: Principal) -> list[str]:
    """Return the names by which a resource's policy may mean the caller."""
    return [principal.arn, principal.identity_arn, f"arn:aws:iam::{world.account}:root", world.account]


def _question_context(world: World, principal: Principal) -> dict[str, list[str]]:
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
    """Return the tags of the role or user; the emulation's sessions have none."""
    iam = world.backend("iam")
    try:
        if principal.session:
            tags = [{"Key": key, "Value": value} for key, value in role_tags(iam.get_role(principal.name)).items()]
        else:
            tags = list(iam.list_user_tags(principal.name))
    except NotFoundException:
        return {}
    return {f"aws:principaltag/{tag['Key'].lower()}": [tag["Value"]] for tag in tags}


def role_tags(role: Any) -> dict[str, str]:
    """Return a role's tags, which moto keeps by key or as a list."""
    tags = role.tags.values() if isinstance(role.tags, dict) else role.tags
    return {str(tag["Key"]): str(tag["Value"]) for tag in tags or ()}


def _identity(world: World, principal: Principal) -> Any:
    iam = world.backend("iam")
    return iam.get_role(principal.name) if principal.session else iam.get_user(principal.name)


def _policies_of(world: World, principal: Principal) -> Iterator[Document]:
    identity = _identity(world, principal)
    if (documents := world.settling(identity.arn, "granted")) is not None:
        yield from documents
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
    """Return a role's trust policy. Raises AwsError NoSuchEntity if the role does not exist."""
    try:
        role = world.backend("iam").get_role_by_arn(role_arn)
    except NotFoundException as error:
        raise AwsError("NoSuchEntity", f"the role {role_arn} does not exist") from error
    for documents in world.settling(role_arn, "trust") or ():
        return documents  # type: ignore[no-any-return]
    return policies.parse(unquote_once(role.assume_role_policy_document))


_SOURCES = {
    "budgets.amazonaws.com": "arn:aws:budgets::{account}:budget/*",
    "codebuild.amazonaws.com": "arn:aws:codebuild:{region}:{account}:project/bivouac_closer",
    "scheduler.amazonaws.com": "arn:aws:scheduler:{region}:{account}:schedule-group/default",
}
"""Service -> its aws:SourceArn when it assumes a role, by its documentation on confused deputies.

EC2 sends neither account nor ARN. EKS and its pods send only the account here, since the role is checked before its
cluster has a name.
"""
_WITHOUT_SOURCE = {"ec2.amazonaws.com"}


def role_trusts(
    world: World, role_arn: str, service: str, action: str = "sts:AssumeRole", region: str | None = None
) -> bool:
    """Return True if the role exists and AWS service `service`, for instance ec2.amazonaws.com, may assume it.

    `region`: of the thing for which the service assumes it; the world's by default.
    """
    try:
        document = trust_policy(world, role_arn)
    except AwsError:
        return False
    context = {"aws:principalisawsservice": ["true"], "aws:securetransport": ["true"]}
    if service not in _WITHOUT_SOURCE:
        context["aws:sourceaccount"] = [world.account]
    if service in _SOURCES:
        context["aws:sourcearn"] = [_SOURCES[service].format(account=world.account, region=region or world.region)]
    return policies.trusts(document, [service], action, context)


def authorise_assume_role(world: World, principal: Principal, role_arn: str, params: dict[str, Any]) -> None:
    """Check trust policy and the caller's own policies; the emulator's principal acts for AWS services.

    Within an account, a trust that names a user or a role needs no policy of its own that allows the call, and one that
    names the account leaves it to those policies. A denial counts in both, and so does the boundary of a role, but not
    that of a user or session that the trust names itself.
    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic_policy-eval-denyallow.html
    """
    if principal.is_agent:
        trust_policy(world, role_arn)
        return
    context = _question_context(world, principal) | {"sts:rolesessionname": [str(params.get("RoleSessionName"))]}
    if params.get("ExternalId"):
        context["sts:externalid"] = [params["ExternalId"]]
    if tags := params.get("Tags"):
        context["aws:tagkeys"] = [tag["Key"] for tag in tags]
        context |= {f"aws:requesttag/{tag['Key'].lower()}": [tag["Value"]] for tag in tags}
    document, names = trust_policy(world, role_arn), _names(world, principal)
    tags_of_role = role_tags(world.backend("iam").get_role_by_arn(role_arn))
    context |= {f"aws:resourcetag/{key.lower()}": [value] for key, value in tags_of_role.items()}
    documents, limits = list(_policies_of(world, principal)), list(_limits(world, principal))
    for action in ("sts:AssumeRole", *(["sts:TagSession"] if tags else [])):
        question = Question(action, role_arn, context)
        by_service, by_name, itself = (
            policies.trusts(document, names_tried, action, context) for names_tried in (names, names[:2], names[:1])
        )
        is_within = itself or all(policies.allowed([boundary], question) for boundary in limits)
        may = by_service and is_within and (by_name or policies.allowed(documents, question))
        if not may or policies.verdict([*documents, *limits], question) == "Deny":
            refusal = f"User: {principal.arn} is not authorized to perform: {action} on resource: {role_arn}"
            raise AwsError("AccessDenied", refusal)


def open_session(world: World, role_arn: str, name: str, duration_s: int = 3600) -> Any:
    """Open a role session for an AWS service; return moto's AssumedRole, with access_key_id and so on."""
    trust_policy(world, role_arn)
    return world.backend("sts").assume_role(
        region_name=world.region,
        role_session_name=name[:64],
        role_arn=role_arn,
        policy=None,
        duration=duration_s,
        external_id=None,
    )
