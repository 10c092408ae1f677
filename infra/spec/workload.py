"""The spec's section `workload`: a training job of anybody, in place of the built-in trainer."""

from __future__ import annotations

import itertools
import re
from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from infra.spec.duration import Duration
from infra.spec.evaluation import Evaluate, Export
from infra.spec.image_reference import ImageReference
from infra.spec.secrets import MOST, SecretSource
from infra.spec.section import Section

GIB = 2**30
OURS = "BIVOUAC_"
"""Beginning of the variables that the supervisor sets."""
_NO_SECRETS = ("MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK", "PATH", "PYTHONPATH")
"""Variables that the launcher needs or sets."""
_SET_BY_US = "OMPI_MCA_plm_rsh_"
"""Beginning of Open MPI's variables for its remote shell."""
_OF_NCCL = re.compile(r"^(NCCL|OFI_NCCL|FI)_[A-Z0-9_]+$")
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def _is_a_pattern(text: str) -> str:
    try:
        groups = re.compile(text).groupindex
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from error
    if "step" not in groups:
        raise ValueError("needs a group named `step`, such as `step (?P<step>[0-9]+)`")
    return text


def _is_an_image(text: str) -> str:
    ImageReference.parse(text)
    return text


class JobCheckpoints(Section):
    """Checkpoints that the job writes by itself. The supervisor seals finished ones with digests."""

    format: Literal["dcp", "huggingface", "lightning", "megatron", "deepspeed", "marker", "client"]
    """How a finished checkpoint is recognised: `dcp` (a folder with `.metadata`), `huggingface` (`checkpoint-N`),
    `lightning` (`.ckpt` with `step=N`), `megatron` and `deepspeed` (their tracker files), `marker` (a folder whose name
    ends in the step, with a file `DONE` written last), `client` (the job calls `bivouac.committed`)."""
    tier: Literal["shared", "local"] = "shared"
    """Where the job writes: into one folder on the shared file system, or on each node's own NVMe disk. From there its
    files are copied to the shared tier beside the training; a checkpoint counts once all nodes' files are there. What
    ends a checkpoint is written on node 0, and no two nodes write different files of one name."""
    keep: int = Field(default=3, ge=1)
    """Sealed checkpoints that stay on the shared tier."""
    keep_local: int = Field(default=2, ge=1)
    """Sealed checkpoints that stay on each node's disk, with tier `local`."""


class Progress(Section):
    """How the job's steps are known."""

    by: Literal["lines", "client"] = "lines"
    """From what the job prints, or from its calls of `bivouac.beat`."""
    pattern: Annotated[str, AfterValidator(_is_a_pattern)] | None = None
    """A regular expression with a group `step`, and `loss` and `tokens` if the line has them. None: JSON lines."""


class Estimates(Section):
    """Figures of plan and check until the job has been measured."""

    steps: int = Field(ge=1)
    """Steps of the whole training. A job that ends before its last step has failed."""
    step_seconds: float = Field(gt=0)
    """Time of one step."""
    checkpoint_gib: float = Field(default=1.0, gt=0)
    """Size of one checkpoint."""
    tflop_per_step: float | None = Field(default=None, gt=0)
    """Floating-point operations of one step on all accelerators, in 10^12. None: plan states no MFU."""


_BUCKET_AND_PREFIX = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^/]+)*/?")
_MOUNT = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
MOUNTS = "/mounts"
"""Folder of a job's container with its mounts."""
LINKS = 8
"""Links of a file system to S3 at most, ours for the code among them (FSx for Lustre, quotas)."""
INIT = "init-from"
"""Name of the mount, or the folder beside the code, with the weights to start from."""


class Resources(Section):
    """What a pod asks of its node besides all GPUs."""

    cpu: float | None = Field(default=None, gt=0)
    """Processors. None: no more than Kubernetes needs to place the pod."""
    memory_gib: float | None = Field(default=None, gt=0)
    """Memory."""
    shm_gib: float | None = Field(default=None, gt=0)
    """Limit of `/dev/shm`, which counts as the pod's memory. None: half of the node's memory."""


