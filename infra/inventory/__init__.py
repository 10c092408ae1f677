"""What of a campaign exists at AWS: see `looks` for what is listed, `evidence` for what makes a thing its own."""

from infra.inventory.evidence import Evidence, Knowledge, Suspicion, is_account_wide
from infra.inventory.looks import ANYTHING, LOOKS

__all__ = ["ANYTHING", "LOOKS", "Evidence", "Knowledge", "Suspicion", "is_account_wide"]
