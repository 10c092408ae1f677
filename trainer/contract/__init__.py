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
from trainer.contract.data import (
    DATA_MANIFEST_NAME,
    DATA_REPORT_NAME,
    DATA_SUMMARY_NAME,
    TOKENIZER_NAME,
    DataManifest,
    Parameters,
    SourceCounts,
    TokenShard,
)
from trainer.contract.health import DCGM_LONGEST_S, Expectation, GpuExpectation, HealthReport, Probe, Verdict
from trainer.contract.job import (
    AGENT_PORT,
    CONFIG_FILE,
    DATA_MOUNT,
    KERNEL_LOG,
    LOCAL_CHECKPOINTS,
    NODE_TOLD,
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
from trainer.contract.ledger import Consumed
from trainer.contract.training import CheckpointConfig, DataConfig, ModelConfig, OptimizerConfig, TrainConfig

__all__ = [
    "AGENT_PORT",
    "COMMITTED_NAME",
    "CONFIG_FILE",
    "DATA_MANIFEST_NAME",
    "DATA_MOUNT",
    "DATA_REPORT_NAME",
    "DATA_SUMMARY_NAME",
    "DCGM_LONGEST_S",
    "KERNEL_LOG",
    "LOCAL_CHECKPOINTS",
    "NODE_TOLD",
    "SHARED_CHECKPOINTS",
    "TERMINATION_LOG",
    "TOKENIZER_NAME",
    "CheckpointConfig",
    "Consumed",
    "DataConfig",
    "DataManifest",
    "Env",
    "ExitCode",
    "Expectation",
    "GpuExpectation",
    "HealthReport",
    "Manifest",
    "ModelConfig",
    "OptimizerConfig",
    "Parameters",
    "Phase",
    "Probe",
    "RankStatus",
    "Shard",
    "SourceCounts",
    "Status",
    "Termination",
    "TokenShard",
    "TrainConfig",
    "Verdict",
    "attempt_folder",
    "grace_seconds",
    "parse_manifest",
    "step_folder",
    "step_of_folder",
]
