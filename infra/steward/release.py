"""The release of all GPU nodes but one while the archive runs, which needs one node."""

from __future__ import annotations

import logging
import time

from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.account import explained
from infra.record.payloads.training import ArchiveBegun
from infra.steward.parts import Parts

log = logging.getLogger("steward")
AGAIN_S = 2.0
BILLS = ("pending", "running", "stopping")
"""States of an instance that EC2 may bill."""


class GangRelease:
    """Gives back all but one node of the gang.

    The others are cordoned first, so the Job's pod starts on the node that stays. A successor reads from the Auto
    Scaling group which nodes are left, and from their cordons which one stays. Each look repeats the calls that AWS
    refused; a refusal costs money but never fails the archive.
    """

    def __init__(self, steward: Parts) -> None:
        self._steward, self._nodes = steward, steward.nodes
        self._given: set[str] = set()
        self._kept: str | None = None
        self._next, self._lowered = 0.0, False

    def begin(self) -> None:
        """Start the release if a checkpoint is known to be on the shared tier: else a node may hold the only copy."""
        steward = self._steward
        is_done = steward.config.spec.nodes.count == 1 or steward.store.state().archives_on is not None
        if is_done or steward.committed.step() < 0 or steward.committed.troubles():
            return
        try:
            members = self._nodes.held()
            wanted_accelerators = steward.config.accelerators
            fit = [node for node in self._nodes.facts() if node.fit(wanted_accelerators) and node.instance in members]
            if not fit:
                return
            self._kept = min(fit, key=lambda node: node.name).instance
        except (ClientError, BotoCoreError) as error:
            log.warning("no node is given back before the archive: %s", explained(error))
        else:
            self.look()

    def look(self) -> None:
        """Give back the nodes that are left; record it once only the one node bills."""
        if self._kept is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + AGAIN_S
        try:
            if self._give_back() and self._is_one_left():
                config = self._steward.config
                group, node_count = self._steward.names.gpu_group, config.spec.nodes.count
                self._steward.store.append(ArchiveBegun(group=group, nodes=1, of=node_count, released=len(self._given)))
                self._kept = None
        except (ClientError, BotoCoreError) as error:
            log.warning("not every node is given back yet: %s", explained(error))

    def _give_back(self) -> bool:
        """Return whether the group now wants only the one node."""
        other_instances = self._nodes.held() - {self._kept} - self._given
        for node in self._nodes.facts():
            if node.instance in other_instances and not node.cordoned:
                self._nodes.cordon(node.name, True)
        for instance in sorted(other_instances):
            try:
                self._nodes.release(instance)
            except (ClientError, BotoCoreError) as error:
                log.warning("%s is not given back yet: %s", instance, explained(error))
            else:
                self._given.add(instance)
        if other_instances - self._given:
            return False
        if not self._lowered and self._nodes.desired() > 1:  # nodes that never came are still wanted
            self._nodes.set_desired(1)
        self._lowered = True
        return True

    def _is_one_left(self) -> bool:
        return sum(launch.state in BILLS for launch in self._nodes.launched()) <= 1
