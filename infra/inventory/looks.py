"""Every look of the certificate, with the plain AWS client: one per kind that can be listed, and the tagging service's.

A look knows neither Pulumi's state nor what we think we made; what of it is the campaign's is for `evidence` to say.
What of a thing may not be read is said of that thing, and the listing goes on: one locked bucket hides no other.
"""

from __future__ import annotations

from infra.inventory.stale_tags import tagged
from infra.kinds import KINDS, ResourceKind

ANYTHING = ResourceKind("anything tagged", "tagging", list=tagged, attributable=False)
"""The tagging service's own view, of what has no look of its own; nothing of it can be removed."""
LOOKS: tuple[ResourceKind, ...] = (*(kind for kind in KINDS if kind.list is not None), ANYTHING)
