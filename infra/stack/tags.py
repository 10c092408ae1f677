"""The tags of all Bivouac resources; teardown and certificate rely on them."""

from __future__ import annotations

from datetime import UTC, datetime

from infra.spec.campaign import Spec
from infra.spec.names import CAMPAIGN_ID_TAG, CAMPAIGN_TAG, EXPIRES_TAG, FOUNDATION_TAG, OWNER_TAG, REGION_TAG


def tags(spec: Spec | None, deadline: datetime | None, identity: str | None = None) -> dict[str, str]:
    """Return the tags of a campaign's resources, or of the foundation's, which never expires and which no teardown
    takes, so it needs no region. `identity`: None for a campaign that is not recorded."""
    if spec is None or deadline is None:
        return {FOUNDATION_TAG: "true"}
    return {
        CAMPAIGN_TAG: spec.campaign,
        OWNER_TAG: spec.owner,
        EXPIRES_TAG: instant(deadline),
        REGION_TAG: spec.region,
        **({CAMPAIGN_ID_TAG: identity} if identity else {}),
    }


def instant(moment: datetime) -> str:
    """Return ISO 8601 in UTC to the second: tag values allow no more."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