class SmallMachine(Section):
    """What differs in a rehearsal."""

    image: str | None = None
    """Image in the emulated account's registry. None: the trainer image stands in, with its Python and torch."""
    args: tuple[str, ...] | None = None
    """Arguments instead of `args`."""
    env: dict[str, str] = Field(default={})
    """Variables beside, or instead of, those of `env`."""
    mounts: dict[str, str] = Field(default={})
    """Folders of this machine by the names of `mounts`: the emulated S3 gets their files."""
    init_from: str | None = None
    """A small folder of this machine in place of the weights of `init_from`."""
    secrets: str | None = None
    """A file on this machine with the values of the workload's secrets, a line `NAME=value` each, and of its
    `pull_secret`, as `workload.pull_secret={...}`. They go into the emulated account, from where they are read as on
    AWS. The packed source leaves this file out."""
    estimates: Estimates | None = None
    """Figures of the rehearsal."""


def refuse_no_place(place: str | None) -> str | None:
    """Return the place of weights. Raises `ValueError` if it is neither an S3 prefix nor a folder."""
    if place is not None and "://" in place and not _BUCKET_AND_PREFIX.fullmatch(place):
        raise ValueError("is neither s3://bucket/prefix nor a folder of this machine; download it to one of them")
    return place


def _refuse_unlinkable(prefixes: dict[str, str]) -> None:
    if len(prefixes) >= LINKS:
        raise ValueError(f"{len(prefixes)} are too many: a file system has {LINKS} links, one of them for the code")
    ends = sorted(prefix.rstrip("/") + "/" for prefix in prefixes.values())
    for one, next_one in itertools.pairwise(ends):
        if next_one.startswith(one):
            raise ValueError(f"{one} holds {next_one}: FSx links no prefix twice")


def _is_a_module(name: str) -> str:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"{name!r} is no name of a Python module")
    return name


