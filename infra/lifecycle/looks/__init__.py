"""Where a campaign's things can lie, how they are listed, and what makes them its own: see `listings`, `evidence`."""

from infra.lifecycle.looks.evidence import Evidence, Knowledge, Suspicion
from infra.lifecycle.looks.listings import LOOKS, Look
from infra.lifecycle.looks.thing import Thing, is_account_wide, is_ours, tags_of, thing

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
