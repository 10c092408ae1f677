"""Variables in a job's words and values: what they become, beside what a shell makes of the same text."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from infra.spec.workload.variables import JOB_VARIABLES
from tests.tables import Table
from tests.unit.trainer.supervised import Supervisors, events
from trainer.contract import variables
from trainer.supervisor import launcher
from trainer.supervisor.launcher import Launcher
from trainer.supervisor.place import Place

TABLE = Table(__file__)

KNOWN = {"A": "one", "B": "", "LONG_9": "x y/z", "PATH": "/bin:/usr/bin"}
AS_A_SHELL = (
    "$A", "${A}", "a$A.b", "$A$A", "$A/$LONG_9", "${A}9", "$A9", "$B", "${B}", "${A:-text}", "${B:-text}",
    "${NONE:-a b}",
    "${A:+text}", "${B:+text}", "${NONE:+text}", "${B:-}", "${A:+--resume=}$A", "/x:$PATH", "${LONG_9}", "cost 5$", "$",
    "$%x", "${NONE}", "-$NONE-", "$.", "a${A:-b-c:d}", "{$A}", "$A}", "%A%", "~",
)  # fmt: skip
OTHERWISE = {
    "$$": "$", "$$A": "$A", "$$$A": "$one", "$${A}": "${A}", "$(A)": "one", "$(B)x": "x", "${A:?no}": "${A:?no}",
    "${now:%Y}": "${now:%Y}", "$(date +%s)": "$(date +%s)", "$1": "$1", "^layer$": "^layer$", "$Ä": "$Ä", "${A": "${A",
}  # fmt: skip
"""Text -> what it becomes, where a shell would do more, or less."""


def test_a_variable_becomes_what_a_shell_makes_of_it() -> None:
    script = "printf '%s\\0' " + " ".join(f'"{text}"' for text in AS_A_SHELL)
    answer = subprocess.run(["bash", "-c", script], env=KNOWN, capture_output=True, check=True)
    expected = answer.stdout.decode().split("\0")[:-1]
    assert [variables.expand(text, KNOWN, set()) for text in AS_A_SHELL] == expected


@pytest.mark.parametrize("text", OTHERWISE)
def test_a_dollar_that_names_no_variable_stays_and_two_are_one(text: str) -> None:
    assert variables.expand(text, KNOWN, set()) == OTHERWISE[text]


def test_a_name_that_nobody_has_is_told_and_is_empty() -> None:
    unset: set[str] = set()
    assert variables.expand("a$NONE-$(OTHER)${MORE:-x}$B", KNOWN, unset) == "a-x"
    assert unset == {"NONE", "OTHER"}, "one with a text, and one that is empty, are not missed"


@TABLE.cases
def test_a_shells_script_is_left_to_the_shell(command: list[str], words: list[str | None]) -> None:
    expected = [old if new is None else new for old, new in zip(command, words, strict=False)]
    assert variables.words(command, KNOWN, set()) == expected


@TABLE.cases
def test_a_value_takes_others_and_its_own_from_the_container(
    own: Mapping[str, str], container: Mapping[str, str], expected: Mapping[str, str]
) -> None:
    values = variables.environment(own, {"FIXED": "ours"}, container, set())
    assert {name: values[name] for name in expected} == expected


def test_the_supervisor_gives_every_variable_that_check_knows() -> None:
    place = Place("c", 1, "n", "10.0.0.1", 0, 1, 2, "x:1", "", "")
    job = {"launcher": "none", "command": [], "checkpoints": {"folder": "/c"}}
    theirs = {f"BIVOUAC_{name.upper()}" for name in Place._fields} | set(Launcher(job, place).environment("", "/run"))
    assert set(JOB_VARIABLES) <= theirs


def test_torchrun_starts_a_module_with_the_values_of_the_jobs_variables() -> None:
    place = Place("c", 1, "n", "10.0.0.1", 0, 1, 2, "x:1", "", "")
    job = {"launcher": "torchrun", "command": ["--module", "pkg.train", "--out=$A"]}
    command = launcher.make_launcher(job, place).command({"A": "/x"})
    assert command[-3:] == ["--module", "pkg.train", "--out=/x"] and "--max-restarts=0" in command[:-3]


SAYS = """
import json, os, sys
names = ("LD_LIBRARY_PATH", "OUT", "PLACE")
print(json.dumps({"said": {name: os.environ[name] for name in names}, "argv": sys.argv[1:]}))
print(json.dumps({"step": 1}))
"""
ENV = {
    "LD_LIBRARY_PATH": "/x:$LD_LIBRARY_PATH", "OUT": "$BIVOUAC_CHECKPOINTS/out", "PLACE": "$(NODE_RANK) of ${NNODES}",
}  # fmt: skip


@pytest.mark.parametrize("container", [{"LD_LIBRARY_PATH": "/container/lib"}, {"LD_LIBRARY_PATH": ""}, {}])
def test_a_job_has_the_values_of_its_containers_variables(tmp_path: Path, container: dict[str, str]) -> None:
    camp = Supervisors(tmp_path, variables=container, without=("LD_LIBRARY_PATH",))
    words = (sys.executable, "-c", SAYS, "--out=${BIVOUAC_CHECKPOINTS}", "$BIVOUAC_RANKS_PER_NODE", "a$$b", "$TOKEN")
    said = camp.start(1, *words, "${BIVOUAC_RESUME_FROM:+--resume}", "$NONE", steps=1, env=ENV).communicate()[0]
    (told,) = (json.loads(line) for line in said.splitlines() if line.startswith('{"said"'))
    folder, library = str(camp.tier / "own"), container.get("LD_LIBRARY_PATH")
    assert told["said"] == {
        "LD_LIBRARY_PATH": f"/x:{library}" if library else "/x", "OUT": f"{folder}/out", "PLACE": "0 of 1",
    }  # fmt: skip
    assert told["argv"] == [f"--out={folder}", "1", "a$b", "[secret]", ""]
    missing = ["LD_LIBRARY_PATH", "NONE"] if library is None else ["NONE"]
    assert events(said, "unset_variables")[0]["names"] == missing


def test_a_shells_script_finds_the_jobs_variables_by_itself(tmp_path: Path) -> None:
    script = 'for i in 1 2; do echo "$i ${BIVOUAC_CHECKPOINTS##*/}"; done; echo \'{"step": 1}\''
    said = Supervisors(tmp_path).start(1, "bash", "-c", script, steps=1).communicate()[0]
    assert "1 own\n2 own\n" in said
