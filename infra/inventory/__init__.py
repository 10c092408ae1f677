"""Where a campaign's things can lie, how they are listed, and what makes them its own: see `listings`, `evidence`."""

from infra.inventory.evidence import Evidence, Knowledge, Suspicion
from infra.inventory.listings import LOOKS, Look
from infra.inventory.thing import Thing, is_account_wide, is_ours, tags_of, thing

__all__ = [
    "LOOKS",
    "Evidence",
    "Knowledge",
    "Look",
    "Suspicion",
    "Thing",
    "is_account_wide",
    "is_ours",
    "tags_of",
    "thing",
]
