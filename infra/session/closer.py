"""Starting the closer, the build of the account that ends a campaign which nobody drives any more."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta

from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.account import Account
from infra.record.events import CampaignState
from infra.record.lease import DRIVER_LEASE, StoredLease
from infra.record.store import CampaignStore
from infra.spec.names import CAMPAIGN_VARIABLE, CLOSER, CODE_VARIABLE

log = logging.getLogger("closer")
_LOOK_S = 5.0
_AGAIN_S = 600.0
"""A build takes a minute or two until it holds the campaign, and is asked for again if it never does."""


def driver_of(store: CampaignStore) -> StoredLease | None:
    return store.lease(DRIVER_LEASE, timedelta(seconds=1)).current()


def is_left(driver: StoredLease | None, state: CampaignState) -> bool:
    """Return whether nobody drives and nobody will: the driver died, or left on purpose. One that a person interrupted
    has given its lease back: that person is there, goes on or ends it."""
    if driver is None or driver.living:
        return False
    return state.detached is not None or not driver.record.released


def ask(account: Account, campaign: str, code: str) -> str:
    """Start a build that ends the campaign with this code, if nobody drives it; return its id."""
    build_variables = {CAMPAIGN_VARIABLE: campaign, CODE_VARIABLE: code}
    variables = [{"name": name, "value": value, "type": "PLAINTEXT"} for name, value in build_variables.items()]
    build = account.client("codebuild").start_build(projectName=CLOSER, environmentVariablesOverride=variables)
    return str(build["build"]["id"])


def attend(
    account: Account,
    store: CampaignStore,
    code: str,
    pause: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Ask for the closer whenever this campaign, which is over, is left by its driver; it ends the cluster, and us with
    it. Return at once if a person must decide what becomes of its checkpoints.

    A refusal is only logged: a schedule of the campaign starts the closer too.
    """
    asked_at: float | None = None
    while True:
        try:
            if not (state := store.state()).settled:
                return
            if is_left(driver_of(store), state) and (asked_at is None or now() - asked_at > _AGAIN_S):
                asked_at = now()
                log.info("nobody drives: the closer is asked, %s", ask(account, store.campaign, code))
        except (ClientError, BotoCoreError) as error:
            log.warning("the closer cannot be asked: %s", error)
        pause(_LOOK_S)
