"""A campaign's resources at AWS: `survey` lists them, `evidence` decides whose they are."""

from infra.inventory.evidence import Evidence, Knowledge, Suspicion, is_account_wide
from infra.inventory.survey import ANYTHING, LOOKS

__all__ = ["ANYTHING", "LOOKS", "Evidence", "Knowledge", "Suspicion", "is_account_wide"]
