"""The sizes of policies that IAM takes, which moto does not count.

Characters without white space: 6,144 of a managed policy, 10,240 of all inline policies of a role.
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from moto.iam.exceptions import LimitExceededException
from moto.iam.models import IAMBackend

from infra.rehearsal.aws.operations import wrap
from infra.rehearsal.aws.world import World

MANAGED, INLINE_OF_A_ROLE = 6144, 10240


def _size(text: str) -> int:
    return len(re.sub(r"\s", "", text))


def _refuse_large(document: str) -> None:
    if _size(document) > MANAGED:
        raise LimitExceededException(f"Cannot exceed quota for PolicySize: {MANAGED}")


def install(world: World) -> None:
    def create(moto: Callable[..., Any], backend: IAMBackend, *values: Any, **keywords: Any) -> Any:
        document = inspect.signature(moto).bind(backend, *values, **keywords).arguments["policy_document"]
        _refuse_large(document)
        return moto(backend, *values, **keywords)

    def put(moto: Callable[..., Any], backend: IAMBackend, role_name: str, policy_name: str, policy_json: str) -> Any:
        other_policies = {
            name: text for name, text in backend.get_role(role_name).policies.items() if name != policy_name
        }
        if sum(map(_size, (policy_json, *other_policies.values()))) > INLINE_OF_A_ROLE:
            words = f"Maximum policy size of {INLINE_OF_A_ROLE} bytes exceeded for role {role_name}"
            raise LimitExceededException(words)
        return moto(backend, role_name, policy_name, policy_json)

    wrap(IAMBackend, "create_policy", create)
    wrap(IAMBackend, "create_policy_version", create)
    wrap(IAMBackend, "put_role_policy", put)
