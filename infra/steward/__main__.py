"""Entry point of the steward's pod: take the lease, then run. After a kill its successor continues from the record."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from datetime import timedelta
from functools import partial
from pathlib import Path

from lightkube import Client

from infra.aws.account import QUICK, Account
from infra.checkpoints.place import bucket_place
from infra.clock import Clock
from infra.cluster import attempts
from infra.cluster.kubernetes import followers_of, from_pod
from infra.cluster.pod_logs import PodLogs
from infra.cluster.standing.borrowed import nodes_of
from infra.cluster.steward_config import CONFIG_PATH, LEASE_TTL, LONGEST_SILENCE, STEWARD_LEASE, StewardConfig
from infra.errors import LeaseHeld
from infra.notices.outbox import Outbox, Teller
from infra.notices.ways import ways
from infra.record.lease import Lease
from infra.record.meter import read
from infra.record.store import CampaignStore
from infra.session import closer
from infra.spec.names import Names
from infra.spec.standing import WEBHOOK_KEY
from infra.steward import last_resort, watchdog
from infra.steward.monitoring.alerts import AlertWatch
from infra.steward.policy import policy_of
from infra.steward.request_handling import RequestServer
from infra.steward.seeing.lookout import bills
from infra.steward.seeing.sources import PASSING
from infra.steward.silence import EVERY_S
from infra.steward.steward import Steward
from trainer.contract import ExitCode

log = logging.getLogger("steward")
_TO_COMMIT = timedelta(minutes=5)
"""For the gang's commit, before AWS's schedule ends the nodes of a steward that has no record to begin with."""


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    # Process 1 ignores SIGTERM by default. An orderly exit releases the lease, so a successor need not wait.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    config = StewardConfig.model_validate_json(Path(CONFIG_PATH).read_text())
    clock = Clock()
    client = from_pod(clock.hear)
    account = Account(config.spec.s3_region, QUICK)
    account.heard = clock.hear
    writer = f"steward-{os.uname().nodename}"
    s3 = account.client("s3")
    folder = f"{config.spec.bucket_root}campaigns/{config.spec.campaign}"
    store = CampaignStore(s3, config.state_bucket, config.spec.campaign, writer, folder, now=clock.now)
    lease = store.lease(STEWARD_LEASE, LEASE_TTL, s3=account.lease_client(LEASE_TTL), patient=True)
    watchdog.pause(0)
    steward = _begin(config, account, client, store, lease, clock)
    if steward is None:
        return int(ExitCode.USER)
    tier = bucket_place(s3, config.shared_tier)
    RequestServer(store, lambda: steward.observer.agents, lease.check, bucket=tier).open()
    notice_ways = ways(config.spec, lease.check, os.environ.get(WEBHOOK_KEY, ""))
    outbox = Outbox(store, config.spec.notify, notice_ways, clock.now)
    Teller(outbox, lease.check, lambda: bills(config, read(config.lines, store.events(), clock.now()))).open()
    steward.exporter.open()
    if config.spec.addons.prometheus:
        AlertWatch(store, lease.check).open()
        steward.series.open()
    if config.spec.watches_file_system:
        steward.file_system.open()
    log.info("stewarding %s from attempt %d", config.spec.campaign, steward.attempt.number)
    try:
        steward.run()
        steward.exporter.end()
        steward.series.flush(tells=False)  # the teardown may have begun, and its thread goes on
        watchdog.stop()
        log.info("over: GPU nodes at zero; waiting for the teardown")
        # Kubernetes would restart an ended steward: it stays, with its lease, until the cluster is destroyed.
        if config.closer is not None:
            closer.attend(account, store, config.closer)
        threading.Event().wait()
    finally:
        lease.release()
    return 0


def _begin(
    config: StewardConfig, account: Account, client: Client, store: CampaignStore, lease: Lease, clock: Clock
) -> Steward | None:
    """Return a steward once the lease is free and the record answers; None for an outdated configuration. Give the GPU
    nodes back after `blind_timeout` without a record, as a running steward does."""
    blind_since, given_back, has_lease = clock.monotonic(), False, False
    longest = policy_of(config).blind_timeout
    if config.spec.cluster is None:  # else AWS's schedule ends the nodes first, without a commit
        longest = min(longest, LONGEST_SILENCE - timedelta(seconds=EVERY_S) - _TO_COMMIT)
    while True:
        try:
            if config.version < (newest := store.state().version):
                log.error(
                    "this configuration is %d, the record is at %d: a newer one is to come", config.version, newest
                )
                return None
            if not has_lease:
                lease.acquire()
                has_lease = True
            pod_logs = PodLogs(followers_of(client), client.namespace)
            return Steward(config, account, client, pod_logs, store, lease, watchdog.pause, clock)
        except LeaseHeld as error:
            blind_since = clock.monotonic()
            log.info("waiting: %s", error)
        except PASSING as error:
            log.warning("the record cannot be read or the lease cannot be taken: %s", error)
            if not given_back and clock.monotonic() - blind_since > longest.total_seconds():
                nodes = nodes_of(config.spec, account, client, Names(config.spec), lambda: None)
                kind, campaign, grace = attempts.kind_of(config.spec), config.spec.campaign, config.grace_seconds
                pause = partial(watchdog.pause, 0.5)
                reason = f"no record for longer than {longest}"
                given_back = last_resort.give_back(client, nodes, lease, kind, campaign, grace, pause, reason)
        watchdog.pause(LEASE_TTL.total_seconds() / 5)


if __name__ == "__main__":
    sys.exit(main())
