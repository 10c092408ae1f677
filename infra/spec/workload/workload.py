"""The spec's section `workload` itself."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from infra.spec.duration import Duration
from infra.spec.image_reference import ImageReference
from infra.spec.secrets import MOST, SecretSource
from infra.spec.section import Section
from infra.spec.workload.git_reference import JobSource
from infra.spec.workload.links import INIT, refuse_no_place, refuse_unlinkable
from infra.spec.workload.mounts import Mount, MountSource, linked_prefixes, sound_mounts
from infra.spec.workload.sections import (
    Estimates,
    Evaluate,
    Export,
    JobCheckpoints,
    JobProgress,
    Resources,
    SmallMachine,
)
from infra.spec.workload.variables import are_variables, leaves_ours, refuse_twice
from trainer.contract.workload import SUPERVISOR

GIB = 2**30
_REQUIREMENTS = re.compile(r"([^\[\]]+)(\[[\w.,\- ]+\])?")


def _is_an_image(text: str) -> str:
    ImageReference.parse(text)
    return text


def _is_a_module(name: str) -> str:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"{name!r} is no name of a Python module")
    return name


def _is_a_requirements_file(text: str) -> str:
    parts = _REQUIREMENTS.fullmatch(text)
    if parts is None or text.startswith(("/", "../")) or (parts[2] and not parts[1].endswith("pyproject.toml")):
        raise ValueError("is no file below `source`, such as requirements.txt or pyproject.toml[train]")
    return text


class Workload(Section):
    is_built_in: ClassVar = False
    section: ClassVar = "workload"
    data_name: ClassVar = "the job's code"
    """Name of what its pods mount at `/data`."""
    pod_command: ClassVar = ("python3", SUPERVISOR)
    """Program of the gang's pods, in its container."""
    has_marks: ClassVar = True
    """A supervisor marks its own lines in the pod's log."""
    evaluate_every: ClassVar = None
    """Steps between evaluations beside those that its steps include."""
    evaluation_tolerance: ClassVar = 0.0
    step_time_field: ClassVar = "workload.estimates.step_seconds"
    sealing_s: ClassVar = 30
    """Time for its supervisor to seal the last checkpoint after the job's own grace."""

    image: Annotated[str, AfterValidator(_is_an_image)] | None = None
    """The job's container, from any registry that the nodes may pull from: `registry/repository:tag` or
    `...@sha256:...`. A tag is resolved to its digest before anything is made. None: the trainer image, with its Python,
    torch and DeepSpeed. It needs `python3` (3.8 or newer), torch for launcher `torchrun`, and Open MPI 4 for `mpirun`;
    neither ssh nor sshd."""
    pull_secret: SecretSource | None = None
    """Where the login to the private registry of `image` lies, as JSON with `username` and `password`. The driver reads
    it, kubelets pull with it. The operator's policy reads secrets and parameters `bivouac_pull*`. ECR needs none."""
    source: JobSource = None
    """A folder with the job's code, mounted at `/workspace`, where the job starts. In a git repository its tracked and
    new files are taken, without the ignored ones; those of submodules and clones in it too. Or `{git: URL, ref: TAG}`:
    a tag, branch or commit of a repository, with its submodules. None: the image has all."""
    requirements: Annotated[str, AfterValidator(_is_a_requirements_file)] | None = None
    """The packages that the job needs beside the image's: a file below `source`, such as `requirements.txt` (its hashes
    are compared), or `pyproject.toml` with extras, as `pyproject.toml[train]`. Pip chooses them once, on the driver's
    machine, for the image's Python; restarts install nothing. What the image has stays the image's, above all torch."""
    python: str | None = Field(default=None, pattern=r"^3\.\d+$")
    """The Python of `image`, such as `"3.10"`, for which `requirements` are chosen. The trainer image tells its own."""
    launcher: Literal["torchrun", "mpirun", "none"] = "torchrun"
    """`torchrun` starts `script` on each node's ranks; `mpirun` (Open MPI 4, in the job's container) starts `command`
    once per rank over all nodes, as an MPIJob of the MPI operator; `none` starts `command` once per node, which may
    start as many ranks there as `BIVOUAC_RANKS_PER_NODE` says, one per GPU."""
    warm: tuple[Annotated[str, AfterValidator(_is_a_module)], ...] = ()
    """Modules, such as `[torch, transformers]`, that one process per node imports before it forks the node's ranks, in
    place of torchrun; a rank that is killed then starts all ranks again in place, without imports. Their import must
    not initialise CUDA."""
    script: str | None = None
    """The Python file that torchrun starts, as a path below `source`."""
    module: Annotated[str, AfterValidator(_is_a_module)] | None = None
    """The Python module that torchrun starts instead, as `python -m` does: below `source` or in the image."""
    command: tuple[str, ...] = ()
    """Program and its first words, for launchers `mpirun` and `none`. Variables in it are those of `args`."""
    args: tuple[str, ...] = ()
    """Arguments of script, module or command. Here, in each `command` and in `env`, `$NAME`, `${NAME}` and `$(NAME)`
    are a variable's value when the job starts, `${NAME:-text}` the text where it has none, `${NAME:+text}` the text
    where it has one; `$$` is a dollar. What a shell reads after `-c` is left to the shell. `check` refuses a name that
    the job will not have."""
    env: Annotated[dict[str, str], AfterValidator(leaves_ours)] = Field(default={})
    """Environment variables of the job. `OMPI_MCA_...` are options for `mpirun`. In its own value a variable is the
    container's, as in `LD_LIBRARY_PATH: "/x:$LD_LIBRARY_PATH"`."""
    nccl: dict[str, str] = Field(default={})
    """Settings of NCCL, its plugin and libfabric, by their variables `NCCL_...`, `OFI_NCCL_...`, `FI_...`. `check`
    refuses what no document names and what works against EFA."""
    secrets: Annotated[dict[str, SecretSource], AfterValidator(are_variables)] = Field(default={}, max_length=MOST)
    """Environment variables of the job whose values lie in Secrets Manager or Systems Manager, under names that begin
    with `bivouac_job`: so their owner opts in, since every operator can read them. Only names are in the record; where
    the job prints a value, `[secret]` stands for it."""
    checkpoints: JobCheckpoints = JobCheckpoints()
    """Format and retention of the job's own checkpoints."""
    progress: JobProgress = JobProgress()
    """How the job's steps are known."""
    mounts: Annotated[dict[str, MountSource], AfterValidator(sound_mounts)] = Field(default={})
    """Folders by name that the job reads at `/mounts/<name>`: S3 prefixes, such as `{corpus: "s3://bucket/tokens"}`, to
    which the shared file system is linked (it fetches a file when it is first read, and what changes in S3 follows), or
    a section: an S3 prefix by Mountpoint, an existing FSx file system, a copy on each node's disks."""
    init_from: Annotated[str | None, AfterValidator(refuse_no_place)] = None
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
    elastic: bool = Field(default=False, exclude_if=lambda value: not value)
    """The job takes the number of its ranks from its launcher, keeps its global batch over any number, and goes on from
    a checkpoint of another number. `recovery.min_nodes` needs it."""
    ends: Literal["estimated", "exact"] = "estimated"
    """When exit code 0 is the end: once the job has trained, or only once it has done `estimates.steps`."""
    host_network: bool = False
    """Run the job's pods in their nodes' own network, for a job that insists on it. There it reaches the node's role in
    AWS, and with it all that the node may: `check` says what that opens. EFA, NCCL and MPI work without."""
    grace: Duration = timedelta(seconds=60)
    """Time between SIGTERM and SIGKILL when the job is stopped."""
    rehearsal: SmallMachine = SmallMachine()
    """Settings that differ in a rehearsal on a small machine."""

    @model_validator(mode="after")
    def _links_all(self) -> Self:
        refuse_unlinkable(self.links)
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

    @model_validator(mode="after")
    def _gives_each_variable_once(self) -> Self:
        refuse_twice(self.env, self.nccl, self.secrets, self.rehearsal.env)
        return self

    @model_validator(mode="after")
    def _chooses_packages_for_a_python(self) -> Self:
        if self.requirements is not None and self.source is None:
            raise ValueError("requirements: names a file below `source`, which is not given")
        if self.requirements is not None and self.image is not None and self.python is None:
            raise ValueError('python: write the Python of `image`, such as "3.10": `requirements` are chosen for it')
        return self

    @model_validator(mode="after")
    def _starts_one_thing(self) -> Self:
        python = [program for program in (self.script, self.module) if program is not None]
        if self.launcher == "torchrun" and (len(python) != 1 or self.command):
            raise ValueError("launcher `torchrun` needs `script` or `module`, and no `command`")
        if self.launcher != "torchrun" and (not self.command or python):
            raise ValueError(f"launcher `{self.launcher}` needs `command`, and no `script` or `module`")
        if self.warm and (self.launcher != "torchrun" or self.checkpoints.tier == "local"):
            raise ValueError("warm: only launcher `torchrun`, with checkpoints on the shared tier, has it")
        return self

    def on(self, target: Literal["aws", "rehearsal", "kubernetes"]) -> Self:
        """Return the workload as it runs on a target."""
        if target != "rehearsal":
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
        has_link = self.init_from is not None and self.init_from.startswith("s3://")
        return {**linked_prefixes(self.mounts), **({INIT: str(self.init_from)} if has_link else {})}

    @property
    def attached(self) -> dict[str, Mount]:
        """Name -> mount of all at `/mounts` that has a volume of its own."""
        sections = {name: mount for name, mount in self.mounts.items() if isinstance(mount, Mount)}
        return {name: mount for name, mount in sections.items() if not mount.is_link}

    @property
    def by_mountpoint(self) -> dict[str, str]:
        """Name -> S3 prefix of the mounts that Mountpoint's driver makes."""
        return {name: mount.s3 for name, mount in self.attached.items() if mount.s3 is not None}

    @property
    def given_file_systems(self) -> tuple[str, ...]:
        """Ids of the existing file systems among the mounts."""
        return tuple(dict.fromkeys(mount.fsx for mount in self.attached.values() if mount.fsx is not None))

    @property
    def staged(self) -> dict[str, float]:
        """Name -> size in GiB of what each node copies to its own disk before the ranks start."""
        sections = {name: mount for name, mount in self.mounts.items() if isinstance(mount, Mount)}
        return {name: mount.size_gib for name, mount in sections.items() if mount.size_gib is not None}

    @property
    def start(self) -> tuple[str, ...]:
        """The words before `args`, as torchrun takes them, or the command's own."""
        return (self.script,) if self.script else ("--module", self.module) if self.module else self.command

    @property
    def judging(self) -> timedelta:
        """The time that the job's own evaluation and export may take after the training."""
        export = timedelta() if self.export is None else self.export.limit
        runs = 0 if self.evaluate is None else 1 if self.export is None else 2
        return export + (timedelta() if self.evaluate is None else runs * self.evaluate.limit)

    @property
    def named_programs(self) -> tuple[tuple[str, str], ...]:
        """Section and path of each Python file that `evaluate` or `export` names by a relative path."""
        sections = {"evaluate": self.evaluate, "export": self.export}
        words = ((name, word) for name, section in sections.items() if section is not None for word in section.command)
        return tuple((name, word) for name, word in words if word.endswith(".py") and not word.startswith("/"))

    @property
    def steps(self) -> int:
        return self.estimates.steps

    @property
    def step_seconds_estimate(self) -> float:
        return self.estimates.step_seconds

    @property
    def tokens_per_step(self) -> None:
        """Nobody knows how many it reads."""

    def longest_save_s(self, hang: timedelta) -> None:
        """Return None: ranks that save wait for each other by its own rules."""

    @property
    def grace_s(self) -> int:
        """Seconds between SIGTERM and SIGKILL."""
        return round(self.grace.total_seconds())

    @property
    def checkpoint_bytes(self) -> int:
        return round(self.estimates.checkpoint_gib * GIB)

    @property
    def by_mpirun(self) -> bool:
        """The gang is an MPIJob."""
        return self.launcher == "mpirun"

    @property
    def on_disks(self) -> bool:
        """It writes its checkpoints to its nodes' own disks."""
        return self.checkpoints.tier == "local"
