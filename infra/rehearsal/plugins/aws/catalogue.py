"""All resource types that a program may use in a rehearsal."""

from __future__ import annotations

from infra.rehearsal.plugins.aws import accounts, eks, network, storage
from infra.rehearsal.plugins.aws.resource import ResourceType
from infra.rehearsal.plugins.aws.rows import rows

_CLASSES = {**network.CLASSES, **accounts.CLASSES, **storage.CLASSES, **eks.CLASSES}

RESOURCES: dict[str, ResourceType] = {row.token: _CLASSES.get(row.token, ResourceType)(row) for row in rows()}
