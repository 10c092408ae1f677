"""The checker of answers against AWS's models finds each kind of difference that botocore's parser passes over."""

from __future__ import annotations

import botocore.session
import pytest

from tests.rehearsal.aws_shapes import findings

SESSION = botocore.session.get_session()
XML = '<DescribeVpcsResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><vpcSet><item>{}</item></vpcSet></DescribeVpcsResponse>'
CASES = [
    ("eks", "DescribeCluster", '{"cluster": {"name": "a", "status": "ACTIVE"}}', None),
    ("eks", "DescribeCluster", '{"cluster": {"status": "READY"}}', "DescribeCluster.cluster.status: 'READY' is none"),
    ("eks", "DescribeCluster", '{"cluster": {"mood": "gay"}}', "cluster.mood: the model has no such member"),
    ("eks", "DescribeCluster", '{"cluster": {"createdAt": "yesterday"}}', "createdAt: 'yesterday' is no time"),
    ("eks", "DescribeCluster", '{"cluster": {"deletionProtection": "no"}}', "'no' is no boolean"),
    ("eks", "DescribeCluster", '{"cluster": {"tags": {"a": 1}}}', "tags{}: 1 is no string"),
    ("eks", "ListClusters", '{"clusters": "a"}', "clusters: 'a' is no list"),
    ("budgets", "DescribeBudget", '{"Budget": {"BudgetName": "b"}}', "Budget.TimeUnit: is required and absent"),
    ("ec2", "DescribeVpcs", XML.format("<vpcId>v</vpcId><isDefault>false</isDefault>"), None),
    ("ec2", "DescribeVpcs", XML.format("<state>open</state>"), "Vpcs[].State: 'open' is none of pending, available"),
    ("ec2", "DescribeVpcs", XML.format("<isDefault>None</isDefault>"), "IsDefault: 'None' is no boolean"),
    ("ec2", "DescribeVpcs", XML.format("<colour>red</colour>"), "Vpcs[].colour: the model has no such member"),
    (
        "s3",
        "GetBucketRequestPayment",
        "<ListBucketResult><MaxKeys>1</MaxKeys></ListBucketResult>",
        "MaxKeys: the model",
    ),
]


@pytest.mark.parametrize(("service", "operation", "body", "found"), CASES)
def test_a_difference_from_the_model_is_found_and_nothing_else(
    service: str, operation: str, body: str, found: str | None
) -> None:
    model = SESSION.get_service_model(service).operation_model(operation)
    seen = findings(model, {}, body.encode())
    if found is None:
        assert seen == []
    else:
        assert any(found in one for one in seen), seen
