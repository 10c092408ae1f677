"""The way into a campaign's living cluster, for commands that look into containers or read fresh logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import httpx2

from infra import target
from infra.aws.account import Account
from infra.cluster.execution import error_of, read_refusals
from infra.cluster.kubernetes import PATIENCE_S, streams_from_outside
from infra.cluster.ranks import Member, members, running
from infra.errors import TemporaryError, UserError
from infra.plan.layout import layout
from infra.record.payloads.stages import OperatorEntered
from infra.record.store import CampaignStore
from infra.session.session import stored_spec
from infra.spec.campaign import ApiEndpoint, Spec
from infra.spec.names import Names


class Inside:
    """A campaign's cluster that answers."""

    def __init__(self, store: CampaignStore, spec: Spec, account: Account, http: httpx2.Client) -> None:
        self._store, self._spec, self._account, self.http = store, spec, account, http

    def rank(self, rank: int) -> Member:
        """Return the pod of a global rank of the newest attempt. Raises `UserError` if it does not run."""
        per_node, node_rank = layout(self._spec).ranks_per_node, self._store.state().node_rank
        return running(members(self.http, self._store.campaign), rank, per_node, self._store.campaign, node_rank)

    def note(self, member: Member, program: str) -> None:
        """Record who enters a container, and the program's name only: its arguments may hold secrets."""
        self._store.append(
            OperatorEntered(
                who=str(self._account.identity()["Arn"]), attempt=member.attempt, node=member.node, pod=member.pod,
                program=program,
            )
        )  # fmt: skip


@contextmanager
def open_cluster(store: CampaignStore, command: str = "") -> Iterator[Inside]:
    """Yield the campaign's cluster, for `command`. Raises `UserError` if there is none or it refuses, `TemporaryError`
    if it does not answer."""
    spec = stored_spec(store)
    target.refuse_standing(spec, command)
    account, cluster = Account(spec.region), Names(spec.campaign).cluster
    try:
        http = streams_from_outside(account, cluster)
    except account.client("eks").exceptions.ResourceNotFoundException as error:
        raise UserError(
            "the campaign has no cluster",
            seen=cluster,
            cure=f"`bivouac status {store.campaign}` says where it stands, `bivouac logs` what was printed",
        ) from error
    http.event_hooks = {"response": [read_refusals]}
    with http:
        try:
            yield Inside(store, spec, account, http)
        except httpx2.HTTPStatusError as error:
            raise error_of(error.response, cluster) from error
        except httpx2.TransportError as error:
            private = spec.network.api_endpoint is ApiEndpoint.PRIVATE
            reach = "its API is private: run this in its VPC or in one that is peered with it"
            raise TemporaryError(
                "the cluster's API server does not answer",
                seen=f"{http.base_url} for {PATIENCE_S:.0f} s: {error}",
                cure=reach if private else "check the network, and `network.api_allowed_cidrs` for your address",
                delay=timedelta(seconds=30),
            ) from error
