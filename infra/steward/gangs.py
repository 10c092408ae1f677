"""Name, labels and gang job of an attempt, from the steward's configuration."""

from __future__ import annotations

import json
from collections.abc import Iterable

from infra.cluster.fitness import NodeFacts
from infra.cluster.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL, GangJob, SecretKey
from infra.cluster.mounting import gang_mounts
from infra.cluster.steward_config import StewardConfig
from infra.spec.sections import Capacity
from trainer.contract import TOPOLOGY_NAME
from trainer.contract.workload import EVALUATE, SUPERVISOR


def labels(config: StewardConfig, attempt: int) -> dict[str, str]:
    return {CAMPAIGN_LABEL: config.spec.campaign, ATTEMPT_LABEL: str(attempt)}


def job(config: StewardConfig, attempt: int) -> str:
    """Return the name of the attempt's JobSet or MPIJob."""
    return f"{config.spec.campaign}-a{attempt}"


def files(config: StewardConfig, nodes: Iterable[NodeFacts]) -> dict[str, str]:
    """Return the files of the attempt's config map; by the network's layers the pods choose their order."""
    places = {node.name: node.network for node in nodes if node.network}
    return {**config.gang_files, **({TOPOLOGY_NAME: json.dumps(places)} if places else {})}


def gang(config: StewardConfig, attempt: int, config_map: str, nodes: int = 0) -> GangJob:
    """Return the gang of an attempt. `nodes`: their number; 0: all of the spec's."""
    return GangJob(
        name=job(config, attempt),
        campaign=config.spec.campaign,
        attempt=attempt,
        image=config.job_image or config.image,
        code_digest=config.code_digest,
        nodes=nodes or config.spec.nodes.count,
        ranks_per_node=config.ranks_per_node,
        accelerators=config.accelerators,
        efa_interfaces=config.efa_interfaces,
        efa_by_claim=config.spec.addons.efa == "dra",
        command=config.spec.runtime.pod_command,
        supervisor_image=None if config.spec.runtime.is_built_in else config.image,
        mounts=gang_mounts(config.spec),
        resources=config.spec.runtime.resources,
        secrets=bool(config.spec.secrets),
        secret_keys=_secret_keys(config),
        pull_secret=config.spec.pull_secret is not None,
        host_network=config.spec.runtime.host_network,
        by_mpirun=config.spec.runtime.by_mpirun,
        shares=config.spec.storage.shared is not None,
        sees_node=config.spec.nodes.capacity == Capacity.SPOT and not config.spec.borrows_nodes,
        config_map=config_map,
        grace_seconds=config.grace_seconds,
    )


def _secret_keys(config: StewardConfig) -> tuple[SecretKey, ...]:
    """Return where a job's secrets lie in an existing cluster; none where AWS has them."""
    if config.spec.cluster is None:
        return ()
    sources = config.spec.secrets.items()
    return tuple(SecretKey(name, source.secret, source.key or name) for name, source in sources if source.secret)


def judge(config: StewardConfig, number: int, config_map: str) -> GangJob:
    """Return the gang of one pod that evaluates and exports the newest checkpoint; `number` counts its tries."""
    judge_fields = {
        "name": f"{config.spec.campaign}-judge{number}",
        "attempt": 0,
        "nodes": 1,
        "judges": True,
        "by_mpirun": False,
    }
    return gang(config, 0, config_map).model_copy(update={**judge_fields, "command": ("python3", SUPERVISOR, EVALUATE)})
