"""The contract between trainer and infrastructure: types and constants, without torch and boto3.

`infra` imports nothing else of `trainer`, and `trainer` imports nothing of `infra`.
"""

from trainer.contract.checkpoint import Foreign, Manifest, Shard, parse_manifest
from trainer.contract.data import (
    DATA_MANIFEST_NAME,
    DATA_REPORT_NAME,
    DATA_SUMMARY_NAME,
    TOKENIZER_NAME,
    Chat,
    DataManifest,
    Parameters,
    SourceCounts,
    TokenShard,
)
from trainer.contract.exits import NOTHING_SOUND, ROLLED_BACK, ExitCode
from trainer.contract.health import (
    AT_LEAST,
    DATA_IN_S3,
    DCGM_LONGEST_S,
    SHARED_TIER_IN_S3,
    Expectation,
    GpuExpectation,
    HealthReport,
    Limits,
    PcieLink,
    Probe,
    Verdict,
)
from trainer.contract.job import (
    AGENT_PORT,
    CONFIG_FILE,
    DATA_MOUNT,
    KERNEL_LOG,
    LOCAL_CHECKPOINTS,
    NODE_TOLD,
    SHARED_CHECKPOINTS,
    TOPOLOGY_NAME,
    Env,
    Phase,
    RankStatus,
    Status,
    StepFigures,
    Termination,
    grace_seconds,
)
from trainer.contract.ledger import Consumed
from trainer.contract.model.adapters import adapter_trouble, dropout_trouble, replay_trouble
from trainer.contract.model.layout import (
    TOLERANCES,
    Heads,
    Layout,
    Trouble,
    compile_trouble,
    layout_trouble,
    model_trouble,
)
from trainer.contract.sealed import MANIFEST as COMMITTED_NAME
from trainer.contract.sealed import attempt_folder, step_folder, step_of_folder
from trainer.contract.training import (
    GRADIENT_BUCKET,
    CheckpointConfig,
    DataConfig,
    GradientConfig,
    LoraConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    RecomputeConfig,
    TrainConfig,
    WatchConfig,
    ZeroConfig,
)
from trainer.contract.unrecognised import (
    OWN_FOLDER,
    UNRECOGNISED_NAME,
    Unrecognised,
    UnrecognisedFile,
    entry_path,
)
