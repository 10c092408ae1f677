"""The emulated AWS over HTTP: who a caller is, at the cluster and in a pod, and what it may do."""

from __future__ import annotations

import base64
from typing import Any

import boto3
import pytest
import requests
from botocore.exceptions import ClientError
from botocore.signers import RequestSigner

from tests.rehearsal.rehearsal.aws.aws_cluster import (
    CLUSTER_ADMIN,
    assume,
    cluster,
    code_of,
    create_group,
    delete_group,
    node_role,
    of_group,
    role,
    site,
    subnets,
    template,
)
from tests.worlds.account_site import AccountSite, until

__all__ = ["cluster", "node_role", "site", "subnets", "template"]


def token(session: boto3.Session, site: AccountSite, cluster: str) -> str:
    sts = site.client("sts", session)
    signer = RequestSigner(
        sts.meta.service_model.service_id, "us-east-1", "sts", "v4", session.get_credentials(), session.events
    )
    request = {
        "method": "GET",
        "url": f"{site.world.endpoint_url}/?Action=GetCallerIdentity&Version=2011-06-15",
        "body": {},
        "headers": {"x-k8s-aws-id": cluster},
        "context": {},
    }
    url = signer.generate_presigned_url(request, region_name="us-east-1", expires_in=60, operation_name="")
    return "k8s-aws-v1." + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def review(site: AccountSite, given: str, cluster: str = "camp") -> dict[str, Any]:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": given}}
    url = f"{site.world.endpoint_url}/_site/token-review/{cluster}"
    return dict(requests.post(url, json=body, timeout=5).json()["status"])


def test_a_token_of_the_clusters_creator_is_a_cluster_admin(site: AccountSite, cluster: str) -> None:
    status = review(site, token(site.session, site, "camp"))
    assert status["authenticated"] and status["user"]["groups"] == ["eks:cluster-admin"]
    assert status["user"]["username"] == "arn:aws:iam::123456789012:user/operator"


def test_tokens_for_another_cluster_or_of_strangers_or_forged_are_nobodys(
    site: AccountSite, cluster: str, node_role: str
) -> None:
    assert not review(site, token(site.session, site, "other"))["authenticated"]
    assert not review(site, token(assume(site, role(site, "stranger", "ec2.amazonaws.com"), "me"), site, "camp"))[
        "authenticated"
    ]
    forged = boto3.Session(site.world.operator_key[0], "wrong", region_name="us-east-1")
    assert not review(site, token(forged, site, "camp"))["authenticated"]
    assert not review(site, "k8s-aws-v1.bm90IGEgdXJs")["authenticated"]


def test_a_nodes_token_names_the_node_while_its_instance_runs(
    site: AccountSite, cluster: str, subnets: list[str], node_role: str
) -> None:
    create_group(site, "who", node_role, subnets)
    machine = until(lambda: of_group(site, "who"))[0]
    given = token(assume(site, node_role, machine.settings["instance_id"]), site, "camp")
    user = review(site, given)["user"]
    assert user["username"] == f"system:node:{machine.settings['hostname']}"
    assert set(user["groups"]) == {"system:nodes"}
    delete_group(site, "who")
    assert not review(site, given)["authenticated"]


