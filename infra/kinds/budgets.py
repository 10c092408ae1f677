"""Budgets and their actions."""

from __future__ import annotations

from collections.abc import Iterator

from infra.aws.account import Account, every
from infra.kinds.finding import by_call
from infra.kinds.kind import Inputs, ResourceKind, Step
from infra.kinds.listed import arn_of, one_by_one, place_in
from infra.kinds.thing import Thing, thing


def _budgets(account: Account) -> Iterator[Thing]:
    owner = account.identity()["Account"]
    for item in every(account.client("budgets"), "describe_budgets", "Budgets", AccountId=owner):
        yield thing(item, item["BudgetName"], item["BudgetName"], {})


def _budget(account: Account, inputs: Inputs) -> list[str]:
    """Find a budget, in the caller's account unless the program names another."""
    find = by_call("budgets", "describe_budget", "{accountId}:{name}", AccountId="accountId", BudgetName="name")
    return find(account, {"accountId": account.identity()["Account"], **inputs})


def _budget_by_arn(account: Account, arn: str) -> bool:
    """Return True if the budget exists; an action's ARN stands for its budget, with which it is deleted."""
    owner, name = arn.split(":")[4], place_in(arn).split("/")[1]
    account.client("budgets").describe_budget(AccountId=owner, BudgetName=name)
    return True


def _remove_budget(account: Account, thing: Thing) -> None:
    account.client("budgets").delete_budget(AccountId=account.identity()["Account"], BudgetName=thing.id)


def _budget_actions(account: Account, inputs: Inputs) -> list[str]:
    owner, budget = account.identity()["Account"], inputs["budgetName"]
    request = {"AccountId": owner, "BudgetName": budget}
    actions = every(account.client("budgets"), "describe_budget_actions_for_budget", "Actions", **request)
    return [f"{owner}:{action['ActionId']}:{budget}" for action in actions]


KINDS = (
    ResourceKind(
        "budget", "budgets", arn_of("budgets", "budget/"), list=_budgets, ask=one_by_one(_budget_by_arn),
        account_wide=True, step=Step.RECORDS, remove=_remove_budget,
        type="aws:budgets/budget:Budget", find=_budget,
    ),
    ResourceKind("budget action", type="aws:budgets/budgetAction:BudgetAction", find=_budget_actions),
)  # fmt: skip
