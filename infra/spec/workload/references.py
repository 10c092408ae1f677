"""References to variables in the words and values of a workload, as `trainer.supervisor.variables` expands them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence

from trainer.contract import Env

_REFERENCE = re.compile(
    r"\$(?:(?P<dollar>\$)|(?P<plain>[A-Za-z_]\w*)|\((?P<round>[A-Za-z_]\w*)\)"
    r"|\{(?P<curly>[A-Za-z_]\w*)(?::(?P<sign>[-+])(?P<text>[^{}$]*))?\})",
    re.ASCII,
)
_OURS_IN_A_SCRIPT = re.compile(r"\$\{?(BIVOUAC_\w*)", re.ASCII)
_SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh")
_READS_A_SCRIPT = re.compile(r"-[A-Za-z]*c")

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


def references(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each variable that a text names, and whether the text says what stands for it where there is none."""
    for match in _REFERENCE.finditer(text):
        if name := match["plain"] or match["round"] or match["curly"]:
            yield name, match["sign"] is not None


def script_references(script: str) -> Iterator[tuple[str, bool]]:
    """Yield likewise the variables of ours that a shell's script names."""
    yield from ((name, True) for name in _OURS_IN_A_SCRIPT.findall(script))


def unreadable(text: str) -> str:
    """Return the first `${` or `$(` that names no variable, with what follows; empty where there is none."""
    rest = re.search(r"\$[{(].*", _REFERENCE.sub(" ", text))
    return rest[0][:40] if rest else ""


def shell_script(command: Sequence[str]) -> int:
    """Return the place of the word that a shell reads as its script, after `-c`; -1: there is none."""
    for at in range(2, len(command)):
        # The last word before `-c` that is no option; `pipefail` belongs to `-o`.
        before = [word for word in command[: at - 1] if not word.startswith(("-", "+")) and word != "pipefail"]
        if _READS_A_SCRIPT.fullmatch(command[at - 1]) and before and posixpath.basename(before[-1]) in _SHELLS:
            return at
    return -1
