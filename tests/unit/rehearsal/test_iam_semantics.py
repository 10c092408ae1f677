"""The emulated IAM against IAM's documentation: what a condition, a resource, a principal means. All by hand."""

from __future__ import annotations

from typing import Any

import pytest

from infra.rehearsal.aws.iam.call_context import given_tags
from infra.rehearsal.aws.iam.policies import Question, allowed, trusts, verdict
from tests.tables import Table

TABLE = Table(__file__)

FILE = "arn:aws:s3:::box/a/file"


def document(*statements: dict[str, Any], version: str = "2012-10-17") -> dict[str, Any]:
    return {"Version": version, "Statement": list(statements)}


def statement(effect: str = "Allow", **more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {"Effect": effect}
    if not {"Action", "NotAction"} & set(more):
        base["Action"] = "s3:GetObject"
    if not {"Resource", "NotResource"} & set(more):
        base["Resource"] = "*"
    return base | more


def holds(condition: dict[str, Any], effect: str = "Allow", /, **context: list[str]) -> bool:
    """Whether a statement with this condition applies; keys are written with `__` for `:`."""
    question = Question("s3:GetObject", FILE, {key.replace("__", ":").lower(): value for key, value in context.items()})
    return verdict([document(statement(effect, Condition=condition))], question) == effect


@TABLE.cases
def test_a_key_that_the_request_lacks(operator: str, value: str, met: bool) -> None:
    assert holds({operator: {"aws:key": value}}) is met
    assert holds({operator: {"aws:key": value}}, "Deny") is met
    assert holds({operator: {"aws:key": value}}, aws__key=[]) is met, "an empty set is no value"


@TABLE.cases
def test_a_key_with_one_value(operator: str, values: Any, seen: str, met: bool) -> None:
    assert holds({operator: {"aws:Key": values}}, aws__key=[seen]) is met


@TABLE.cases
def test_a_key_with_a_set_of_values(operator: str, values: Any, seen: list[str], met: bool) -> None:
    assert holds({operator: {"aws:TagKeys": values}}, aws__tagkeys=seen) is met


def test_several_values_without_a_set_operator_allow_nothing_and_suffice_to_deny() -> None:
    """IAM promises nothing of it."""
    assert not holds({"StringEquals": {"aws:TagKeys": ["a", "b"]}}, aws__tagkeys=["a", "b"])
    assert holds({"StringEquals": {"aws:TagKeys": "z"}}, "Deny", aws__tagkeys=["a", "b"])


def test_all_operators_and_all_keys_of_a_condition_must_hold() -> None:
    both = {"StringEquals": {"aws:a": "1", "aws:b": "2"}, "Bool": {"aws:c": "true"}}
    assert holds(both, aws__a=["1"], aws__b=["2"], aws__c=["true"])
    assert not holds(both, aws__a=["1"], aws__b=["3"], aws__c=["true"])
    assert not holds(both, aws__a=["1"], aws__b=["2"], aws__c=["false"])


def test_an_operator_that_is_not_known_is_an_error_and_no_answer() -> None:
    with pytest.raises(ValueError, match="StringSimilar"):
        holds({"StringSimilar": {"aws:a": "1"}})


def test_the_condition_on_transport_goes_by_what_the_request_says() -> None:
    tls = document(statement(), statement("Deny", Condition={"Bool": {"aws:SecureTransport": "false"}}))
    assert allowed([tls], Question("s3:GetObject", FILE, {"aws:securetransport": ["true"]}))
    assert not allowed([tls], Question("s3:GetObject", FILE, {"aws:securetransport": ["false"]}))


def test_an_explicit_deny_wins_wherever_it_stands() -> None:
    yes, no = document(statement()), document(statement("Deny", Resource=FILE))
    for order in ([yes, no], [no, yes], [document(statement(), statement("Deny"))]):
        assert not allowed(order, Question("s3:GetObject", FILE))
    assert allowed([yes, no], Question("s3:GetObject", f"{FILE}-2"))
    assert not allowed([], Question("s3:GetObject", FILE)), "what nobody allows is denied"


@TABLE.cases
def test_a_resource_is_compared_part_by_part(pattern: str, arn: str, met: bool) -> None:
    question = Question("s3:GetObject", arn)
    assert allowed([document(statement(Resource=pattern))], question) is met
    if pattern != "*":
        assert allowed([document(statement(NotResource=pattern))], question) is not met


def test_an_unnamed_resource_is_allowed_by_a_star_alone_and_denied_by_any_denial() -> None:
    unknown = Question("s3:GetObject", None)
    assert allowed([document(statement(Resource="*"))], unknown)
    assert not allowed([document(statement(Resource="arn:aws:s3:::box/*"))], unknown)
    assert not allowed([document(statement(Resource="arn:aws:*:*:*:*"))], unknown)
    assert not allowed([document(statement(NotResource="arn:aws:s3:::vault/*"))], unknown)
    assert not allowed([document(statement(), statement("Deny", Resource="arn:aws:s3:::vault/*"))], unknown)
    assert not allowed([document(statement(), statement("Deny", NotResource="arn:aws:s3:::box/*"))], unknown)


def test_a_statement_of_an_identity_without_a_resource_allows_nothing() -> None:
    assert not allowed([document({"Effect": "Allow", "Action": "*"})], Question("s3:GetObject", FILE))


def test_actions_are_compared_without_case_and_by_what_they_are_not() -> None:
    assert allowed([document(statement(Action="S3:getobject"))], Question("s3:GetObject", FILE))
    assert not allowed([document(statement(Action="s3:GetObject"))], Question("s3:GetObjectVersion", FILE))
    but = document(statement(NotAction=["iam:*", "s3:Delete*"]))
    assert allowed([but], Question("s3:GetObject", FILE)) and not allowed([but], Question("s3:DeleteObject", FILE))
    assert not allowed([but], Question("IAM:CreateRole", "arn:aws:iam::1:role/x"))


HOME = "arn:aws:s3:::box/${aws:username}/*"


def test_a_policy_variable_stands_for_the_requests_value_and_for_nothing_without_one() -> None:
    def may(pattern: str, key: str, version: str = "2012-10-17", **context: list[str]) -> bool:
        values = {name.replace("__", ":").replace("_S_", "/"): value for name, value in context.items()}
        question = Question("s3:GetObject", f"arn:aws:s3:::box/{key}", values)
        return allowed([document(statement(Resource=pattern), version=version)], question)

    assert may(HOME, "ann/x", aws__username=["ann"])
    assert not may(HOME, "bob/x", aws__username=["ann"])
    assert not may(HOME, "ann/x"), "no value"
    assert not may(HOME, "ann/x", aws__username=["ann", "bob"]), "several"
    assert not may(HOME, "ann/x", aws__username=["*"]), "a value is no pattern"
    assert not may(HOME, "ann/x", "2008-10-17", aws__username=["ann"]), "older policies know no variables"
    team = "arn:aws:s3:::box/${aws:PrincipalTag/team, 'all'}/*"
    assert may(team, "red/x", aws__principaltag_S_team=["red"]) and may(team, "all/x")
    assert not may(team, "all/x", aws__principaltag_S_team=["red"])


def test_a_policy_variable_in_a_condition() -> None:
    same = {"StringEquals": {"aws:ResourceTag/team": "${aws:PrincipalTag/team}"}}
    tagged = {"aws:resourcetag/team": ["red"]}

    def met(**more: list[str]) -> bool:
        context = tagged | {f"aws:principaltag/{key}": value for key, value in more.items()}
        return allowed([document(statement(Condition=same))], Question("s3:GetObject", FILE, context))

    assert met(team=["red"]) and not met(team=["blue"]) and not met()


@TABLE.cases
def test_a_trust_names_whom_it_means(who: dict[str, Any], asks: tuple[str, ...], met: bool) -> None:
    trust = document({"Effect": "Allow", "Action": "sts:AssumeRole", **who})
    assert trusts(trust, asks, "sts:AssumeRole", {}) is met
    assert not trusts(trust, asks, "sts:TagSession", {})


def test_a_trust_with_the_account_that_a_service_acts_for() -> None:
    mine = {"StringEquals": {"aws:SourceAccount": "1"}}
    trust = document(
        {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "x.amazonaws.com"}, "Condition": mine}
    )
    told = {"aws:sourceaccount": ["1"]}
    assert trusts(trust, ["x.amazonaws.com"], "sts:AssumeRole", told)
    assert not trusts(trust, ["x.amazonaws.com"], "sts:AssumeRole", {"aws:sourceaccount": ["2"]})
    assert not trusts(trust, ["x.amazonaws.com"], "sts:AssumeRole", {})
    barred = {**trust, "Statement": [*trust["Statement"], {"Effect": "Deny", "Action": "*", "Principal": "*"}]}
    assert not trusts(barred, ["x.amazonaws.com"], "sts:AssumeRole", told)


def test_the_tags_of_a_call_are_read_in_each_services_spelling() -> None:
    for spelled in ({"Key": "a", "Value": "1"}, {"key": "a", "value": "1"}, {"TagKey": "a", "TagValue": "1"}):
        assert given_tags({"Tags": [spelled]}) == {"a": "1"}
    assert given_tags({"tags": {"a": "1"}}) == {"a": "1"}