class Workload(Section):
    image: Annotated[str, AfterValidator(_is_an_image)] | None = None
    """The job's container, from any registry that the nodes may pull from: `registry/repository:tag` or
    `...@sha256:...`. A tag is resolved to its digest before anything is made. None: the trainer image, with its Python,
    torch and DeepSpeed. It needs `python3` (3.8 or newer), torch for launcher `torchrun`, and Open MPI 4 for `mpirun`;
    neither ssh nor sshd."""
    pull_secret: SecretSource | None = None
    """Where the login to the private registry of `image` lies, as JSON with `username` and `password`. The driver reads
    it, kubelets pull with it. The operator's policy reads secrets and parameters `bivouac_pull*`. ECR needs none."""
    source: str | None = None
    """A folder with the job's code, mounted at `/workspace`, where the job starts. In a git repository its tracked and
    new files are taken, without the ignored ones. None: the image has all."""
    launcher: Literal["torchrun", "mpirun", "none"] = "torchrun"
    """`torchrun` starts `script` on each node's ranks; `mpirun` (Open MPI 4, in the job's container) starts `command`
    once per rank over all nodes, as an MPIJob of the MPI operator; `none` starts `command` once per node."""
    warm: tuple[Annotated[str, AfterValidator(_is_a_module)], ...] = ()
    """Modules, such as `[torch, transformers]`, that one process per node imports before it forks the node's ranks, in
    place of torchrun; a rank that is killed then starts all ranks again in place, without imports. Their import must
    not initialise CUDA."""
    script: str | None = None
    """The Python file that torchrun starts, as a path below `source`."""
    command: tuple[str, ...] = ()
    """Program and its first words, for launchers `mpirun` and `none`."""
    args: tuple[str, ...] = ()
    """Arguments of script or command."""
    env: dict[str, str] = Field(default={})
    """Environment variables of the job. `OMPI_MCA_...` are options for `mpirun`."""
    nccl: dict[str, str] = Field(default={})
    """Settings of NCCL, its plugin and libfabric, by their variables `NCCL_...`, `OFI_NCCL_...`, `FI_...`. `check`
    refuses what no document names and what works against EFA."""
    secrets: dict[str, SecretSource] = Field(default={}, max_length=MOST)
    """Environment variables of the job whose values lie in Secrets Manager or Systems Manager. Only names are in the
    record; where the job prints a value, `[secret]` stands for it."""
    checkpoints: JobCheckpoints
    """Format and retention of the job's own checkpoints."""
    progress: Progress = Progress()
    """How the job's steps are known."""
    mounts: dict[str, str] = Field(default={})
    """S3 prefixes by name, such as `{corpus: "s3://bucket/tokens"}`, that the job reads at `/mounts/<name>`. The shared
    file system is linked to them and fetches a file when it is first read; what changes in S3 follows."""
    init_from: str | None = None
    """Weights to start from: an S3 prefix, or a folder of this machine with 4 GiB at most, which is uploaded. The job
    finds their path in `BIVOUAC_INIT_FROM`."""
    evaluate: Evaluate | None = None
    """The job's own evaluation of the checkpoint that is archived."""
    export: Export | None = None
    """Another form of its weights, archived beside it."""
    resources: Resources = Resources()
    """Processors, memory and shared memory of each pod."""
    estimates: Estimates
    """Steps, time and sizes, for plan and check."""
    host_network: bool = False
    """Run the job's pods in their nodes' own network, for a job that insists on it. There it reaches the node's role in
    AWS, and with it all that the node may: `check` says what that opens. EFA, NCCL and MPI work without."""
    grace: Duration = timedelta(seconds=60)
    """Time between SIGTERM and SIGKILL when the job is stopped."""
    rehearsal: SmallMachine = SmallMachine()
    """What differs in a rehearsal on a small machine."""

    @field_validator("env")
    @classmethod
    def _leaves_our_variables(cls, env: dict[str, str]) -> dict[str, str]:
        if taken := sorted(name for name in env if name.startswith(OURS)):
            raise ValueError(f"{', '.join(taken)}: names with {OURS} are the supervisor's")
        if taken := sorted(name for name in env if name.startswith(_SET_BY_US)):
            raise ValueError(f"{', '.join(taken)}: `mpirun` reaches other nodes by their supervisors")
        return env

    @field_validator("mounts")
    @classmethod
    def _are_prefixes(cls, mounts: dict[str, str]) -> dict[str, str]:
        for name, prefix in mounts.items():
            if not _MOUNT.fullmatch(name):
                raise ValueError(f"{name}: a name has lower-case letters, digits and hyphens, 32 at most")
            if name == INIT:
                raise ValueError(f"{name}: the weights of `init_from` have this name")
            if not _BUCKET_AND_PREFIX.fullmatch(prefix):
                raise ValueError(f"{name}: {prefix} is no s3://bucket/prefix")
        _refuse_unlinkable(mounts)
        return mounts

    @field_validator("init_from")
    @classmethod
    def _is_a_prefix_or_a_folder(cls, place: str | None) -> str | None:
        return refuse_no_place(place)

    @model_validator(mode="after")
    def _links_all(self) -> Self:
        _refuse_unlinkable(self.links)
        return self

    @model_validator(mode="after")
    def _rehearses_its_mounts(self) -> Self:
        if unknown := sorted(set(self.rehearsal.mounts) - set(self.mounts)):
            raise ValueError(f"rehearsal.mounts: {', '.join(unknown)} is not in `mounts`")
        if self.rehearsal.init_from is not None and self.init_from is None:
            raise ValueError("rehearsal.init_from stands for `init_from`, which is not given")
        return self

    @model_validator(mode="after")
    def _pulls_with_a_login(self) -> Self:
        if self.pull_secret is None:
            return self
        if self.image is None or ImageReference.parse(self.image).ecr is not None:
            raise ValueError("pull_secret is the login to the registry of `image`; ECR takes the nodes' own role")
        if self.pull_secret.key is not None:
            raise ValueError("pull_secret.key: leave it out; the whole text is the login")
        return self

    @field_validator("secrets")
    @classmethod
    def _are_variables(cls, secrets: dict[str, SecretSource]) -> dict[str, SecretSource]:
        for name in secrets:
            if not _VARIABLE.match(name):
                raise ValueError(f"{name!r} is no name of an environment variable")
            if name.startswith(OURS) or name in _NO_SECRETS:
                raise ValueError(f"{name} is a variable of the supervisor or its launcher: give it another name")
        return secrets

    @model_validator(mode="after")
    def _gives_each_variable_once(self) -> Self:
        if twice := sorted(set(self.secrets) & (set(self.env) | set(self.rehearsal.env))):
            raise ValueError(f"{', '.join(twice)}: in `secrets` and in `env`: keep it in one of them")
        if twice := sorted(set(self.nccl) & (set(self.env) | set(self.secrets))):
            raise ValueError(f"{', '.join(twice)}: in `nccl` and in `env` or `secrets`: keep it in one of them")
        if others := sorted(name for name in self.nccl if not _OF_NCCL.match(name)):
            raise ValueError(f"nccl: {', '.join(others)}: other variables than NCCL's and libfabric's belong to `env`")
        return self

    @model_validator(mode="after")
    def _starts_one_thing(self) -> Self:
        if self.launcher == "torchrun" and (self.script is None or self.command):
            raise ValueError("launcher `torchrun` needs `script`, and no `command`")
        if self.launcher != "torchrun" and (not self.command or self.script is not None):
            raise ValueError(f"launcher `{self.launcher}` needs `command`, and no `script`")
        if self.warm and (self.launcher != "torchrun" or self.checkpoints.tier == "local"):
            raise ValueError("warm: only launcher `torchrun`, with checkpoints on the shared tier, has it")
        return self

    def on(self, target: Literal["aws", "rehearsal"]) -> Self:
        """Return the workload as it runs on a target."""
        if target == "aws":
            return self
        small = self.rehearsal
        return self.model_copy(
            update={
                "image": small.image,
                "args": self.args if small.args is None else small.args,
                "env": self.env | small.env,
                # An ARN names a secret of the real account; the emulated one has its own, of the same name.
                "secrets": {name: source.by_name() for name, source in self.secrets.items()},
                "pull_secret": None if self.pull_secret is None else self.pull_secret.by_name(),
                "estimates": small.estimates or self.estimates,
                # The files of an S3 prefix lie under the same one of the emulated S3.
                "init_from": self.init_from if INIT in self.links else small.init_from or self.init_from,
            }
        )

    @property
    def links(self) -> dict[str, str]:
        """Name -> S3 prefix of all that the file system shows at `/mounts`."""
        linked = self.init_from is not None and self.init_from.startswith("s3://")
        return {**self.mounts, **({INIT: str(self.init_from)} if linked else {})}

    @property
    def judging(self) -> timedelta:
        """The time that the job's own evaluation and export may take after the training."""
        export = timedelta() if self.export is None else self.export.limit
        runs = 0 if self.evaluate is None else 1 if self.export is None else 2
        return export + (timedelta() if self.evaluate is None else runs * self.evaluate.limit)

    @property
    def named_programs(self) -> tuple[tuple[str, str], ...]:
        """(section, path) of each Python file that `evaluate` or `export` names by a relative path."""
        sections = {"evaluate": self.evaluate, "export": self.export}
        words = ((name, word) for name, one in sections.items() if one is not None for word in one.command)
        return tuple((name, word) for name, word in words if word.endswith(".py") and not word.startswith("/"))

    @property
    def steps(self) -> int:
        return self.estimates.steps

    @property
    def step_seconds_estimate(self) -> float:
        return self.estimates.step_seconds

    @property
    def grace_s(self) -> int:
        """Seconds between SIGTERM and SIGKILL."""
        return round(self.grace.total_seconds())

    @property
    def checkpoint_bytes(self) -> int:
        return round(self.estimates.checkpoint_gib * GIB)


def in_host_network(workload: Workload | None) -> bool:
    """Return whether the gang's pods are in their nodes' network."""
    return workload is not None and workload.host_network


def by_mpirun(workload: Workload | None) -> bool:
    """Return whether the gang is an MPIJob."""
    return workload is not None and workload.launcher == "mpirun"
