"""The environment variables that a job may set, and those that are the supervisor's or the launcher's."""

from __future__ import annotations

import re
from collections.abc import Iterator

from infra.spec.secrets import SecretSource
from trainer.contract import Env

OURS = "BIVOUAC_"
"""Beginning of the variables that the supervisor sets."""
_NO_SECRETS = ("MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK", "PATH", "PYTHONPATH")
"""Variables that the launcher needs or sets."""
_SET_BY_US = "OMPI_MCA_plm_rsh_"
"""Beginning of Open MPI's variables for its remote shell."""
_OF_NCCL = re.compile(r"^(NCCL|OFI_NCCL|FI)_[A-Z0-9_]+$")
_OURS_IN_A_SCRIPT = re.compile(r"\$\{?(BIVOUAC_\w*)", re.ASCII)
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")

JOB_VARIABLES = (
    "BIVOUAC_CHECKPOINTS", "BIVOUAC_RESUME_FROM", "BIVOUAC_INIT_FROM", "BIVOUAC_SAVE_EVERY",
    "MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK", *Env,
)  # fmt: skip
"""Variables that the supervisor and the infrastructure give to every job."""
JUDGING_VARIABLES = frozenset({"BIVOUAC_EXPORT"})
"""Variables that only the commands of `evaluate` and `export` have."""
CONTAINER_VARIABLES = (
    "CPATH", "CUDA_HOME", "HOME", "HOSTNAME", "LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "PATH", "PYTHONPATH",
    "TMPDIR", "USER",
)  # fmt: skip
"""Variables that a container may have without the spec's doing."""
NODE_VARIABLES = frozenset({"NODE_RANK", Env.NODE_RANK, Env.NODE_NAME, Env.POD_IP})
_RANK_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK",
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE",
)  # fmt: skip
ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(_RANK_VARIABLES, "a launcher gives it to each rank, after the words are put together"),
    **dict.fromkeys(NODE_VARIABLES, "each node has its own, and `mpirun` takes the words of node 0"),
    **dict.fromkeys(JUDGING_VARIABLES, "only `evaluate` and `export` have it"),
}
"""Variable that is not known everywhere -> why."""


def leaves_ours(env: dict[str, str]) -> dict[str, str]:
    """Return the variables of `env`. Raises `ValueError` for one of ours."""
    if reserved_names := sorted(name for name in env if name.startswith(OURS)):
        raise ValueError(f"{', '.join(reserved_names)}: names with {OURS} are the supervisor's")
    if reserved_names := sorted(name for name in env if name.startswith(_SET_BY_US)):
        raise ValueError(f"{', '.join(reserved_names)}: `mpirun` reaches other nodes by their supervisors")
    return env


def are_variables(secrets: dict[str, SecretSource]) -> dict[str, SecretSource]:
    """Return the secrets. Raises `ValueError` for a name that no variable may have."""
    for name in secrets:
        if not _VARIABLE.match(name):
            raise ValueError(f"{name!r} is no name of an environment variable")
        if name.startswith(OURS) or name in _NO_SECRETS:
            raise ValueError(f"{name} is a variable of the supervisor or its launcher: give it another name")
    return secrets


def refuse_twice(
    env: dict[str, str], nccl: dict[str, str], secrets: dict[str, SecretSource], rehearsal_env: dict[str, str]
) -> None:
    """Raise `ValueError` for a variable with two values, and for one in `nccl` that is not of its kind."""
    if duplicates := sorted(set(secrets) & (set(env) | set(rehearsal_env))):
        raise ValueError(f"{', '.join(duplicates)}: in `secrets` and in `env`: keep it in one of them")
    if duplicates := sorted(set(nccl) & (set(env) | set(secrets))):
        raise ValueError(f"{', '.join(duplicates)}: in `nccl` and in `env` or `secrets`: keep it in one of them")
    if foreign_names := sorted(name for name in nccl if not _OF_NCCL.match(name)):
        raise ValueError(
            f"nccl: {', '.join(foreign_names)}: other variables than NCCL's and libfabric's belong to `env`"
        )


def script_references(script: str) -> Iterator[tuple[str, bool]]:
    """Yield the variables of ours that a shell's script names, as `trainer.contract.variables.references` does."""
    yield from ((name, True) for name in _OURS_IN_A_SCRIPT.findall(script))
