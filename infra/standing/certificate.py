"""An independent look at an existing cluster after the end: what is left of the campaign, kept, and given back.

It knows neither what was removed nor in which order: it asks the API server for each kind that a campaign can make,
and S3 for each of its folders. A question that is refused or unanswered is a look that saw nothing, and no clean one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from botocore.exceptions import BotoCoreError, ClientError
from lightkube.resources.core_v1 import PersistentVolumeClaim, ResourceQuota

from infra.cluster.kubernetes import OF_WORLD
from infra.cluster.standing.fabric_claims import DRA_GROUP, template_name
from infra.errors import first_line
from infra.inventory.certify import SETTLE_S, Certificate, Looked
from infra.record.events import CampaignState
from infra.record.identity import archive_prefix
from infra.record.payloads.outputs import BakeOutput, ProvisionOutput
from infra.spec.names import LOCAL_CLAIM, copies_prefix, data_prefix
from infra.standing.belongings import (
    PROTECTED,
    Belonging,
    BorrowedNode,
    OwnKind,
    Tenant,
    belongings,
    borrowed_nodes,
    documents_of,
    node_history,
    own_kinds,
    refusal,
)
from infra.standing.ending import PASSING_FOLDERS
from infra.standing.folders import shared_place

T = TypeVar("T")


def certify(
    tenant: Tenant, state: CampaignState, identity: str, unreached_nodes: Mapping[str, str], principal: str
) -> Certificate:
    """Look until nothing is found, or what the cluster's controllers remove has had its time.

    `identity`: of the campaign; `unreached_nodes`: see `CampaignEnd`; `principal`: who looks. The certificate may be
    unclean: `refuse_unclean` judges it.
    """
    start = tenant.now()
    while True:
        certificate = look(tenant, state, identity, unreached_nodes, principal)
        if certificate.clean or tenant.now() - start > SETTLE_S:
            return certificate
        words = (*certificate.found, *certificate.blind)
        tenant.say(f"not clean yet: {', '.join(words[:3])}"[:200])
        tenant.pause()


def look(
    tenant: Tenant, state: CampaignState, identity: str, unreached_nodes: Mapping[str, str], principal: str
) -> Certificate:
    """Return the certificate of one look."""
    survey = _Look(tenant)
    nodes = survey.nodes()
    for kind in own_kinds(tenant.spec, tenant.cluster):
        survey.kind(kind, nodes)
    kept_rows = tuple(survey.folders(state, identity))
    borrowed_rows = (*survey.given_back(nodes, unreached_nodes), *survey.places())
    return Certificate(
        campaign=tenant.campaign,
        account=tenant.spec.account,
        region=tenant.spec.region,
        principal=principal,
        at=datetime.now(UTC),
        looks=tuple(survey.looks),
        kept=kept_rows,
        suspects=(*_unseeable(tenant), *survey.suspects),
        borrowed=borrowed_rows,
    )


def _unseeable(tenant: Tenant) -> Iterator[str]:
    """Yield what no right of the grant shows: to list Secrets or claims of devices would show other people's."""
    if tenant.spec.runtime.by_mpirun:
        yield (
            f"secrets {tenant.campaign}-a*-ssh of the MPI operator, which go with their MPIJobs: see with `kubectl -n "
            f"{tenant.cluster.namespace} get secrets`"
        )
    if template_name(tenant.cluster.fabric):
        yield (
            f"resourceclaims {tenant.campaign}-* of {DRA_GROUP}, which go with their pods: see with `kubectl -n "
            f"{tenant.cluster.namespace} get resourceclaims`"
        )


