"""What `check` says of the variables that a job's words and values name, and of a module in place of a script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infra.plan.checks import check, failed
from infra.plan.job_config import workload_config
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from tests.tables import Table
from tests.unit.spec import test_workload

TABLE = Table(__file__)

spec = test_workload.spec
COMMAND: dict[str, Any] = {"script": None, "launcher": "none"}


def errors(file: Any) -> list[tuple[str, str, str]]:
    found = check(file, survey(file.spec), survey(file.spec).prices.as_of)
    return [(one.field, one.seen, one.cure) for one in found if failed((one,)) and one.rule == "known-variables"]


@TABLE.cases
def test_a_variable_that_the_job_will_have_is_no_finding(changes: dict[str, Any], spec: Any) -> None:
    assert errors(spec(**changes)) == []


@TABLE.cases
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
