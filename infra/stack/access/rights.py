"""Policy documents that depend on account and region alone, from the templates in `rights.yaml`."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import Any

from infra.spec import names
from infra.stack.access.policies import AccountPlace, Statement, actions, allow
from infra.tables import table

_templates = cache(table)
_CONSTANTS = {
    "closer": names.CLOSER,
    "repository": names.REPOSITORY,
    "steward_repository": names.STEWARD_REPOSITORY,
    "topics": names.TOPICS,
    "webhook_secrets": names.WEBHOOK_SECRETS,
    "job_secrets": names.JOB_SECRETS,
    "copies": names.COPIES_PREFIX,
    "text_tag": names.TEXT_TAG,
    "mounts_tag": names.MOUNTS_TAG,
    "foundation_tag": names.FOUNDATION_TAG,
    "key_tag": names.KEY_TAG,
    "state_context": names.STATE_CONTEXT[0],
}


def rights(document: str, place: AccountPlace) -> list[Statement]:
    """Return the statements of a document of `rights.yaml` for an account and region."""
    values = {
        **_CONSTANTS,
        **asdict(names.buckets(place.account, place.region)),
        "account": place.account,
        "region": place.region,
        "freeze": names.freeze_policy(place.region),
        "closer_role": names.closer_role(place.region),
    }

    def fill(part: Any) -> Any:
        if isinstance(part, dict):
            return {fill(key): fill(value) for key, value in part.items()}
        if isinstance(part, list):
            return [fill(item) for item in part]
        return part.format(**values)

    return [
        allow(calls(template["allow"]), fill(template["resources"]), fill(template.get("condition", {})))
        for template in _templates("infra.stack.access", "rights")[document]
    ]


def calls(by_service: dict[str, str]) -> list[str]:
    """Return the actions of a table from service to their names."""
    return [action for service, text in by_service.items() for action in actions(service, text)]
