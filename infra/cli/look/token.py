"""`bivouac token`: kubectl's credential plugin; no AWS CLI is needed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from infra.aws.account import Account

VALID = timedelta(minutes=14)


def token_command(cluster: str, region: str) -> int:
    expires = (datetime.now(UTC) + VALID).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {"token": Account(region).cluster_token(cluster), "expirationTimestamp": expires}
    print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}))
    return 0
