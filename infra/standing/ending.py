"""The end of a campaign in an existing cluster: all that it made goes, and nothing that others made or lent.

The steward goes first, since it would make anew what it misses. Each step looks before it acts, so a driver that is
killed anywhere goes on where another one stood. A pod on a dead node stays, deleted, until the node is back or removed:
that is said and is no error, since nobody but the cluster's admin can change it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import TypeVar

import httpx2
from botocore.exceptions import BotoCoreError, ClientError
from lightkube.core.exceptions import ApiError
from lightkube.types import CascadeType

from infra.archive.bucket import forget_versions
from infra.cluster.kubernetes import is_gone, may_pass
from infra.cluster.standing.connection import UNKNOWN
from infra.errors import NotProven, PermanentError
from infra.inventory.stakes import refuse_unproven
from infra.record.events import CampaignState
from infra.record.identity import read_identity
from infra.record.objects import keys_below
from infra.record.payloads.stages import Abandoned
from infra.standing.belongings import (
    PROTECTED,
    Belonging,
    BorrowedNode,
    NodeHistory,
    OwnKind,
    Tenant,
    belongings,
    borrowed_nodes,
    documents_of,
    node_history,
    own_kinds,
    refusal,
)
from infra.standing.folders import remove_folders
from trainer.contract.frozen import Frozen

T = TypeVar("T")
GONE_S = 120.0
"""Time beyond the longest grace of a pod for what was deleted to be gone. Kubernetes calls a node dead after 50 s."""
DEFAULT_GRACE_S = 30.0
"""Kubernetes' own, of a pod that names none."""
PASSING_FOLDERS = ("carried", "requests")
"""Folders of the record with copies for people who asked, and with their questions: nothing reads them any more."""
_NO_VERSIONS = frozenset({403, 405, 501})
"""Answers of a storage that keeps no versions, or lets this login see none."""
_LAST = frozenset({"configmaps", "persistentvolumeclaims"})
"""Kinds that pods and our own Jobs need, and that hold no node."""


class CampaignEnd(Frozen):
    """What was removed, and what could not be reached."""

    removed: tuple[str, ...] = ()
    """Objects with their kind, and folders of the record."""
    stays: tuple[str, ...] = ()
    """Deleted objects that wait for a dead node, in words."""
    unreached: dict[str, str] = {}
    """Node -> why the campaign's folder there was not reached."""


def refuse(tenant: Tenant, state: CampaignState, *, abandon: bool = False, person: str = "") -> None:
    """Raise `NotProven` while something may be lost; `abandon`: `person` gives it up, which the record keeps.

    A record that tells nothing proves nothing either: the shared claim may hold checkpoints, and nobody can look.
    """
    try:
        refuse_unproven(state, tenant.campaign, read_identity(tenant.store))
    except NotProven:
        if not abandon:
            raise
        tenant.guard()
        tenant.store.append(Abandoned(who=person or None))


def end(tenant: Tenant, state: CampaignState, *, abandon: bool = False, person: str = "") -> CampaignEnd:
    """Take away everything that the campaign made. The record, its archive and copies stay.

    Raises `NotProven` as `refuse` does, `PermanentError` naming what does not go, and its cure.
    """
    refuse(tenant, state, abandon=abandon, person=person)
    kinds = own_kinds(tenant.spec, tenant.cluster)
    removal = _ObjectRemoval(tenant)
    removal.remove([kind for kind in kinds if kind.word in ("deployments.apps", "replicasets.apps")], pods_of="steward")
    removal.remove([kind for kind in kinds if kind.word not in _LAST])
    nodes = _judged_nodes(removal, tenant)
    unreached_nodes = remove_folders(tenant, nodes)
    # The Jobs that emptied the folders go with what they needed.
    removal.remove(kinds)
    removals = (*removal.removed, *_remove_passing(tenant))
    return CampaignEnd(removed=removals, stays=tuple(removal.stays.values()), unreached=unreached_nodes)


def _judged_nodes(removal: _ObjectRemoval, tenant: Tenant) -> dict[str, BorrowedNode]:
    """Return the borrowed nodes once Kubernetes has judged each that the steward found dead, at most `GONE_S` later.

    A peer's failure tells a death before the node's silence does. Until then the node looks Ready, and a Job's pod that
    was sent there would stay as long as the node is away.
    """
    history, start = node_history(tenant.store), tenant.now()
    while True:
        nodes = removal.ask("nodes", lambda: borrowed_nodes(tenant, history))
        silent_nodes = [name for name, died_at in history.deaths.items() if _looks_as_before(nodes[name], died_at)]
        if not silent_nodes or tenant.now() - start > GONE_S:
            return nodes
        tenant.say(f"waiting for Kubernetes to notice what became of {', '.join(silent_nodes)}")
        tenant.pause()


def _looks_as_before(node: BorrowedNode, died_at: datetime) -> bool:
    """Return True for a node that is Ready since a time before its death."""
    return not node.trouble and node.since is not None and node.since <= died_at


