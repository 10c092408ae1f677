"""Looks at the GPU nodes, by Kubernetes each turn and by EC2 less often while all is well."""

from __future__ import annotations

from collections.abc import Callable

from infra.cluster.fitness import NodeFacts
from infra.cluster.standing.borrowed import GangNodes
from infra.steward.seeing.sources import Away, Sources

ASK_EC2_S = 2.0
"""Between two questions to EC2 while all is well: each takes as long as a fifth of a turn's work."""


class NodeLooks:
    """Remembers the last answers, to fill in for a source that does not answer or is not asked."""

    def __init__(self, nodes: GangNodes, sources: Sources, monotonic: Callable[[], float]) -> None:
        self._nodes, self._sources, self._monotonic = nodes, sources, monotonic
        self._known: tuple[NodeFacts, ...] | None = None
        self._asked = float("-inf")
        """When EC2 was last asked."""

    def look(self, is_quiet: bool) -> tuple[NodeFacts, ...] | None:
        """Return the nodes, as last seen while the cluster does not answer; None before its first answer. `is_quiet`: a
        pod does not answer, so EC2's word is wanted now."""
        now = self._monotonic()
        keeps = not is_quiet and self._is_well() and now - self._asked < ASK_EC2_S
        ask_ec2 = self._sources.due("AWS") and not keeps
        try:
            nodes = self._sources.ask("cluster", lambda: self._nodes.facts(ask_ec2))
        except Away:
            return self._known
        if keeps:
            known_nodes = {node.instance: node for node in self._known or ()}
            # Of a node that is new EC2 has said nothing: the next turn asks.
            nodes = tuple(node.with_word_of_ec2(known_nodes.get(node.instance, node)) for node in nodes)
        self._known = nodes
        if ask_ec2:
            self._asked = now
            if self._nodes.not_told is not None:
                self._sources.note_failure("AWS", self._nodes.not_told)
            else:
                self._sources.note_answer("AWS")
        return self._known

    def _is_well(self) -> bool:
        """Return whether every node was ready at the last look, and running by EC2's word."""
        is_away = self._sources.away("AWS")
        return not is_away and all(node.ready and node.instance_state == "running" for node in self._known or ())
