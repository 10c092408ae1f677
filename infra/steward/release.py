"""Once training is over the archive needs one node: the others are given back while it runs."""

from __future__ import annotations

import logging
import time

from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.account import explained
from infra.record.events import Kind
from infra.steward.parts import Parts

log = logging.getLogger("steward")
AGAIN_S = 2.0
BILLS = ("pending", "running", "stopping")
"""States of an instance that EC2 may bill."""


class Release:
    """All but one node of the gang, on their way back to AWS.

    The Job's pod comes to the node that stays, since the others are cordoned first: it waits for none of them. A
    steward that comes in the middle reads from the Auto Scaling group who is left and from the Nodes who was to stay.
    What AWS refuses is asked again at each look; it costs money and never the archive.
    """

    def __init__(self, steward: Parts) -> None:
        self._steward, self._nodes = steward, steward.nodes
        self._given: set[str] = set()
        self._kept: str | None = None
        self._next, self._lowered = 0.0, False

    def begin(self) -> None:
        """Only where the golden checkpoint lies on the shared tier for certain: else a node may hold the only copy."""
        steward = self._steward
        done = steward.config.spec.nodes.count == 1 or steward.store.state().archives_on is not None
        if done or steward.committed.step() < 0 or steward.committed.troubles():
            return
        try:
            held = self._nodes.held()
            needed = steward.config.accelerators
            fit = [node for node in self._nodes.facts() if node.fit(needed) and node.instance in held]
            if not fit:
                return
            self._kept = min(fit, key=lambda node: node.name).instance
        except (ClientError, BotoCoreError) as error:
            log.warning("no node is given back before the archive: %s", explained(error))
        else:
            self.look()

    def look(self) -> None:
        """Give back who is left; once nobody but the one node bills, the record has it."""
        if self._kept is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + AGAIN_S
        try:
            if self._give_back() and self._gone():
                config = self._steward.config
                group, of = self._steward.names.gpu_group, config.spec.nodes.count
                self._steward.store.append(Kind.ARCHIVE_BEGUN, group=group, nodes=1, of=of, released=len(self._given))
                self._kept = None
        except (ClientError, BotoCoreError) as error:
            log.warning("not every node is given back yet: %s", explained(error))

    def _give_back(self) -> bool:
        """Whether the group wants the one node only."""
        others = self._nodes.held() - {self._kept} - self._given
        for node in self._nodes.facts():
            if node.instance in others and not node.cordoned:
                self._nodes.cordon(node.name, True)
        for instance in sorted(others):
            try:
                self._nodes.release(instance)
            except (ClientError, BotoCoreError) as error:
                log.warning("%s is not given back yet: %s", instance, explained(error))
            else:
                self._given.add(instance)
        if others - self._given:
            return False
        if not self._lowered and self._nodes.desired() > 1:  # nodes that never came are still wanted
            self._nodes.set_desired(1)
        self._lowered = True
        return True

    def _gone(self) -> bool:
        return sum(one.state in BILLS for one in self._nodes.launched()) <= 1
