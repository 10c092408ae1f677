"""The steward's pod: takes the lease, then stewards. Killed at any point, its successor goes on from the record."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

from infra.account import Account
from infra.actions.cluster import followers_of, from_pod
from infra.actions.pod_logs import PodLogs
from infra.actions.steward_config import CONFIG_PATH, LEASE_TTL, STEWARD_LEASE, StewardConfig
from infra.errors import LeaseHeld
from infra.steward import turning
from infra.steward.desk import Desk
from infra.steward.steward import Steward
from infra.store import CampaignStore
from trainer.contract import ExitCode

log = logging.getLogger("steward")


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    # Process 1 of its pod has no default: a polite end gives the lease back, so that a successor need not wait.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    client = from_pod()
    config = StewardConfig.model_validate_json(Path(CONFIG_PATH).read_text())
    account = Account(config.spec.region)
    store = CampaignStore(
        account.client("s3"), config.state_bucket, config.spec.campaign, f"steward-{os.uname().nodename}"
    )
    if config.version < (newest := store.state().version):
        log.error("this configuration is %d, the record is at %d: a newer steward is to come", config.version, newest)
        return int(ExitCode.USER)
    lease = store.lease(STEWARD_LEASE, LEASE_TTL, s3=account.lease_client(LEASE_TTL))
    while True:
        try:
            lease.acquire()
            break
        except LeaseHeld as error:
            log.info("waiting: %s", error)
            time.sleep(LEASE_TTL.total_seconds() / 5)
    turning.rest(0)
    steward = Steward(config, account, client, PodLogs(followers_of(client)), store, lease, turning.rest)
    Desk(store, lambda: steward.observer.agents, lease.check).open()
    log.info("stewarding %s from attempt %d", config.spec.campaign, steward.attempt)
    try:
        steward.run()
        turning.over()
        log.info("over: GPU nodes at zero; waiting for the teardown")
        # Kubernetes would start an ended steward again and again: it stays, with its lease, until the cluster falls.
        threading.Event().wait()
    finally:
        lease.release()
    return 0


if __name__ == "__main__":
    sys.exit(main())
