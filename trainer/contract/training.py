"""The training configuration, `/config/train.json`, which launch writes from the spec and every rank reads."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from trainer.contract.frozen import Frozen

Timed = Literal["off", "log", "checkpoint", "quarantine", "stop"]
"""What follows from an alarm about times: they differ between two runs, so nothing here changes a result."""
Whole = Literal["off", "log", "checkpoint", "stop"]
"""The same where the alarm names no rank."""
Numeric = Literal["off", "log", "checkpoint", "slow", "skip", "stop"]
"""What follows from an alarm about values, which a resumed run sees again."""
GRADIENT_BUCKET = 500_000_000
"""Elements of DeepSpeed's buffer of gradients on their way, which it allocates whole: no more than the model has."""


class LoraConfig(Frozen, allow_inf_nan=False):
    """Low-rank adapters: W x + (alpha / rank) B A x, of which A and B are trained and W stays as it came. With a model
    by name or folder, and `init_from`."""

    rank: int = Field(default=16, ge=1)
    """Rows of A, and columns of B."""
    alpha: float = Field(default=32.0, gt=0)
    """Numerator of the adapters' factor."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Part of the adapters' inputs that each rank drops by its own chance."""
    targets: Literal["all-linear"] | Annotated[tuple[str, ...], Field(min_length=1)] = "all-linear"
    """Matrices of each layer that get an adapter, such as `[q_proj, v_proj]`. `all-linear`: all of them. The output
    layer has none."""


class ModelConfig(Frozen, allow_inf_nan=False):
    """The model: a small decoder of our own (pre-norm RMSNorm, rotary positions, SwiGLU, tied embeddings), of `layers`,
    `width` and `heads`; or, with `name`, one that `transformers` builds. A name alone may stand in place of the
    section: `model: llama-3.1-8b`."""

    name: str = ""
    """A model of `infra/spec/models/catalogue.yaml`, a folder with Hugging Face's `config.json`, or a function
    `package.module:function` of the trainer image. Empty: the small decoder."""
    config: dict[str, Any] = {}
    """Values of `config.json` in place of the named model's, or what a function wants. In the record: all values."""
    layers: int = Field(default=4, ge=1)
    """Transformer layers. A named model has its own."""
    width: int = Field(default=192, ge=16)
    """Residual width; a multiple of `heads`. A named model has its own."""
    heads: int = Field(default=6, ge=1)
    """Attention heads. A named model has its own."""
    context: int = Field(default=256, ge=8)
    """Sequence length in tokens. Of a named model: the catalogue's, or what a folder's model can, at most 4096."""
    vocabulary: int = Field(default=4096, ge=258)
    """Tokenizer size; must equal the data manifest's. A named model has its own, and the data may have fewer tokens."""
    parameters: int | None = Field(default=None, ge=1)
    """Parameters of a function's model, for plan and check. Others are computed."""
    document_attention: bool = False
    """Tokens see only their own document of a packed sequence."""
    reset_positions: bool = False
    """Rotary positions begin at 0 in each document of a packed sequence."""
    end_of_document: int = Field(default=0, ge=0)
    """Token that ends a document; must equal the data manifest's with `document_attention` or `reset_positions`."""
    lora: LoraConfig | None = None
    """Train adapters alone, beside frozen weights. None: train all weights."""

    @property
    def is_function(self) -> bool:
        return ":" in self.name

    def reads(self, vocabulary: int) -> bool:
        """Return whether the model can train on data of that many tokens: a named one may know more."""
        return vocabulary == self.vocabulary or (bool(self.name) and vocabulary < self.vocabulary)


class RecomputeConfig(Frozen, allow_inf_nan=False):
    """Activations that the backward pass computes again instead of keeping: less memory for more time."""

    policy: Literal["none", "selective", "full"] = "none"
    """`selective` keeps a block's matrix products and attention, and computes what is cheap again. `full` keeps nothing
    but a block's input, for about a third more time."""
    every: int = Field(default=1, ge=1)
    """Every n-th block follows the policy."""


class ParallelConfig(Frozen, allow_inf_nan=False):
    """Ranks that compute one model or one sequence together; all others compute different data."""

    tensor: int = Field(default=1, ge=1)
    """Ranks of one node that share each matrix (DeepSpeed's AutoTP), with ZeRO stage 1 or 2."""
    sequence: int = Field(default=1, ge=1)
    """Ranks that share each sequence (Ulysses), with any ZeRO stage."""


class GradientConfig(Frozen, allow_inf_nan=False):
    """How gradients are summed. Those of each micro batch are in the computation's format, whatever stands here."""

    accumulate: Literal["float32", "bfloat16"] | None = None
    """Format of the sum over a step's micro batches. None: that of `precision`. With `precision: bfloat16`, float32
    needs ZeRO stage 2 or 3."""
    reduce: Literal["float32", "bfloat16"] | None = None
    """Format of the sum over the ranks. None: that of `precision`. float32 doubles what goes over the network; with
    `accumulate: float32` the sum then stays in float32 up to the optimizer, else it is rounded once."""


