"""Whoever reads only the first page of a listing of AWS misses what stands on the second."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from botocore import xform_name
from botocore.session import get_session

from tests.root import ROOT

ASIDE = ROOT / "infra/rehearsal/aws"
SERVICES = (
    "autoscaling", "backup", "budgets", "ce", "cloudwatch", "ec2", "ecr", "eks", "elb", "elbv2", "events", "fsx", "iam",
    "kms", "logs", "pricing", "ram", "resource-groups", "resourcegroupstaggingapi", "s3", "scheduler", "service-quotas",
    "sns", "ssm",
)  # fmt: skip
ONE_ANSWER = {"list_buckets", "list_tags_for_resource"}
"""S3 tells all buckets of an account at once (up to 10,000) where nobody asks for fewer; tags have no pages where we
ask for them by that name."""
NAMED = re.compile(r"(Ids|Names|names|Arns|ARNs|Versions|TagKeys)$")
"""What is asked for by name comes in one answer."""


def paged() -> set[str]:
    """Operations that botocore gives in pages, as methods of a client."""
    loader = get_session().get_component("data_loader")
    found = set[str]()
    for service in SERVICES:
        model = loader.load_service_model(service, "paginators-1")["pagination"]
        found |= {xform_name(operation) for operation in model}
    return found - ONE_ANSWER


def first_pages(tree: ast.AST, operations: set[str]) -> Iterator[int]:
    """Lines at which such an operation is called, or taken to be called, without its pages."""
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in operations:
            assert isinstance(node, ast.Call)
            if not any(keyword.arg and NAMED.search(keyword.arg) for keyword in node.keywords):
                yield node.lineno


def test_no_listing_is_read_by_its_first_page_alone() -> None:
    operations, found = paged(), list[str]()
    for path in sorted([*ROOT.glob("infra/**/*.py"), *ROOT.glob("trainer/**/*.py")]):
        text = path.read_text()
        if path.is_relative_to(ASIDE) or not re.search(r"\.(describe|list|get)_\w+\(", text):
            continue
        found += [f"{path.relative_to(ROOT)}:{line}" for line in first_pages(ast.parse(text), operations)]
    assert found == []


def test_a_first_page_is_noticed_and_a_name_is_not() -> None:
    told = "ec2.describe_vpcs(Filters=x)\nec2.describe_vpcs(VpcIds=[x])\nec2.get_paginator('describe_vpcs')\n"
    assert list(first_pages(ast.parse(told), paged())) == [1]
