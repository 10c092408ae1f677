"""All looks of the certificate: one per kind that can be listed, and the tagging service's.

A look knows neither Pulumi's state nor what we think we made; `evidence` decides whose a resource is. An unreadable
resource is reported and the listing goes on: one locked bucket hides no other.
"""

from __future__ import annotations

from infra.inventory.stale_tags import tagged_things
from infra.kinds import KINDS, ResourceKind

ANYTHING = ResourceKind("anything tagged", "tagging", list=tagged_things, attributable=False)
"""Resources that only the tagging service lists; none of them can be removed."""
LOOKS: tuple[ResourceKind, ...] = (*(kind for kind in KINDS if kind.list is not None), ANYTHING)