class ZeroConfig(Frozen):
    """Sizes of DeepSpeed's ZeRO stage 3. What is left out follows from the model's shape and the nodes' links;
    `bivouac plan` prints each with its formula."""

    prefetch_bucket: int | None = Field(default=None, ge=0)
    """Parameters that are gathered ahead of their use (`stage3_prefetch_bucket_size`)."""
    persistence_threshold: int | None = Field(default=None, ge=0)
    """Parameters of a tensor up to which each rank keeps it whole (`stage3_param_persistence_threshold`)."""
    reduce_bucket: int | None = Field(default=None, ge=1)
    """Gradients that are summed over the ranks at once (`reduce_bucket_size`)."""
    hpz_ranks: int | None = Field(default=None, ge=1)
    """Neighbouring ranks that together hold a second copy of the weights, from which the backward pass gathers
    (`zero_hpz_partition_size`). 1: no copy."""


class OptimizerConfig(Frozen, allow_inf_nan=False):
    learning_rate: float = Field(default=2e-3, gt=0)
    """Learning rate after the warm-up."""
    minimum_learning_rate: float = Field(default=2e-4, ge=0)
    """Learning rate at the last step."""
    warmup_steps: int = Field(default=20, ge=0)
    """Steps over which the learning rate rises."""
    weight_decay: float = Field(default=0.1, ge=0)
    """AdamW's weight decay."""
    beta1: float = 0.9
    """AdamW's first beta."""
    beta2: float = 0.95
    """AdamW's second beta."""
    clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradients; larger ones are scaled down."""
    offload: Literal["none", "cpu"] = "none"
    """`cpu`: float32 weights and both moments lie in the node's memory, and its processors compute the update. It needs
    ZeRO stage 1, 2 or 3."""


class DataConfig(Frozen, allow_inf_nan=False):
    manifest_digest: str = ""
    """SHA-256 of the data manifest required at `/data/manifest.json`; empty until the data is prepared."""
    seed: int = 1234
    weights: dict[str, float] = {}
    """Weights of the mixture by source; empty: the manifest's, else by the sources' sizes."""
    shuffle_blocks: int = Field(default=16, ge=1)
    """Blocks, each of one shard's size, whose samples are shuffled together: what a node holds at a time."""
    stream_from: str = ""
    """`s3://bucket/prefix` or a folder to copy shards from; empty: the data mount."""
    cache_gib: float = Field(default=0.0, ge=0)
    """Size of the cache on the node's disk into which shards are copied ahead of need; 0: no cache."""
    steps_ahead: int = Field(default=2, ge=1)
    """Steps whose batches are read ahead, beside the training."""


class CheckpointConfig(Frozen, allow_inf_nan=False):
    every_steps: int = Field(default=20, ge=1)
    """Save on the local tier each time this many steps have passed."""
    shared_every: int = Field(default=1, ge=1)
    """Replicate every n-th local checkpoint to the shared tier."""
    keep_local: int = Field(default=2, ge=1)
    """Committed steps that stay on the local tier."""
    keep_shared: int = Field(default=3, ge=1)
    """Committed steps that stay on the shared tier."""
    keep_hours: float | None = Field(default=None, gt=0)
    """Committed steps older than this are removed, except the newest proven one. None: no limit of age."""
    keep_free_gib: float = Field(default=0.0, ge=0)
    """The oldest steps are removed until this much is free on a tier, except the newest proven one."""
    neighbour: bool = True
    """Each node also keeps its predecessor's shards on its NVMe: a node loss then needs no read of the shared tier."""
    measured: bool = False
    """Adjust `every_steps` during training, from measured stall, dip and failures."""
    node_mtbf_hours: float = Field(default=2000.0, gt=0)
    """Assumed mean time between failures of one node until this campaign has seen any."""


