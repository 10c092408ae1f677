"""Service Quotas of the instance families; a file of the site can override them."""

from __future__ import annotations

import json
from typing import Any

from moto.servicequotas.responses import ServiceQuotasResponse

from infra.rehearsal.aws.operations import AwsError, Parameters, add_operations
from infra.rehearsal.aws.world import World
from infra.tables import table

QUOTAS = table("infra.rehearsal.aws.ec2", "quotas")
OVERRIDES = "quotas.json"
"""File in <work>/aws: {quota code: value}, read at each call."""


class Quotas:
    def __init__(self, world: World) -> None:
        self.world = world
        services = [("ec2", QUOTAS["vcpus"]), *QUOTAS["others"].items()]
        self.known = {(service, code): entry for service, codes in services for code, entry in codes.items()}

    def get_service_quota(self, params: Parameters) -> dict[str, Any]:
        key = params["ServiceCode"], params["QuotaCode"]
        if key not in self.known:
            raise AwsError("NoSuchResourceException", f"The quota {key[0]}/{key[1]} is not part of the rehearsal")
        return {"Quota": self._describe(*key)}

    def list_service_quotas(self, params: Parameters) -> dict[str, Any]:
        return {"Quotas": [self._describe(*key) for key in self.known if key[0] == params["ServiceCode"]]}

    def name(self, service: str, code: str) -> str:
        return self.known[service, code][0]

    def value(self, service: str, code: str) -> float:
        path = self.world.work / "aws" / OVERRIDES
        override = json.loads(path.read_text()).get(code) if path.exists() else None
        return float(self.known[service, code][1] if override is None else override)

    def _describe(self, service: str, code: str) -> dict[str, Any]:
        return {
            "ServiceCode": service,
            "ServiceName": service.upper(),
            "QuotaArn": f"arn:aws:servicequotas:{self.world.region}:{self.world.account}:{service}/{code}",
            "QuotaCode": code,
            "QuotaName": self.name(service, code),
            "Value": self.value(service, code),
            "Unit": "None",
            "Adjustable": True,
            "GlobalQuota": False,
        }


def install(world: World) -> None:
    quotas = Quotas(world)
    names = {
        "get_service_quota": quotas.get_service_quota,
        "get_aws_default_service_quota": quotas.get_service_quota,
        "list_service_quotas": quotas.list_service_quotas,
        "list_aws_default_service_quotas": quotas.list_service_quotas,
    }
    add_operations(world, ServiceQuotasResponse, names)
