"""The report of a campaign: a pure model, computed from its record, and its page."""