class WatchConfig(Frozen, allow_inf_nan=False):
    """What follows from each detector's alarm: `off`; `log`, an event; `checkpoint`, a save now; `slow`, a lower
    learning rate for a while; `skip`, back to the checkpoint before it and on without those batches; `quarantine`, the
    node is replaced; `stop`, the warm cluster is held for a person."""

    loss: Numeric = "log"
    """A loss far above the rolling median."""
    norm: Numeric = "log"
    """A gradient norm far above the rolling median."""
    layers: Numeric = "log"
    """The gradient of one block, or of the embedding or output layer, explodes or dies while the others' stays."""
    weights: Numeric = "log"
    """Weights move much faster or slower than the learning rate says, or jump."""
    activations: Numeric = "log"
    """The last block's output grows or shrinks suddenly."""
    data: Numeric = "log"
    """A batch whose distribution of tokens is unlike that of the others: damaged, repeated, foreign."""
    divergence: Numeric = "log"
    """The held-out loss is above its least, twice in a row, whether the training loss falls or rises with it."""
    drift: Numeric = "log"
    """The training loss or the gradient's norm leaves its level slowly or for good, where no single step stands out."""
    precision: Numeric = "log"
    """The loss differs from that in float32 by more than it did, or by more than a hundredth; see `precision_every`."""
    throughput: Whole = "log"
    """Steps take 5 % longer than they once did."""
    straggler: Timed = "log"
    """One rank computes slower than the others, for long."""
    clip: bool = False
    """Scale a gradient whose norm is an outlier down to the rolling bound of `norm`; all others stay as they are."""
    window: int = Field(default=128, ge=48)
    """Steps that the rolling statistics remember; no detector judges before it has 24."""
    slow_factor: float = Field(default=0.5, gt=0, le=1)
    """Factor of the learning rate after an alarm with `slow`."""
    slow_steps: int = Field(default=200, ge=1)
    """Steps for which it stays so."""
    skip_steps: int = Field(default=20, ge=1)
    """Steps from an alarm's begin whose batches are drawn but not trained on, after a roll-back with `skip`."""
    replay_every: int = Field(default=0, ge=0)
    """Steps between two searches for silent data corruption: all ranks compute the same gradients twice, and every bit
    must be equal. Each costs two micro batches. 0: none."""
    replay_kernels: Literal["deterministic", "training"] = "deterministic"
    """Kernels of these searches. `deterministic`: those that add in a fixed order, slower and with more memory in the
    backward pass of attention. `training`: those of a step, of which two runs on one sound GPU may differ: gradients
    are compared within a tolerance from all ranks' own spread, and `replay: quarantine` is refused."""
    precision_every: int = Field(default=0, ge=0)
    """Steps between two searches for a loss of precision: rank 0 computes the loss of one micro batch also in float32,
    while the others wait. With `precision: bfloat16`, where each rank has a whole model. 0: none."""
    replay: Literal["log", "quarantine", "stop"] = "log"
    """What follows when a rank computes differently from itself or from all others."""


class TrainConfig(Frozen, allow_inf_nan=False):
    """A rank's whole configuration, besides its environment."""

    campaign: str
    identity: str = ""
    """The campaign's identity beyond its name; checkpoints with another one are refused."""
    shared_tier: str = ""
    """`s3://bucket/prefix` that is the shared tier of checkpoints, this campaign's alone; empty: the shared mount."""
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    gradients: GradientConfig = GradientConfig()
    data: DataConfig = DataConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    steps: int = Field(ge=1)
    global_batch: int = Field(ge=1)
    """Sequences per optimizer step over all ranks: micro_batch x data-parallel ranks x accumulation."""
    micro_batch: int = Field(default=2, ge=1)
    init_from: str = ""
    """A folder with a Hugging Face model's weights to start from, as the pods see it; empty: new weights."""
    parallel: ParallelConfig = ParallelConfig()
    recompute: RecomputeConfig = RecomputeConfig()
    compile: Literal["none", "layers"] = "none"
    """`layers`: `torch.compile` makes a few kernels of each layer."""
    watch: WatchConfig = WatchConfig()
    peak_bf16_tflops: float | None = Field(default=None, gt=0)
    """Dense peak of one accelerator, from the catalogue, for MFU and HFU; None: they are not told."""
    zero_stage: int = Field(default=1, ge=0, le=3)
    zero: ZeroConfig = Field(default=ZeroConfig(), exclude_if=lambda zero: zero == ZeroConfig())
    precision: str = "float32"
    """float32 or bfloat16."""
    seed: int = 42
    evaluate_every: int = Field(default=50, ge=1)
    """Steps between evaluations on the held-out part; the last step is always evaluated."""
    evaluate_batches: int = Field(default=8, ge=1)
    """Held-out batches of `micro_batch` sequences; rank 0 evaluates them, so the loss does not depend on world size."""
    collective_timeout_s: float = Field(default=30.0, gt=0)
    """Longest wait in one exchange of a step or of DeepSpeed's load; then a peer counts as lost. It does not apply to
    opening data and fetching checkpoints: there ranks wait for a living peer, up to the startup timeout."""
    start_timeout_s: float = Field(default=600.0, gt=0)
    """Longest wait of nodes and ranks for each other's start."""
    first_step_timeout_s: float | None = Field(default=None, gt=0)
    """The same as `collective_timeout_s` for an attempt's first step, which compiles kernels, captures graphs and opens
    connections on each rank at its own pace. None: `collective_timeout_s`."""
    save_timeout_s: float = Field(default=3600.0, gt=0)
    """Longest wait for the other ranks' disks while a checkpoint is written, committed and replicated."""
    restarts_in_place: int = Field(default=0, ge=0)
    """Times that the agents of an attempt stay after a process has died, and start all ranks again; 0: never."""
    meet_s: float = Field(default=15.0, gt=0)
    """Longest wait of an agent for the others after that. Without all of them the attempt ends."""
    grace_s: float | None = Field(default=None, gt=0)
    """Time from SIGTERM to SIGKILL of the pod, for an emergency save."""
    threads: int = Field(default=1, ge=1)
    """torch threads per rank on CPU; part of bitwise equality."""

    @property
    def first_step_s(self) -> float:
        return max(self.collective_timeout_s, self.first_step_timeout_s or 0.0)

    def sums_in_float32(self, operation: Literal["accumulate", "reduce"]) -> bool:
        return (getattr(self.gradients, operation) or self.precision) == "float32"

    def tokens_per_step(self) -> int:
        return self.global_batch * self.model.context
