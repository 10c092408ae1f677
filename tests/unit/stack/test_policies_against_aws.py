"""Every policy that we write or generate, held against AWS's service authorization reference: each action exists, some
resource of its statement has the form that IAM asks about, and no condition waits for a key that IAM does not send."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from infra.rehearsal.aws.iam.policies import listed
from infra.stack.access import closing, freeze, policies
from infra.stack.access.key import key_policy
from infra.stack.budget import topic_policy
from tests.example import example_spec
from tests.service_authorization import actions, condition_keys, fits, fits_any, forms, knows_key
from tests.unit.stack.iam_questions import LIMIT, OWN, SPEC, WHERE, A, Document, R, written
from tests.unit.stack.iam_requests import requests
from tests.unit.stack.test_who_may_do_what import WRITTEN, read

POLICIES: dict[str, list[Document]] = {
    **{name: read(*files) for name, files in WRITTEN.items()},
    **OWN,
    "data": written(policies.preparation(example_spec(data={"source": "s3://texts/web"}))),
    "schedule of the closer": written([closing.asking(WHERE, "train", "abc")]),
    "freeze": written(freeze.no_purchases()),
}
"""Policies of one principal together: what one of them needs another may grant."""
LIMITS = {"boundary": LIMIT, "topic": [topic_policy(SPEC)], "key": [key_policy(A, R)]}
"""They grant by action patterns, or on themselves."""


def statements(documents: list[Document]) -> Iterator[tuple[str, dict[str, Any], list[str], list[str]]]:
    for document in documents:
        for number, one in enumerate(listed(document["Statement"])):
            meant = [action for pattern in listed(one["Action"]) for action in actions(pattern)]
            yield str(one.get("Sid", number)), one, meant, listed(one["Resource"])


def unknown_actions(documents: list[Document]) -> Iterator[str]:
    for sid, one, _, _ in statements(documents):
        yield from (f"{sid}: {pattern} is no action" for pattern in listed(one["Action"]) if not actions(pattern))


def unfit_resources(documents: list[Document]) -> Iterator[str]:
    for sid, one, meant, resources in statements(documents):
        for pattern in listed(one["Action"]):
            asked = {form for action in actions(pattern) for form in forms(action).values()}
            if not any(fits(resource, form) for resource in resources for form in asked):
                yield f"{sid}: {pattern} is asked about {sorted(asked)}, not {resources}"
        every = {form for action in meant for form in forms(action).values()}
        yield from (f"{sid}: nothing is asked about {on}" for on in resources if not any(fits(on, f) for f in every))


def missing_resources(documents: list[Document]) -> Iterator[str]:
    granted = dict[str, list[str]]()
    for _, one, meant, resources in statements(documents):
        for action in meant if one["Effect"] == "Allow" else ():
            granted.setdefault(action, []).extend(resources)
    for action, resources in granted.items():
        for kind, form in forms(action, required=True).items():
            if not fits_any(resources, form):
                yield f"{action} needs a {kind} too ({form}); there are {resources}"


def unknown_keys(documents: list[Document]) -> Iterator[str]:
    for sid, one, meant, resources in statements(documents):
        for operator, tests in one.get("Condition", {}).items():
            for key in tests:
                for action in meant:
                    if not knows_key(condition_keys(action, resources), key):
                        yield f"{sid}: {operator} {key} is not sent with {action}"


@pytest.mark.parametrize("name", [*POLICIES, *LIMITS])
def test_a_policy_names_what_iam_is_asked_about(name: str) -> None:
    documents = {**POLICIES, **LIMITS}[name]
    assert [*unknown_actions(documents), *unfit_resources(documents)] == []


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_has_all_resources_of_its_actions_and_conditions_on_keys_that_iam_sends(name: str) -> None:
    assert [*missing_resources(POLICIES[name]), *unknown_keys(POLICIES[name])] == []


@pytest.mark.parametrize("name", WRITTEN)
def test_a_question_of_these_tests_is_one_that_iam_asks(name: str) -> None:
    odd = [
        (action, on)
        for action, on, _ in requests(f"must {name}")
        if not any(fits(on, form) for form in forms(action).values())
    ]
    assert odd == []
