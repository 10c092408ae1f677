"""The contract between trainer and infrastructure: types and constants, no torch, no boto3.

`infra` imports nothing else of `trainer`, and `trainer` imports nothing of `infra`.
"""

from trainer.contract.checkpoint import (
    COMMITTED_NAME,
    Manifest,
    Shard,
    attempt_folder,
    parse_manifest,
    step_folder,
    step_of_folder,
)
from trainer.contract.data import DATA_MANIFEST_NAME, DataManifest, TokenShard
from trainer.contract.health import Expectation, HealthReport, Probe
from trainer.contract.job import (
    AGENT_PORT,
    CONFIG_FILE,
    DATA_MOUNT,
    LOCAL_CHECKPOINTS,
    SHARED_CHECKPOINTS,
    TERMINATION_LOG,
    Env,
    ExitCode,
    Phase,
    RankStatus,
    Status,
    Termination,
    grace_seconds,
)
from trainer.contract.training import CheckpointConfig, DataConfig, ModelConfig, OptimizerConfig, TrainConfig

__all__ = [
    "AGENT_PORT",
    "COMMITTED_NAME",
    "CONFIG_FILE",
    "DATA_MANIFEST_NAME",
    "DATA_MOUNT",
    "LOCAL_CHECKPOINTS",
    "SHARED_CHECKPOINTS",
    "TERMINATION_LOG",
    "CheckpointConfig",
    "DataConfig",
    "DataManifest",
    "Env",
    "ExitCode",
    "Expectation",
    "HealthReport",
    "Manifest",
    "ModelConfig",
    "OptimizerConfig",
    "Phase",
    "Probe",
    "RankStatus",
    "Shard",
    "Status",
    "Termination",
    "TokenShard",
    "TrainConfig",
    "attempt_folder",
    "grace_seconds",
    "parse_manifest",
    "step_folder",
    "step_of_folder",
]
