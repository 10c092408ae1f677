"""What botocore derives from its models is derived once per process, not once for each of a thousand clients."""

from __future__ import annotations

import copy
import functools
import inspect
from typing import Any

import botocore.session
from botocore import hooks, useragent
from botocore.client import ClientCreator
from botocore.hooks import EventAliaser
from botocore.model import ServiceModel


def share_models() -> None:
    """Share among all clients of this process what no client changes: models, methods and names.

    Half of a client's making, and a tenth of each request, went into deriving them anew.
    """
    # EC2's model takes half a second to read, and every session has a loader of its own.
    botocore.session.create_loader = functools.cache(botocore.session.create_loader)  # type: ignore[attr-defined]
    useragent.sanitize_user_agent_string_component = functools.cache(useragent.sanitize_user_agent_string_component)
    slow_accepts_kwargs = hooks.accepts_kwargs

    def accepts_kwargs(handler: Any) -> bool:
        """Read what the code says, for a function; botocore makes a whole signature of each handler."""
        code = getattr(getattr(handler, "__func__", handler), "__code__", None)
        return bool(code.co_flags & inspect.CO_VARKEYWORDS) if code else bool(slow_accepts_kwargs(handler))

    hooks.accepts_kwargs = accepts_kwargs
    read, methods = ClientCreator._load_service_model, ClientCreator._create_methods
    alias = EventAliaser._alias_event_name
    models = dict[tuple[str, str | None], ServiceModel]()
    methods_by_service = dict[str, dict[str, Any]]()
    aliases = dict[str, str]()

    def model(creator: Any, service_name: str, api_version: str | None = None) -> ServiceModel:
        key = service_name, api_version
        if key not in models:
            models[key] = read(creator, service_name, api_version)
        return models[key]

    def shared_methods(creator: Any, service: ServiceModel) -> dict[str, Any]:
        key = f"{service.service_name} {service.api_version}"
        if key not in methods_by_service:
            methods_by_service[key] = methods(creator, service)
        return dict(methods_by_service[key])  # a client's class adds its own

    def shared_alias(aliaser: Any, event_name: str) -> str:
        if event_name not in aliases:
            aliases[event_name] = alias(aliaser, event_name)
        return aliases[event_name]

    ClientCreator._load_service_model = model  # type: ignore[method-assign]
    ClientCreator._create_methods = shared_methods  # type: ignore[method-assign]
    EventAliaser._alias_event_name = shared_alias  # type: ignore[method-assign]


@functools.cache
def share_managed_policies() -> None:
    """Read AWS's 1,500 managed policies once for all accounts of this process; each account gets copies."""
    from moto.iam.models import IAMBackend
    from moto.settings import load_iam_aws_managed_policies

    read, policies = IAMBackend._init_aws_policies, dict[tuple[str, str], list[Any]]()

    def copies(backend: Any) -> list[Any]:
        if not load_iam_aws_managed_policies():
            return []
        place = backend.account_id, backend.region_name
        if place not in policies:
            policies[place] = read(backend)
        return [_copy_of(policy) for policy in policies[place]]

    IAMBackend._init_aws_policies = copies  # type: ignore[assignment, method-assign]


def _copy_of(policy: Any) -> Any:
    own = copy.copy(policy)
    own.versions, own.tags = list(policy.versions), dict(policy.tags)
    return own
