"""Name, labels and gang job of an attempt, from the steward's configuration."""

from __future__ import annotations

from infra.cluster.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL, GangJob
from infra.cluster.steward_config import StewardConfig
from infra.spec.workload import Resources
from trainer.contract.workload import SUPERVISOR


def labels(config: StewardConfig, attempt: int) -> dict[str, str]:
    return {CAMPAIGN_LABEL: config.spec.campaign, ATTEMPT_LABEL: str(attempt)}


def job(config: StewardConfig, attempt: int) -> str:
    """Return the name of the attempt's JobSet."""
    return f"{config.spec.campaign}-a{attempt}"


def gang(config: StewardConfig, attempt: int, config_map: str) -> GangJob:
    return GangJob(
        name=job(config, attempt),
        campaign=config.spec.campaign,
        attempt=attempt,
        image=config.job_image or config.image,
        code_digest=config.code_digest,
        nodes=config.spec.nodes.count,
        ranks_per_node=config.ranks_per_node,
        accelerators=config.accelerators,
        efa_interfaces=config.efa_interfaces,
        efa_by_claim=config.spec.addons.efa == "dra",
        command=("python", "-m", "trainer.agent") if config.workload is None else ("python3", SUPERVISOR),
        supervisor_image=None if config.workload is None else config.image,
        mounts=() if config.spec.workload is None else tuple(config.spec.workload.mounts),
        resources=Resources() if config.spec.workload is None else config.spec.workload.resources,
        secrets=bool(config.spec.secrets),
        config_map=config_map,
        grace_seconds=config.grace_seconds,
    )