def test_an_access_entry_lets_a_role_in_with_its_groups(
    site: AccountSite, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arn = role(site, "steward", "pods.eks.amazonaws.com")
    eks = site.client("eks")
    eks.create_access_entry(clusterName="camp", principalArn=arn, kubernetesGroups=["stewards"])
    eks.associate_access_policy(
        clusterName="camp", principalArn=arn, policyArn=CLUSTER_ADMIN, accessScope={"type": "cluster"}
    )
    assert (
        len(eks.list_associated_access_policies(clusterName="camp", principalArn=arn)["associatedAccessPolicies"]) == 1
    )
    given = token(assume(site, arn, "one"), site, "camp")
    monkeypatch.setattr(site.world, "entries_count_after_s", 600.0)
    assert not review(site, given)["authenticated"], "an entry counts only some time after it was made"
    monkeypatch.setattr(site.world, "entries_count_after_s", 0.0)
    user = review(site, given)["user"]
    assert user["username"] == "arn:aws:sts::123456789012:assumed-role/steward/one"
    assert user["groups"] == ["stewards", "eks:cluster-admin"]
    eks.delete_access_entry(clusterName="camp", principalArn=arn)
    assert not review(site, token(assume(site, arn, "one"), site, "camp"))["authenticated"]


OTHERS = {"publicAccessCidrs": ["203.0.113.0/24"]}
ADMISSIONS: tuple[tuple[dict[str, Any], bool], ...] = (
    ({}, True),
    (OTHERS, False),
    ({"publicAccessCidrs": [*OTHERS["publicAccessCidrs"], "13.112.191.184/29"]}, True),
    ({"endpointPublicAccess": False, "endpointPrivateAccess": True}, False),
)


def test_a_build_is_admitted_only_where_the_cluster_admits_its_addresses(
    site: AccountSite, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.world, "entries_count_after_s", 0.0)
    arn, document = role(site, "builder", "codebuild.amazonaws.com"), site.world.clusters["camp"].document
    site.client("eks").create_access_entry(clusterName="camp", principalArn=arn)
    before = document["resourcesVpcConfig"]
    for access, admitted in ADMISSIONS:
        monkeypatch.setitem(document, "resourcesVpcConfig", before | access)
        status = review(site, token(assume(site, arn, "AWSCodeBuild-1"), site, "camp"))
        assert status["authenticated"] == admitted, (access, status)
        assert admitted or "publicAccessCidrs does not admit" in status["error"]
        assert review(site, token(assume(site, arn, "me"), site, "camp"))["authenticated"], "by whoever else"
    site.client("eks").delete_access_entry(clusterName="camp", principalArn=arn)


def test_a_pod_gets_its_roles_credentials_through_the_nodes_role_and_no_more(
    site: AccountSite, cluster: str, node_role: str
) -> None:
    site.client("s3").create_bucket(Bucket="state")
    read = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::state/campaigns/*"}
    arn = role(site, "trainer", "pods.eks.amazonaws.com", policy=read)
    subject = {"clusterName": "camp", "namespace": "campaign", "serviceAccount": "trainer"}
    association = site.client("eks").create_pod_identity_association(**subject, roleArn=arn)["association"]
    node = assume(site, node_role, "i-0123")
    seen = site.client("eks-auth", node).assume_role_for_pod_identity(clusterName="camp", token="campaign.trainer.x")
    assert seen["podIdentityAssociation"]["associationId"] == association["associationId"]
    keys = seen["credentials"]
    pod = boto3.Session(keys["accessKeyId"], keys["secretAccessKey"], keys["sessionToken"], region_name="us-east-1")
    site.client("s3").put_object(Bucket="state", Key="campaigns/a", Body=b"1")
    assert site.client("s3", pod).get_object(Bucket="state", Key="campaigns/a")["Body"].read() == b"1"
    with pytest.raises(ClientError) as error:
        site.client("s3", pod).get_object(Bucket="state", Key="other")
    assert code_of(error) == "AccessDenied"
    with pytest.raises(ClientError) as error:
        site.client("eks-auth", node).assume_role_for_pod_identity(clusterName="camp", token="campaign.other.x")
    assert code_of(error) == "ResourceNotFoundException"
    site.client("eks").delete_pod_identity_association(clusterName="camp", associationId=association["associationId"])


def test_a_limited_role_is_denied_what_its_policy_does_not_name(site: AccountSite, cluster: str) -> None:
    see = {"Effect": "Allow", "Action": "eks:Describe*", "Resource": "arn:aws:eks:us-east-1:123456789012:cluster/camp"}
    session = assume(site, role(site, "viewer", "ec2.amazonaws.com", policy=see), "me")
    eks = site.client("eks", session)
    assert eks.describe_cluster(name="camp")["cluster"]["status"] == "ACTIVE"
    for call in (
        lambda: eks.describe_cluster(name="other"),
        lambda: eks.delete_cluster(name="camp"),
        lambda: eks.list_clusters(),
    ):
        with pytest.raises(ClientError) as error:
            call()
        assert code_of(error) == "AccessDeniedException"
    with pytest.raises(ClientError) as error:
        site.client("autoscaling", session).set_desired_capacity(AutoScalingGroupName="x", DesiredCapacity=0)
    assert code_of(error) == "AccessDenied"
    with pytest.raises(ClientError) as error:
        site.client("ec2", session).describe_instances()
    assert code_of(error) == "UnauthorizedOperation"


def test_whoever_may_not_pass_a_role_cannot_give_it_to_a_node_group(
    site: AccountSite, cluster: str, subnets: list[str]
) -> None:
    create = {"Effect": "Allow", "Action": "eks:*", "Resource": "*"}
    session = assume(site, role(site, "maker", "ec2.amazonaws.com", policy=create), "me")
    with pytest.raises(ClientError) as error:
        site.client("eks", session).create_nodegroup(
            clusterName="camp", nodegroupName="x", nodeRole="arn:aws:iam::123456789012:role/nodes", subnets=subnets
        )
    assert "iam:PassRole" in str(error.value)


def test_unsigned_and_forged_requests_are_refused(site: AccountSite) -> None:
    assert requests.get(site.world.endpoint_url, timeout=5).status_code == 403
    assert requests.post(f"{site.world.endpoint_url}/moto-api/reset-auth", data="1000", timeout=5).status_code == 404
    forged = boto3.Session(site.world.operator_key[0], "wrong", region_name="us-east-1")
    with pytest.raises(ClientError) as error:
        site.client("sts", forged).get_caller_identity()
    assert code_of(error) == "SignatureDoesNotMatch"