class _ObjectRemoval:
    """Deletes objects and waits until they are gone."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self.removed: list[str] = []
        self.stays: dict[str, str] = {}
        """Object -> in words, what keeps it."""

    def remove(self, kinds: Sequence[OwnKind], pods_of: str = "") -> None:
        """Delete the campaign's objects of these kinds, and wait. `pods_of`: wait for the pods of this app too, and
        delete none of them: their owner's going does."""
        tenant, start = self._tenant, self._tenant.now()
        pods = [kind for kind in own_kinds(tenant.spec, tenant.cluster) if kind.word == "pods"]
        longest, self.stays = GONE_S, {}
        while True:
            rows = [row for kind in kinds for row in self._rows(kind)]
            for row in rows:
                self._delete(row)
            if pods_of:
                rows += [row for row in self._rows(pods[0]) if _app(row) == pods_of]
            longest = max(longest, *(_grace_s(row) + GONE_S for row in rows if row.node), GONE_S)
            left = self._waited_for(rows)
            if not left:
                return
            words = ", ".join(map(str, left[:3])) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
            if tenant.now() - start > longest:
                raise PermanentError(
                    f"objects of campaign {tenant.campaign} do not go",
                    seen=f"{words} after {longest:.0f} s",
                    cure=f"`kubectl -n {tenant.cluster.namespace} describe` says what holds them (a finalizer, a "
                    f"kubelet that does not answer); then `bivouac down {tenant.campaign}` goes on",
                )
            tenant.say(f"waiting for {words}")
            tenant.pause()

    def _rows(self, kind: OwnKind) -> list[Belonging]:
        return belongings(
            kind, self.ask(kind.word, lambda: documents_of(self._tenant.client, kind)), self._tenant.campaign
        )

    def _delete(self, row: Belonging) -> None:
        """Delete a labelled object once. What a controller made goes with its owner."""
        if row.leaving or not row.has_label or not row.kind.has_label:
            return
        self._tenant.guard()
        try:
            self._tenant.client.delete(row.kind.resource, row.name, cascade=CascadeType.BACKGROUND)
        except ApiError as error:
            if is_gone(error):
                return
            if not may_pass(error):
                raise self._refusal(f"delete {row.kind.word}", error) from error
        except httpx2.TransportError:
            return  # the next look tells whether it was heard
        self.removed.append(str(row))

    def _waited_for(self, rows: Sequence[Belonging]) -> list[Belonging]:
        """Return the objects that will go by themselves; note those that wait for a dead node."""
        if not rows:
            return []
        nodes = self.ask("nodes", lambda: borrowed_nodes(self._tenant, NodeHistory(_nodes_of(rows))))
        dead = {name for name, node in nodes.items() if node.trouble and node.is_there}
        held_rows = [row for row in rows if row.leaving and row.node in dead]
        self.stays = {str(row): f"{row} stays until node {row.node} is back or removed" for row in held_rows}
        protected_rows = [row for row in rows if row.leaving and row.kind.word in PROTECTED and held_rows]
        self.stays |= {str(row): f"{row} stays as long as {held_rows[0]}" for row in protected_rows}
        return [row for row in rows if str(row) not in self.stays]

    def ask(self, request: str, question: Callable[[], T]) -> T:
        """Return the API server's answer, asked again while it may come. Raises `PermanentError` for a refusal."""
        start = self._tenant.now()
        while True:
            try:
                return question()
            except httpx2.HTTPError as error:
                if not may_pass(error) or self._tenant.now() - start > GONE_S:
                    raise self._refusal(f"list {request}", error) from error
                self._tenant.say(f"the API server does not answer: {refusal(error)}"[:200])
            self._tenant.pause()

    def _refusal(self, request: str, error: httpx2.HTTPError) -> PermanentError:
        cluster = self._tenant.cluster
        if isinstance(error, ApiError) and error.status.code == UNKNOWN:
            cure = f"log in to context {cluster.context} again, then `bivouac down {self._tenant.campaign}` goes on"
            return PermanentError("the cluster does not know this login any more", seen=refusal(error), cure=cure)
        return PermanentError(
            f"the cluster does not let the campaign {request}",
            seen=f"namespace {cluster.namespace} in context {cluster.context}: {refusal(error)}",
            cure="have an admin apply what `bivouac grant` prints, then "
            f"`bivouac down {self._tenant.campaign}` goes on",
        )


def _nodes_of(rows: Collection[Belonging]) -> frozenset[str]:
    return frozenset(row.node for row in rows if row.node)


def _app(row: Belonging) -> str:
    return str((row.document["metadata"].get("labels") or {}).get("app", ""))


def _grace_s(row: Belonging) -> float:
    grace = (row.document.get("spec") or {}).get("terminationGracePeriodSeconds")
    return DEFAULT_GRACE_S if grace is None else float(grace)


def _remove_passing(tenant: Tenant) -> tuple[str, ...]:
    """Delete the folders of the record that only served a living steward; return those that had anything.

    A bucket with versions keeps and bills what is only deleted, so the versions go too, where this login may see them.
    Raises `PermanentError` if S3 refuses.
    """
    store, emptied_folders = tenant.store, []
    for folder in PASSING_FOLDERS:
        prefix = f"{store.prefix}/{folder}/"
        try:
            keys = keys_below(store.s3, store.bucket, prefix)
            for key in keys:
                tenant.guard()
                store.s3.delete_object(Bucket=store.bucket, Key=key)
            _forget_versions(tenant, prefix)
        except (ClientError, BotoCoreError) as error:
            cure = (
                f"let the login of Secret {tenant.cluster.s3.secret} list and delete there, then `bivouac down` again"
            )
            raise PermanentError("a folder of the record stays", seen=f"{prefix}: {error}", cure=cure) from error
        emptied_folders += [f"s3://{store.bucket}/{prefix}"] if keys else []
    return tuple(emptied_folders)


def _forget_versions(tenant: Tenant, prefix: str) -> None:
    """Delete the versions below a prefix; of those that nobody may list or delete, the certificate says so."""
    tenant.guard()
    try:
        forget_versions(tenant.store.s3, tenant.store.bucket, prefix)
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] not in _NO_VERSIONS:
            raise