@dataclass
class _Look:
    """One look at everything, each question by itself: a refusal blinds only one."""

    tenant: Tenant
    looks: list[Looked] = field(default_factory=list)
    on_node: dict[str, list[str]] = field(default_factory=dict)
    """Node -> what of the campaign is on it, or waits for it."""
    blind_to_pods: bool = False
    suspects: list[str] = field(default_factory=list)
    """What a person must look at."""

    def nodes(self) -> dict[str, BorrowedNode] | None:
        """Return the nodes that the campaign may have used; None if nobody says."""
        return self._ask(
            "nodes", lambda: borrowed_nodes(self.tenant, node_history(self.tenant.store)), lambda nodes: len(nodes)
        )

    def kind(self, kind: OwnKind, nodes: Mapping[str, BorrowedNode] | None) -> None:
        """Look for the campaign's objects of a kind."""
        documents, words = self._answer(lambda: documents_of(self.tenant.client, kind))
        rows = belongings(kind, documents or [], self.tenant.campaign)
        waiting = [row for row in rows if self._waits(row, nodes)]
        for row in rows:
            if row.node or row in waiting:
                words_left = f"{row}{' (deleted)' if row.leaving else ''}"
                self.on_node.setdefault(row.node or next(iter(self.on_node)), []).append(words_left)
        self.blind_to_pods |= kind.word == "pods" and words is not None
        findings = [row for row in rows if row not in waiting]
        self.looks.append(
            Looked(
                service=_service(kind.word),
                kind=kind.word,
                listed=len(documents or ()),
                found=tuple(row.name for row in findings),
                evidence=tuple(row.evidence for row in findings),
                could_not_look=words,
            )
        )

    def _waits(self, row: Belonging, nodes: Mapping[str, BorrowedNode] | None) -> bool:
        """Return whether the object is deleted and waits for a dead node: a pod on it, or what such pods name."""
        if row.leaving and row.kind.word in PROTECTED:
            return bool(self.on_node)
        node = (nodes or {}).get(row.node)
        return row.leaving and node is not None and bool(node.trouble) and node.is_there

    def given_back(self, nodes: Mapping[str, BorrowedNode] | None, unreached_nodes: Mapping[str, str]) -> Iterator[str]:
        """Yield the state of each node."""
        for name, node in (nodes or {}).items():
            words = [node.trouble or "Ready", *filter(None, [node.held])]
            words.append(self._left_on(node))
            if name in unreached_nodes:
                folder = f"{self.tenant.cluster.local}/{self.tenant.cluster.namespace}/{self.tenant.campaign}"
                words.append(f"our folder {folder} was not reached: {unreached_nodes[name]}")
            if node.left_out:
                words.append(f"left out by us: {node.left_out}")
            yield f"node {name}: {'; '.join(words)}"

    def _left_on(self, node: BorrowedNode) -> str:
        """Return what of the campaign is on a node."""
        if self.blind_to_pods:
            return "nobody could look for pods of ours on it"
        rows = self.on_node.get(node.name)
        if not rows:
            return "no pod of ours on it"
        return f"left on it{' until it is back or removed' if node.trouble else ''}: {', '.join(rows)}"

    def places(self) -> Iterator[str]:
        """Yield the state of namespace, claims and quota."""
        cluster = self.tenant.cluster
        left = sum(len(row.found) for row in self.looks)
        kinds = sum(row.could_not_look is None for row in self.looks)
        place = f"namespace {cluster.namespace} of context {cluster.context}"
        yield f"{place}: {left or 'no'} objects of ours, by {kinds} kinds that could be looked at"
        claims = self._ask("borrowed claims", self._claims, len) or {}
        for name in filter(None, [cluster.shared.claim, LOCAL_CLAIM]):
            yield f"claim {name}: {claims.get(name, 'it is not there any more' if claims else 'not seen')}"
        if (shared := shared_place(self.tenant)) is not None:
            yield f"folder {shared.folder} of claim {shared.claim}: kept, for other campaigns may have theirs in it"
        yield from self._ask("resourcequotas", self._quotas, len) or ()

    def _claims(self) -> dict[str, str]:
        claims = self.tenant.client.list(PersistentVolumeClaim)
        return {
            str(claim.metadata.name): str((claim.status.phase if claim.status else None) or "no phase")
            for claim in claims
            if claim.metadata is not None
        }

    def _quotas(self) -> list[str]:
        rows = []
        for quota in self.tenant.client.list(ResourceQuota):
            status = quota.status
            limits, amounts = (status.hard if status else None) or {}, (status.used if status else None) or {}
            words = ", ".join(f"{amounts.get(name, '?')} of {limit} {name}" for name, limit in sorted(limits.items()))
            rows.append(f"quota {quota.metadata.name if quota.metadata else ''}: {words or 'nothing'} in use")
        return rows

    def folders(self, state: CampaignState, identity: str) -> Iterator[str]:
        """Look through the bucket; yield what is kept on purpose."""
        store, root = self.tenant.store, self.tenant.spec.bucket_root
        for folder in PASSING_FOLDERS:
            self._keys(f"{store.prefix}/{folder}/", is_left=True)
            self._versions(f"{store.prefix}/{folder}/")
        record = self._keys(f"{store.prefix}/")
        archive = f"{root}{archive_prefix(self.tenant.campaign, identity)}/"
        if state.archive is not None:
            yield f"{state.archive.manifest} (golden checkpoint of step {state.archive.step})"
        if state.unproven is not None:
            yield f"{state.unproven.prefix} (what the job left, as it is; no checkpoint is proven in it)"
        if state.archive is not None or state.unproven is not None:
            yield f"s3://{store.bucket}/{archive} ({self._keys(archive, is_needed=True)} objects of the archive)"
        copies = f"{root}{copies_prefix(self.tenant.campaign, identity)}/"
        is_needless = state.archive is not None and not state.archive.copies_left
        if (count := self._keys(copies, is_left=is_needless)) and not is_needless:
            reason = "the campaign has no archive" if state.archive is None else "locked, or not removed"
            yield f"s3://{store.bucket}/{copies} ({count} objects of interval copies; {reason})"
        if digest := ProvisionOutput.known(state.finished_stages).data_digest:
            prefix = f"{root}{data_prefix(digest)}"
            yield f"s3://{store.bucket}/{prefix} (prepared data, {self._keys(prefix)} objects)"
        if key := BakeOutput.known(state.finished_stages).manifest:
            yield f"s3://{store.bucket}/{key} (names of the images)"
        yield f"s3://{store.bucket}/{store.prefix}/ (record and what lies below it, {record} objects)"

    def _keys(self, prefix: str, is_left: bool = False, is_needed: bool = False) -> int:
        """Look at a folder of the bucket and return its number of objects. `is_left`: there should be none;
        `is_needed`: there should be some."""
        store, words, count = self.tenant.store, None, 0
        try:
            pages = store.s3.get_paginator("list_objects_v2").paginate(Bucket=store.bucket, Prefix=prefix)
            count = sum(page.get("KeyCount", len(page.get("Contents", ()))) for page in pages)
        except (ClientError, BotoCoreError) as error:
            words = f"{type(error).__name__}: {error}"[:300]
        findings = (f"{count} objects",) if is_left and count else ()
        kind = f"s3://{store.bucket}/{prefix}"
        if is_needed and not count and words is None:
            findings = ("nothing, though the record says that it is kept",)
        evidence = ("in the campaign's folder",) * len(findings)
        row = Looked(service="s3", kind=kind, listed=count, found=findings, evidence=evidence, could_not_look=words)
        self.looks.append(row)
        return count

    def _versions(self, prefix: str) -> None:
        """Look for versions of what was deleted in a folder, which stay billed. A storage or a login that shows none
        leaves them to a person."""
        store, findings = self.tenant.store, []
        try:
            pages = store.s3.get_paginator("list_object_versions").paginate(Bucket=store.bucket, Prefix=prefix)
            rows = [version for page in pages for version in page.get("Versions", ())]
            findings = [version["Key"] for version in rows if not version["IsLatest"]]
        except (ClientError, BotoCoreError) as error:
            self.suspects.append(
                f"versions below s3://{store.bucket}/{prefix}: {first_line(error)[:200]}; see with `aws s3api "
                f"list-object-versions --bucket {store.bucket} --prefix {prefix}` whether the bucket keeps any"
            )
            return
        words = (f"{len(findings)} versions",) if findings else ()
        kind, evidence = f"versions below s3://{store.bucket}/{prefix}", ("in the campaign's folder",) * len(words)
        self.looks.append(Looked(service="s3", kind=kind, listed=len(findings), found=words, evidence=evidence))

    def _ask(self, kind: str, question: Callable[[], T], count: Callable[[T], int]) -> T | None:
        """Return an answer about what is borrowed, and note the look; None if there is none."""
        answer, words = self._answer(question)
        self.looks.append(
            Looked(
                service=_service(kind), kind=kind, listed=0 if answer is None else count(answer), could_not_look=words
            )
        )
        return answer

    def _answer(self, question: Callable[[], T]) -> tuple[T | None, str | None]:
        """Return the answer, or why there is none."""
        try:
            return question(), None
        except OF_WORLD as error:
            return None, refusal(error)[:300]


def _service(word: str) -> str:
    return word.partition(".")[2] or "kubernetes"
