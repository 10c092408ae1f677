"""What `check` says of the variables that a job's words and values name, and of a module in place of a script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.plan.checks import check, failed
from infra.plan.job_config import workload_config
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from tests.unit.spec import test_workload

spec = test_workload.spec
COMMAND: dict[str, Any] = {"script": None, "launcher": "none"}
SECRET = {"secrets": {"TOKEN": {"secret": "a"}}, "rehearsal": {"secrets": "secrets.env", "env": {"SMALL": "$HOME"}}}
SOUND: tuple[dict[str, Any], ...] = (
    {
        "args": [
            "--out=${BIVOUAC_CHECKPOINTS}",
            "$(BIVOUAC_RANKS_PER_NODE)",
            "$MASTER_ADDR",
            "$HOME/x",
            "5$",
            "^a$",
            "$$X",
        ]
    },
    {"args": ["${BIVOUAC_RESUME_FROM:+--resume}", "${OF_THE_IMAGE:-}", "$$(date)", "$${now:%Y}"]},
    {"env": {"LD_LIBRARY_PATH": "/x:$LD_LIBRARY_PATH", "OUT": "$ROOT/out", "ROOT": "$BIVOUAC_CHECKPOINTS"}},
    {**SECRET, "args": ["$TOKEN", "$SMALL"], "env": {"AUTH": "Bearer $TOKEN"}},
    {"env": {"OF_THE_IMAGE": "/x:$OF_THE_IMAGE"}},
    {**COMMAND, "command": ["bash", "-c", "for i in $(seq 2); do echo $i ${x%y} $BIVOUAC_CHECKPOINTS; done"]},
    {**COMMAND, "command": ["bash"], "args": ["-c", "echo $i"]},
    {"evaluate": {"command": ["a", "$BIVOUAC_EXPORT"]}, "export": {"command": ["sh", "-c", "a $BIVOUAC_EXPORT $x"]}},
    {"launcher": "mpirun", "script": None, "command": ["./solve", "$NNODES"], "env": {"HERE": "$NODE_RANK"}},
)
REFUSED: tuple[tuple[dict[str, Any], str, str, str], ...] = (
    ({"args": ["$BIVOUAC_CHECKPOINT"]}, "args", "$BIVOUAC_CHECKPOINT", "BIVOUAC_CHECKPOINTS, "),
    ({"args": ["${BIVOUAC_CHEKPOINTS:-/x}"]}, "args", "$BIVOUAC_CHEKPOINTS", "write one of"),
    ({"args": ["$BIVOUAC_EXPORT"]}, "args", "$BIVOUAC_EXPORT", "the program reads it where it is"),
    ({"args": ["$LD_LIBARY_PATH"]}, "args", "$LD_LIBARY_PATH", "did you mean LD_LIBRARY_PATH?"),
    ({"args": ["${base.lr}"]}, "args", "${base.lr}", "$$ is a dollar"),
    ({"args": ["$(nproc --all)"]}, "args", "$(nproc --all)", "[bash, -c, ...]"),
    ({"args": ["${HOME"]}, "args", "${HOME", "write ${NAME}"),
    ({"args": ["--rank=${LOCAL_RANK:-0}"]}, "args", "$LOCAL_RANK", "the program reads it where it is"),
    ({"env": {"A": "$OF_THE_IMAGE"}}, "env.A", "$OF_THE_IMAGE", "${OF_THE_IMAGE:-}"),
    ({"env": {"A": "a$B", "B": "b$C", "C": "$A"}}, "env.", " <- ", "spell one of them out"),
    ({"nccl": {"NCCL_DEBUG_FILE": "$WHERE/x"}}, "nccl.NCCL_DEBUG_FILE", "$WHERE", "$$WHERE"),
    ({"rehearsal": {"args": ["$X1"]}}, "rehearsal.args", "$X1", "$$X1"),
    ({"rehearsal": {"env": {"A": "$X1"}}}, "rehearsal.env.A", "$X1", "$$X1"),
    ({**COMMAND, "command": ["./run", "$i"]}, "command", "$i", "$$i"),
    ({**COMMAND, "command": ["bash", "-c", "echo $BIVOUAC_FOLDER"]}, "command", "$BIVOUAC_FOLDER", "write one of"),
    ({**COMMAND, "command": ["bash", "run.sh", "-c", "$i"]}, "command", "$i", "$$i"),
    ({"evaluate": {"command": ["a", "$X1"]}}, "evaluate.command", "$X1", "$$X1"),
    (
        {"launcher": "mpirun", "script": None, "command": ["./solve", "$NODE_RANK"]},
        "command", "$NODE_RANK", "the program reads it where it is",
    ),
)  # fmt: skip


def errors(file: Any) -> list[tuple[str, str, str]]:
    found = check(file, survey(file.spec), survey(file.spec).prices.as_of)
    return [(one.field, one.seen, one.cure) for one in found if failed((one,)) and one.rule == "known-variables"]


@pytest.mark.parametrize("changes", SOUND, ids=lambda one: str(one)[:60])
def test_a_variable_that_the_job_will_have_is_no_finding(changes: dict[str, Any], spec: Any) -> None:
    assert errors(spec(**changes)) == []


@pytest.mark.parametrize(("changes", "field", "seen", "cure"), REFUSED, ids=lambda one: str(one)[:60])
def test_a_variable_that_nobody_has_is_refused(
    changes: dict[str, Any], field: str, seen: str, cure: str, spec: Any
) -> None:
    ((place, text, advice),) = errors(spec(**changes))
    assert place.startswith(f"workload.{field}") and seen in text and cure in advice


def test_a_module_takes_the_place_of_a_script(spec: Any, tmp_path: Path) -> None:
    for name in ("pkg/train.py", "pkg/tool/__main__.py", "pkg/empty/__init__.py", "single.py"):
        (tmp_path / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "code" / name).touch()

    def asked(module: str) -> Any:
        return spec(script=None, module=module, source=str(tmp_path / "code"))

    config = workload_config(
        asked("pkg.train").spec, make_plan(asked("pkg.train").spec, survey(asked("pkg.train").spec)), "", "", ""
    )
    assert config.command == ("--module", "pkg.train", "60", "0.2")
    for module, found in {
        "pkg.train": True, "pkg.tool": True, "single": True, "litgpt.finetune": True, "pkg.empty": False,
        "pkg.nothing": False,
    }.items():  # fmt: skip
        file = asked(module)
        fields = [one.field for one in check(file, survey(file.spec), survey(file.spec).prices.as_of) if failed((one,))]
        assert fields == ([] if found else ["workload.module"]), module
