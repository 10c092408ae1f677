"""Who may do what: of each of infra/ci's policies for people what its work needs, and what its holder must not be able
to do. Requests are written down by hand, and asked of an evaluator of IAM's rules."""

from __future__ import annotations

import json

import pytest

from infra.rehearsal.aws.iam.policies import trusts
from tests.root import ROOT
from tests.service_authorization import actions, forms
from tests.unit.stack.iam_questions import DATA, Document, ask, granted, refused, role
from tests.unit.stack.iam_requests import requests

CI = ROOT / "infra/ci"
OPERATOR = ("operator/look", "operator/network", "operator/cluster", "operator/rights")
WRITTEN = {
    "operator": OPERATOR,
    "founder": (*OPERATOR, "founder"),
    "viewer": ("viewer",),
    "preview": ("preview-role",),
    "buyer": ("block-buyer-role",),
    "publisher": ("publisher-role",),
}


def read(*names: str) -> list[Document]:
    return [json.loads((CI / f"{name}.json").read_text()) for name in names]


@pytest.mark.parametrize("name", WRITTEN)
def test_everybody_may_do_what_the_work_needs(name: str) -> None:
    assert refused(requests(f"must {name}"), role(name), read(*WRITTEN[name])) == []


@pytest.mark.parametrize("name", WRITTEN)
def test_nobody_may_do_what_could_be_regretted(name: str) -> None:
    assert granted(requests(f"must not {name}"), role(name), read(*WRITTEN[name])) == []


def test_the_operator_has_what_fsx_wants_of_who_links_the_data_bucket() -> None:
    """All of `s3:Get*`, `s3:List*` and `s3:PutObject` that a bucket or an object knows (FSx for Lustre's guide, "Unable
    to validate access to an S3 bucket when creating a DRA"); so much of no stranger's bucket."""
    asked = []
    for action in [*actions("s3:Get*"), *actions("s3:List*"), "s3:PutObject"]:
        on = {"bucket": "arn:aws:s3:::{}", "object": "arn:aws:s3:::{}/datasets/abc/shard"}
        asked += [(action, on[kind]) for kind in forms(action) if kind in on]
    assert len(asked) > 40
    data, operator = DATA.rpartition(":")[2], read(*OPERATOR)
    assert refused([ask(action, on.format(data)) for action, on in asked], role("operator"), operator) == []
    theirs = granted([ask(action, on.format("payroll")) for action, on in asked], role("operator"), operator)
    assert {action for action, _, _ in theirs} == {
        "s3:GetBucketAbac", "s3:GetBucketTagging", "s3:ListBucketMultipartUploads"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("role", "workflow", "environment"),
    [("preview", "preview", "bivouac-preview"), ("publisher", "images", "bivouac-images")],
)
def test_a_workflows_role_is_lent_to_the_guarded_environment_of_one_repository(
    role: str, workflow: str, environment: str
) -> None:
    (one,) = read(f"{role}-trust")[0]["Statement"]
    issuer = "token.actions.githubusercontent.com"
    who_asks = {"AWS": "arn:aws:iam::ACCOUNT:oidc-provider/" + issuer}
    trust = {"Version": "2012-10-17", "Statement": [one | {"Principal": who_asks}]}

    def lent(sub: str, aud: str = "sts.amazonaws.com") -> bool:
        context = {f"{issuer}:sub": [sub], f"{issuer}:aud": [aud]}
        return trusts(trust, [who_asks["AWS"]], "sts:AssumeRoleWithWebIdentity", context)

    assert lent(f"repo:OWNER/REPOSITORY:environment:{environment}")
    for sub in (
        "repo:OWNER/REPOSITORY:pull_request",
        "repo:OWNER/REPOSITORY:ref:refs/heads/main",
        "repo:OWNER/REPOSITORY:environment:production",
        f"repo:OWNER/REPOSITORY-2:environment:{environment}",
        f"repo:STRANGER/REPOSITORY:environment:{environment}",
    ):
        assert not lent(sub), sub
    assert not lent(f"repo:OWNER/REPOSITORY:environment:{environment}", "somebody-else")
    assert f"environment: {environment}\n" in (CI.parents[1] / f".github/workflows/{workflow}.yml").read_text()
