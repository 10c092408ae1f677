"""A campaign's resources at AWS: `stale_tags` lists them, `evidence` decides whose they are."""

from infra.inventory.evidence import Evidence, Knowledge, Suspicion, is_account_wide
from infra.inventory.stale_tags import ANYTHING, LOOKS

__all__ = ["ANYTHING", "LOOKS", "Evidence", "Knowledge", "Suspicion", "is_account_wide"]
