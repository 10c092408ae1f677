"""Look-ups by a running program (pulumi invokes)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from infra.rehearsal.plugins.aws.client import Clients
from infra.rehearsal.plugins.package import OperationFailed
from infra.rehearsal.plugins.wire import Props


def invoke(clients: Clients, token: str, arguments: Props) -> Props:
    if token not in FUNCTIONS:
        raise OperationFailed(f"unknown function {token}; the rehearsal knows: {', '.join(sorted(FUNCTIONS))}")
    return FUNCTIONS[token](clients, arguments)


def _caller_identity(clients: Clients, arguments: Props) -> Props:
    answer = clients.get("sts").get_caller_identity()
    account = answer["Account"]
    return {"accountId": account, "arn": answer["Arn"], "userId": answer["UserId"], "id": account}


def _parameter(clients: Clients, arguments: Props) -> Props:
    decrypt = arguments.get("withDecryption", True)
    ssm = clients.get("ssm", arguments.get("region"))
    parameter = ssm.get_parameter(Name=arguments["name"], WithDecryption=decrypt)["Parameter"]
    return {
        "arn": parameter["ARN"],
        "id": parameter["Name"],
        "name": parameter["Name"],
        "type": parameter["Type"],
        "value": parameter["Value"],
        "insecureValue": None if parameter["Type"] == "SecureString" else parameter["Value"],
        "version": parameter["Version"],
        "withDecryption": decrypt,
        "region": arguments.get("region") or clients.region,
    }


FUNCTIONS: dict[str, Callable[[Clients, dict[str, Any]], Props]] = {
    "aws:index/getCallerIdentity:getCallerIdentity": _caller_identity,
    "aws:ssm/getParameter:getParameter": _parameter,
}
