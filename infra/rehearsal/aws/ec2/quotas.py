"""Service Quotas of the instance families; a file of the site can override them."""

from __future__ import annotations

import json
from typing import Any

from moto.servicequotas.responses import ServiceQuotasResponse

from infra.rehearsal.aws.operations import AwsError, Parameters, add_operations
from infra.rehearsal.aws.world import World

VCPUS = {
    "L-417A185B": ("Running On-Demand P instances", 1536),
    "L-DB2E81BA": ("Running On-Demand G and VT instances", 768),
    "L-1216C47A": ("Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", 1152),
    "L-2C3B7624": ("Running On-Demand Trn instances", 512),
    "L-C4BD4855": ("All P5 Spot Instance Requests", 1536),
    "L-7212CCBC": ("All P4, P3 and P2 Spot Instance Requests", 768),
    "L-3819A6DF": ("All G and VT Spot Instance Requests", 768),
    "L-6B0D517C": ("All Trn Spot Instance Requests", 512),
    "L-34B43A08": ("All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", 1152),
}
OTHERS = {
    ("vpc", "L-F678F1CE"): ("VPCs per Region", 5),
    ("ec2", "L-0263D0A3"): ("EC2-VPC Elastic IPs", 5),
    ("vpc", "L-A4707A72"): ("Internet gateways per Region", 5),
    ("vpc", "L-FE5A380F"): ("NAT gateways per Availability Zone", 5),
    ("vpc", "L-0EA8095F"): ("Inbound or outbound rules per security group", 60),
    ("vpc", "L-93826ACB"): ("Routes per route table", 50),
    ("vpc", "L-29B6F2EB"): ("Interface VPC endpoints per VPC", 50),
    ("eks", "L-1194D53C"): ("Clusters", 100),
    ("eks", "L-6D54EA21"): ("Managed node groups per cluster", 30),
    ("fsx", "L-FD6F2F22"): ("Lustre Persistent_2 file systems", 100),
    ("fsx", "L-8F1B9C74"): ("Lustre Persistent_2 storage capacity", 100_800),
    ("fsx", "L-C48231E5"): ("Lustre Scratch file systems", 100),
    ("fsx", "L-AD2FC696"): ("Lustre Scratch storage capacity", 100_800),
}
"""Quotas of a new account."""
OVERRIDES = "quotas.json"
"""File in <work>/aws: {quota code: value}, read at each call."""


class Quotas:
    def __init__(self, world: World) -> None:
        self.world = world
        self.known = {("ec2", code): entry for code, entry in VCPUS.items()} | OTHERS

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
