"""The environment variables that a job may set, and those that are the supervisor's or the launcher's."""

from __future__ import annotations

import re

from infra.spec.secrets import SecretSource

OURS = "BIVOUAC_"
"""Beginning of the variables that the supervisor sets."""
_NO_SECRETS = ("MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK", "PATH", "PYTHONPATH")
"""Variables that the launcher needs or sets."""
_SET_BY_US = "OMPI_MCA_plm_rsh_"
"""Beginning of Open MPI's variables for its remote shell."""
_OF_NCCL = re.compile(r"^(NCCL|OFI_NCCL|FI)_[A-Z0-9_]+$")
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def leaves_ours(env: dict[str, str]) -> dict[str, str]:
    """Return the variables of `env`. Raises `ValueError` for one of ours."""
    if taken := sorted(name for name in env if name.startswith(OURS)):
        raise ValueError(f"{', '.join(taken)}: names with {OURS} are the supervisor's")
    if taken := sorted(name for name in env if name.startswith(_SET_BY_US)):
        raise ValueError(f"{', '.join(taken)}: `mpirun` reaches other nodes by their supervisors")
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
    env: dict[str, str], nccl: dict[str, str], secrets: dict[str, SecretSource], rehearsed: dict[str, str]
) -> None:
    """Raise `ValueError` for a variable with two values, and for one in `nccl` that is not of its kind."""
    if twice := sorted(set(secrets) & (set(env) | set(rehearsed))):
        raise ValueError(f"{', '.join(twice)}: in `secrets` and in `env`: keep it in one of them")
    if twice := sorted(set(nccl) & (set(env) | set(secrets))):
        raise ValueError(f"{', '.join(twice)}: in `nccl` and in `env` or `secrets`: keep it in one of them")
    if others := sorted(name for name in nccl if not _OF_NCCL.match(name)):
        raise ValueError(f"nccl: {', '.join(others)}: other variables than NCCL's and libfabric's belong to `env`")
