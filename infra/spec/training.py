"""The spec's section `training`: the built-in trainer's model, optimizer, batch and length."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from infra.spec.models import dial
from infra.spec.models.named import resolve_model
from infra.spec.section import Section
from infra.spec.workload.links import INIT, refuse_no_place
from trainer.contract import (
    GradientConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    RecomputeConfig,
    WatchConfig,
    ZeroConfig,
    grace_seconds,
)

Amount = Annotated[float, BeforeValidator(dial.amount, json_schema_input_type=float | str)]

_SAVE_AT_LEAST_S = 600.0


def _dial_or_both(schema: dict[str, Any]) -> None:
    schema["required"] = []
    schema["anyOf"] = [{"required": names} for names in (["steps", "global_batch"], ["parameters"], ["compute"])]


class Training(Section):
    model_config = ConfigDict(json_schema_extra=_dial_or_both)

    parameters: Amount | None = Field(default=None, gt=0)
    """One dial: a number of parameters, such as `1.3B`. Model, batch, learning rate and steps follow, where they are
    not given; `bivouac plan` prints each with its formula and source."""
    compute: Amount | None = Field(default=None, gt=0)
    """The other dial: floating-point operations of the whole training, such as `1e21`. Give one of the two."""
    model: Annotated[ModelConfig, BeforeValidator(resolve_model, json_schema_input_type=str | ModelConfig)] = (
        ModelConfig()
    )
    """The model: a name, or a section."""
    init_from: Annotated[str | None, AfterValidator(refuse_no_place)] = None
    """Weights that a named model starts from, in Hugging Face's form (safetensors): an S3 prefix, or a folder of this
    machine with 4 GiB at most, which is uploaded; `hf:OWNER/NAME` is what `hf download` brought. None: new weights."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """AdamW with warm-up and cosine decay."""
    gradients: GradientConfig = GradientConfig()
    """Number formats in which gradients are summed."""
    steps: int = Field(ge=1)
    """Optimizer steps of the whole training. Derived from `parameters` or `compute` where one is given."""
    global_batch: int = Field(ge=1)
    """Sequences per optimizer step over all ranks: `micro_batch` x data-parallel ranks x accumulation steps. Derived
    likewise."""
    micro_batch: int = Field(default=2, ge=1)
    """Sequences that one rank computes at once, or one group of ranks with `parallel`."""
    zero_stage: int = Field(default=1, ge=0, le=3)
    """Stage of DeepSpeed's ZeRO."""
    zero: ZeroConfig = Field(default=ZeroConfig(), exclude_if=lambda zero: zero == ZeroConfig())
    """Sizes of stage 3."""
    parallel: ParallelConfig = ParallelConfig()
    """Ranks that compute one model or one sequence together."""
    recompute: RecomputeConfig = RecomputeConfig()
    """Activations that the backward pass computes again instead of keeping them."""
    compile: Literal["none", "layers"] = "none"
    """`layers`: each layer's operations become a few kernels of `torch.compile`, in an attempt's first step. They are
    kept on the node's disk for the next attempt. Not with ZeRO stage 3, `parallel` or `watch.precision_every`."""
    watch: WatchConfig = WatchConfig()
    """Detectors of trouble in the training, and what follows from each alarm. The default is to log."""
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Number format of the computation."""
    seed: int = 42
    """Seed of the initial weights."""
    evaluate_every: int = Field(default=50, ge=1)
    """Steps between evaluations on the held-out part. The last step is always evaluated."""
    evaluate_batches: int = Field(default=8, ge=1)
    """Held-out batches of `micro_batch` sequences per evaluation."""
    evaluation_tolerance: float = Field(default=0.0, ge=0, le=0.05)
    """Largest relative difference between the loss that training recorded and that of the archived model, read back and
    evaluated anew. 0: equal in every bit. Where kernels add in no fixed order, as some on GPUs do, 0.001 is usual; the
    archive's proof and the report then say that it was used."""
    step_seconds_estimate: float | None = Field(default=None, gt=0)
    """Estimated time of one step, for plan and check until steps are measured. None: it follows from the MFU that
    published trainings of this size reached on this accelerator; the plan names the source, or says `unmeasured`."""
    collective_timeout_s: float = Field(default=30.0, gt=0)
    """Time that a rank waits in one exchange of a step, or of DeepSpeed's load, before it calls a peer lost. Opening
    data and fetching a checkpoint have no such limit: others wait for a slow rank up to the startup timeout."""
    start_timeout_s: float = Field(default=600.0, gt=0)
    """Time that nodes and ranks wait for each other's start. `recovery.startup_timeout` bounds it too."""
    first_step_timeout_s: float | None = Field(default=None, gt=0)
    """`collective_timeout_s` of an attempt's first step, in which each rank compiles kernels, captures graphs and opens
    connections. None: four times `collective_timeout_s`, at most 0.8 times `recovery.hang_timeout`; that, too, with
    `compile`."""
    save_timeout_s: float | None = Field(default=None, gt=0)
    """Time that ranks wait for the others' disks while a checkpoint is written, committed and replicated; the steward
    takes a gang that saves for hung after the same time. None: twice `recovery.hang_timeout`, at least 10 minutes."""

    @model_validator(mode="before")
    @classmethod
    def _follows_the_dial(cls, section: Any) -> Any:
        return dial.complete(section)

    @model_validator(mode="after")
    def _says_no_two_things(self) -> Self:
        if self.parameters is not None and self.compute is not None:
            raise ValueError("give either `parameters` or `compute`")
        if self.parameters is not None and self.model.name:
            raise ValueError("`parameters` derive a model and `model` names one; with a name give `compute`")
        if self.init_from is not None and not self.model.name:
            raise ValueError("the small decoder starts from no weights; give `model` the name of theirs")
        return self

    @property
    def links(self) -> dict[str, str]:
        """Name -> S3 prefix that the file system shows at `/mounts`."""
        return {INIT: self.init_from} if self.init_from is not None and self.init_from.startswith("s3://") else {}

    def longest_first_step_s(self, hang: timedelta) -> float:
        """Return the wait for a peer in an attempt's first step. By itself it stays below the steward's for a hang: the
        ranks know more."""
        usual, longest = self.collective_timeout_s, 0.8 * hang.total_seconds()
        return self.first_step_timeout_s or max(usual, longest if self.compile == "layers" else min(4 * usual, longest))

    def longest_save_s(self, hang: timedelta) -> float:
        """Return the wait of ranks, and of the steward, for a gang's disks."""
        return self.save_timeout_s or max(2 * hang.total_seconds(), _SAVE_AT_LEAST_S)

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch * self.model.context

    @property
    def grace_s(self) -> int:
        """Seconds between SIGTERM and SIGKILL."""
        return grace_seconds(self.collective_timeout_s)
