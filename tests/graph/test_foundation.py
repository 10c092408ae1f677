"""Rules over the graph of the foundation."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from infra.spec.names import Names, buckets
from infra.stack.outputs import FoundationOutputs
from infra.stack.program import program
from infra.stack.settings import CampaignSettings, FoundationSettings, read_settings
from tests.example import DATA_DIGEST, DEADLINE, example_spec
from tests.graph.engine import ACCOUNT, Graph, build

BUCKETS = buckets(ACCOUNT, "us-east-1")


@pytest.mark.parametrize("name", [BUCKETS.state, BUCKETS.data, BUCKETS.archive])
def test_every_bucket_is_private_versioned_encrypted_and_for_tls_only(foundation: Graph, name: str) -> None:
    def setting(kind: str) -> dict[str, object]:
        (found,) = [node.inputs for node in foundation.of(kind) if node.inputs["bucket"] == name]
        return found

    closed = setting("BucketPublicAccessBlock")
    assert all(value is True for key, value in closed.items() if key != "bucket") and len(closed) == 5
    assert setting("BucketVersioning")["versioningConfiguration"] == {"status": "Enabled"}
    assert setting("BucketServerSideEncryptionConfiguration")["rules"]
    assert setting("BucketOwnershipControls")["rule"] == {"objectOwnership": "BucketOwnerEnforced"}
    assert "abortIncompleteMultipartUpload" in str(setting("BucketLifecycleConfiguration"))
    (deny,) = json.loads(str(setting("BucketPolicy")["policy"]))["Statement"]
    assert deny["Effect"] == "Deny" and deny["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_the_bucket_that_holds_the_state_is_not_made_by_it(foundation: Graph) -> None:
    made = {node.inputs["bucket"] for node in foundation.of("Bucket")}
    assert made == {BUCKETS.data, BUCKETS.archive}


def test_a_bucket_with_content_is_never_destroyed(foundation: Graph) -> None:
    assert all(node.inputs.get("forceDestroy") is False for node in foundation.of("Bucket"))
    assert foundation.one("Repository", "trainer").inputs.get("forceDelete") is False


def test_old_versions_are_forgotten_only_of_state_of_interval_copies_and_of_parts(foundation: Graph) -> None:
    rules = [node.inputs for node in foundation.of("BucketLifecycleConfiguration")]
    forgetful = {
        (inputs["bucket"], rule["filter"]["prefix"])
        for inputs in rules
        for rule in inputs["rules"]
        if "noncurrent" in str(rule)
    }
    assert forgetful == {
        (BUCKETS.state, ""),
        (BUCKETS.state, "campaigns/"),
        (BUCKETS.archive, "copies/"),
        (BUCKETS.data, "preparing/"),
    }


def test_what_is_rewritten_every_few_seconds_is_kept_a_day_and_the_engines_state_longer(
    foundation: Graph,
) -> None:
    rules = next(
        node.inputs["rules"]
        for node in foundation.of("BucketLifecycleConfiguration")
        if node.inputs["bucket"] == BUCKETS.state
    )
    days = {
        rule["filter"]["prefix"]: rule["noncurrentVersionExpiration"]["noncurrentDays"]
        for rule in rules
        if "noncurrentVersionExpiration" in rule
    }
    assert days == {"": 90, "campaigns/": 1}
    assert Names("weeks").state_prefix.startswith("campaigns/"), "and the engine keeps its state beside them"


def test_images_cannot_change_under_a_tag(foundation: Graph) -> None:
    for name in ("trainer", "steward"):
        assert foundation.one("Repository", name).inputs["imageTagMutability"] == "IMMUTABLE"


def test_the_foundation_never_expires(foundation: Graph) -> None:
    provider = next(node for node in foundation.custom if node.type == "pulumi:providers:aws")
    assert "bivouac:foundation" in str(provider.inputs["defaultTags"])
    assert "bivouac:expires" not in str(provider.inputs["defaultTags"])


def test_the_outputs_are_what_the_driver_reads(foundation: Graph) -> None:
    assert set(foundation.outputs) == set(FoundationOutputs.model_fields)
    assert FoundationOutputs.model_validate(foundation.outputs).archive_bucket == BUCKETS.archive


def test_settings_survive_the_stack_configuration() -> None:
    campaign = CampaignSettings(spec=example_spec(), deadline=DEADLINE, data_digest=DATA_DIGEST, operator_arn="arn:x")
    for settings in (campaign, FoundationSettings(account=ACCOUNT, region="us-east-1")):
        values = {key.removeprefix("bivouac:"): value for key, value in settings.to_config().items()}
        assert read_settings(values.get) == settings


def test_a_stack_that_does_not_say_what_it_is_is_refused() -> None:
    with pytest.raises(ValidationError, match="kind"):
        read_settings({"kind": "camp"}.get)


def test_the_build_network_has_no_way_in_and_costs_nothing_while_no_builder_runs(foundation: Graph) -> None:
    assert not foundation.of("SecurityGroupIngressRule")
    assert not any("ingress" in str(node.inputs) for node in foundation.of("SecurityGroup"))
    billing = ("NatGateway", "Eip", "VpcEndpoint", "Instance", "LoadBalancer")
    assert not [node for kind in billing for node in foundation.of(kind)]


def test_a_foundation_whose_campaigns_name_a_builders_place_has_roles_and_no_network() -> None:
    settings = FoundationSettings(account=ACCOUNT, region="us-east-1", build_network=False)
    made = build(program, settings.to_config())
    network = ("Vpc", "Subnet", "InternetGateway", "RouteTable", "Route", "SecurityGroup", "SecurityGroupEgressRule")
    assert not [node for kind in network for node in made.of(kind)]
    outputs = FoundationOutputs.model_validate(made.outputs)
    assert outputs.build_network_subnet_id is None and outputs.build_network_security_group_id is None
    assert made.one("RolePolicy", "builder-guard") and outputs.build_network_instance_profile


def test_what_ends_builders_can_end_only_builders(foundation: Graph) -> None:
    (statement,) = json.loads(str(foundation.one("RolePolicy", "builder-guard").inputs["policy"]))["Statement"]
    assert statement["Action"] == ["ec2:TerminateInstances"]
    assert statement["Condition"] == {"StringEquals": {"aws:ResourceTag/bivouac:role": "builder"}}
    builder = json.loads(str(foundation.one("RolePolicy", "builder").inputs["policy"]))["Statement"]
    actions = {action for one in builder for action in one["Action"]}
    assert not any(action.startswith(("s3:", "iam:", "ec2:")) for action in actions)
