"""What the API server of an existing cluster has answered."""

from __future__ import annotations

from trainer.contract.frozen import Frozen


class SeenNode(Frozen):
    """A node with the labels of the spec."""

    name: str
    obstacle: str
    """Why no pod of the gang can be placed on it, whoever uses it now; empty if one can."""


class HeldName(Frozen):
    """An object that is not the campaign's and has a name that the campaign would take."""

    kind: str
    name: str
    campaign: str
    """The campaign whose label it has; empty if it has none."""


class DryRun(Frozen):
    """An object that the API server was sent, and did not make."""

    what: str
    """The object, in words."""
    refusal: str
    """The server's reason; empty if it would be made."""


class SeenQueue(Frozen):
    """What keeps the gang in its queue, or may take it back there, in words; what others use now does not count."""

    absent: str = ""
    """What the queue lacks itself: LocalQueue, ClusterQueue, priority; empty if nothing."""
    inactive: str = ""
    """Why the ClusterQueue admits nobody; empty if it does."""
    uncovered: tuple[str, ...] = ()
    """Resources for which it has no quota, with those for which it has."""
    short: tuple[str, ...] = ()
    """Flavours that have less than the gang takes, with both numbers."""
    borrowed: tuple[str, ...] = ()
    """Flavours that have enough with what the cohort lends, with the queue's own number and the gang's."""
    checks: tuple[str, ...] = ()
    """Names of the admission checks that a gang with quota waits for."""


class SeenCluster(Frozen):
    user: str
    """Name by which the API server knows the driver."""
    missing_rights: tuple[str, ...] = ()
    """Rights that the driver needs and lacks, in words."""
    nodes: tuple[SeenNode, ...] | None = None
    """Nodes with the spec's labels; None: they were not looked up."""
    held_names: tuple[HeldName, ...] = ()
    """Names of the campaign's under which somebody else's objects stand."""
    volume: str = ""
    """What is wrong with the shared claim or its storage class; empty if nothing is known to be."""
    bucket: str = ""
    """Why the bucket cannot be read with the login of the Secret; empty if nothing is known to keep from it."""
    claim: str = ""
    """What pods claim of a DRA driver and is not there, in the server's words; empty if nothing is known to lack."""
    dry_runs: tuple[DryRun, ...] = ()
    policy_gap: str = ""
    """What the server would make though the policy of the grant forbids it; empty if nothing is known."""
    queue: SeenQueue | None = None
    """The queue of the spec; None: there is none, or it was not looked up."""
