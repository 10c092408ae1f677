"""The steps of CI in a shell, in a repository of somebody's own: real git; `bivouac`, `aws` and `gh` are stand-ins."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.root import ROOT

MARK = "<!-- bivouac preview -->"
PAGE = (ROOT / "docs/ci.md").read_text()
FLOW, GITLAB = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
ACTION = yaml.safe_load((ROOT / ".github/actions/bivouac/action.yml").read_text())
OTHER_SPEC = {"findings": [{"rule": "spec_of_a_campaign_that_has_begun"}], "stacks": []}
DRIFTED = {"resource": "Schedule deadline", "verb": "deleted", "consequence": "nothing stops the GPU nodes"}


class Repository:
    """A clone with `main`, where `kept` stands, and a branch that changes it and adds two specs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tools, self.answers = folder / "clone", folder / "tools", folder / "answers"
        for one in (self.folder, self.tools, self.answers):
            one.mkdir()
        self.git("init", "--quiet", "--initial-branch", "main")
        self.spec("kept", steps=1)
        self.base = self.commit()
        self.git("checkout", "--quiet", "-b", "branch")
        self.spec("kept", steps=2)
        self.spec("added", folder="deep/er")
        self.spec("elsewhere", account="999999999999")
        self.spec("here", target="rehearsal")
        (self.folder / "compose.yml").write_text("services: {}\n")
        (self.folder / "json.py").write_text("raise SystemExit('a module of the repository')\n")
        self.head = self.commit()
        self._tool("aws", "echo 111122223333")
        # Answers of `bivouac COMMAND SUBJECT`: the file `COMMAND SUBJECT`, else `COMMAND`; its first line is the code.
        self._tool("bivouac", 'subject=$2; [ -f "$2" ] && subject=$(sed -n "s/^campaign: //p" "$2")\n'
                   f'echo "$1 $subject ${{*:3}}" >> {folder}/calls; cd {self.answers}\n'
                   'file="$1 $subject"; [ -f "$file" ] || file=$1; [ -f "$file" ] || exit 0\n'
                   'tail -n +2 "$file"; exit "$(head -n 1 "$file")"')  # fmt: skip
        self._tool("gh", f'echo "gh $*" >> {folder}/calls\nfor one in "$@"; do case "$one" in\n'
                   f'body=@*) cp "${{one#body=@}}" {folder}/posted;; *.md) cp "$one" {folder}/posted;; esac; done\n'
                   f'case "$*" in *--jq*) cat {self.answers}/comments 2> /dev/null || true;; esac')  # fmt: skip
        self.posted = folder / "posted"
        self.answer("list", 0, {"campaigns": [self.stands("kept"), self.stands("added")], "aws": "asked"})

    def _tool(self, name: str, body: str) -> None:
        (self.tools / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (self.tools / name).chmod(0o755)

    def git(self, *words: str) -> str:
        own = ("-c", "user.name=x", "-c", "user.email=x@example.com")
        return subprocess.run(["git", *own, *words], cwd=self.folder, check=True, capture_output=True, text=True).stdout

    def commit(self) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "x")
        return self.git("rev-parse", "HEAD").strip()

    def spec(
        self, name: str, folder: str = ".", account: str = "111122223333", target: str = "aws", **more: Any
    ) -> None:
        (self.folder / folder).mkdir(parents=True, exist_ok=True)
        fields = {"campaign": name, "target": target, "account": account, "region": "eu-west-1"} | more
        (self.folder / folder / f"{name}.yaml").write_text(yaml.safe_dump(fields, sort_keys=False))

    def stands(self, name: str, stage: str = "supervise") -> dict[str, str]:
        return {"campaign": name, "target": "aws", "stage": stage}

    def answer(self, question: str, code: int, text: Any) -> None:
        body = text if isinstance(text, str) else json.dumps(text)
        (self.answers / question).write_text(f"{code}\n{body}\n")

    def run(self, command: str, **variables: str) -> tuple[int, list[str], str]:
        """Exit code, calls of the stand-ins, and output of the action's last step."""
        given = {"PATH": f"{self.tools}:{os.environ['PATH']}", "HOME": str(self.folder), "GITHUB_REPOSITORY": "o/r",
                 "COMMAND": command, "ACTION": str(ROOT / ".github/actions/bivouac")}  # fmt: skip
        given["COMMENT"] = str(self.folder.parent / "bivouac-preview.md")
        step = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", ACTION["runs"]["steps"][-1]["run"]]
        done = subprocess.run(step, cwd=self.folder, env=given | variables, capture_output=True, text=True)
        calls = self.folder.parent / "calls"
        return done.returncode, calls.read_text().splitlines() if calls.exists() else [], done.stdout + done.stderr


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


PULL = {"PULL_REQUEST": "5", "GH_TOKEN": "t"}


@pytest.mark.parametrize(
    ("codes", "old", "wanted", "call"),
    [
        ((2, 0), "", 0, "gh pr comment 5 --repo o/r"),
        ((2, 2), "77\n78\n", 0, "gh api -X PATCH repos/o/r/issues/comments/77"),
        ((64, 2), "77\n", 64, "PATCH"),
        ((1, 64), "", 1, "gh pr comment"),
    ],
)
def test_changed_specs_are_previewed_with_what_they_were_and_one_comment_is_kept(
    repository: Repository, codes: tuple[int, int], old: str, wanted: int, call: str
) -> None:
    (repository.answers / "comments").write_text(old)
    for name, code in zip(("added", "kept"), codes, strict=True):
        repository.answer(f"preview {name}", code, f"{MARK}\n### about {name}")
    code, calls, said = repository.run("preview", BASE_SHA=repository.base, HEAD_SHA=repository.head, **PULL)
    assert code == wanted, said
    previews = [call for call in calls if call.startswith("preview")]
    assert [preview.split()[1] for preview in previews] == ["added", "kept"], (
        "not those of another account or a rehearsal"
    )
    assert ["--before" in preview for preview in previews] == [False, True] and all(
        "--no-cluster" in preview for preview in previews
    )
    (written,) = [call for call in calls if call.startswith("gh") and "--jq" not in call]
    assert call in written
    posted = repository.posted.read_text()
    assert posted.count(MARK) == 1 and posted.index("### about added") < posted.index("### about kept")


def test_a_long_preview_is_cut_so_that_the_findings_of_the_next_spec_stay(repository: Repository) -> None:
    repository.answer("preview added", 2, f"{MARK}\n#### Findings\n" + "line of resources\n" * 9_000)
    repository.answer("preview kept", 64, f"{MARK}\n#### Findings: the bucket would be replaced")
    code, _, _ = repository.run("preview", BASE_SHA=repository.base, **PULL)
    posted = repository.posted.read_text()
    assert code == 64 and len(posted) < 65_536
    assert "_Cut here" in posted and "the bucket would be replaced" in posted


def test_without_github_the_comment_is_a_file_and_what_git_does_not_know_is_not_clean(
    repository: Repository,
) -> None:
    code, calls, _ = repository.run("preview", BASE_SHA=repository.base)
    assert code == 0 and not [call for call in calls if call.startswith("gh")]
    assert (repository.folder.parent / "bivouac-preview.md").read_text().startswith(MARK)
    code, _, said = repository.run("preview", BASE_SHA="0" * 40)
    assert code == 70 and "has changed" not in said
    repository.git("checkout", "--quiet", "main")
    code, _, said = repository.run("preview", BASE_SHA=repository.base)
    assert code == 0 and "no spec of account 111122223333 has changed" in said


@pytest.mark.parametrize("old", ["77\n", ""])
def test_a_comment_on_specs_that_do_not_change_any_more_is_replaced_and_none_is_begun(
    repository: Repository, old: str
) -> None:
    (repository.answers / "comments").write_text(old)
    repository.git("checkout", "--quiet", "main")
    code, calls, said = repository.run("preview", BASE_SHA=repository.base, **PULL)
    assert code == 0 and "no spec of account 111122223333 has changed" in said
    written = [call for call in calls if call.startswith("gh") and "--jq" not in call]
    assert ["PATCH repos/o/r/issues/comments/77" in one for one in written] == [True] * bool(old)
    if old:
        assert repository.posted.read_text() == f"{MARK}\nno spec of account 111122223333 has changed\n"


MINE: dict[str, Any] = {"findings": [], "stacks": []}


@pytest.mark.parametrize(
    ("answers", "wanted", "ended"),
    [
        ({"preview added": (2, MINE)}, 0, True),
        ({"preview added": (64, OTHER_SPEC)}, 70, False),
        ({"preview added": (64, {"ok": False, "error": {"what": "its teardown has begun"}})}, 70, False),
        ({"preview added": (70, "")}, 70, False),
        ({"preview added": (0, MINE), "down": (74, "")}, 74, True),
        ({"list": (0, {"campaigns": [{"campaign": "added", "target": "aws", "stage": "ended"}]})}, 0, False),
        ({"list": (70, "")}, 70, False),
    ],
    ids=["mine", "another's", "falling", "unseen", "not archived", "over", "no list"],
)
def test_of_a_dead_branch_that_falls_which_it_alone_names_and_began_with_its_spec(
    repository: Repository, answers: dict[str, tuple[int, Any]], wanted: int, ended: bool
) -> None:
    repository.git("checkout", "--quiet", "main")
    for question, answer in answers.items():
        repository.answer(question, *answer)
    code, calls, said = repository.run("down", HEAD_SHA=repository.head)
    assert code == wanted, said
    assert [call for call in calls if call.startswith("down")] == ["down added --region eu-west-1 --yes"] * ended
    assert not [call for call in calls if "kept" in call], "what goes on in the branch that stays"


def test_a_merged_branch_ends_nothing(repository: Repository) -> None:
    code, calls, said = repository.run("down", HEAD_SHA=repository.head)
    assert (code, calls) == (0, []), said


@pytest.mark.parametrize(
    ("answer", "wanted", "words"),
    [
        ((2, {"stacks": [{"drifted": []}]}), 0, ""),
        (
            (2, {"stacks": [{"drifted": [DRIFTED]}]}),
            2,
            "- Schedule deadline was deleted by hand: nothing stops the GPU",
        ),
        ((64, {"ok": False, "error": {}}), 0, "::warning file=kept.yaml::not looked at"),
        ((70, ""), 70, "::error file=kept.yaml::could not look"),
    ],
)
def test_drift_fails_and_says_what_it_means_and_no_answer_is_not_taken_for_none(
    repository: Repository, answer: tuple[int, Any], wanted: int, words: str
) -> None:
    repository.answer("preview", 0, {"stacks": []})
    repository.answer("preview kept", *answer)
    summary = repository.folder.parent / "summary"
    code, calls, said = repository.run("drift", GITHUB_STEP_SUMMARY=str(summary))
    assert code == wanted and words in said, said
    assert sorted(call.split()[1] for call in calls) == ["added", "kept"] and all("--json" in call for call in calls)
    assert summary.exists() == (wanted == 2)


def test_a_spec_is_looked_at_whatever_its_file_is_called(repository: Repository) -> None:
    """git quotes names that are not ASCII: a quoted one is no file, and what it names would bill, or fall."""
    repository.spec("abroad", folder="Größe in €")
    (repository.folder / "Größe in €/kept.yaml").write_text((repository.folder / "kept.yaml").read_text())
    (repository.folder / "kept.yaml").unlink()
    head = repository.commit()
    repository.answer("list", 0, {"campaigns": [repository.stands("kept"), repository.stands("abroad")]})
    repository.answer("preview", 0, {"findings": [], "stacks": []})
    for command in ("preview", "drift"):
        _, calls, said = repository.run(command, BASE_SHA=repository.base)
        assert "abroad" in [call.split()[1] for call in calls if call.startswith("preview")], said
        (repository.folder.parent / "calls").unlink()
    repository.git("checkout", "--quiet", "--detach", head)
    assert repository.run("down", HEAD_SHA=head, SPECS="Größe in €/kept.yaml")[1] == [], "it goes on in this branch"
    repository.git("checkout", "--quiet", "main")
    code, calls, said = repository.run("down", HEAD_SHA=head)
    assert code == 0 and "down abroad --region eu-west-1 --yes" in calls, said


def test_a_value_that_is_no_name_is_not_cut_to_one(repository: Repository) -> None:
    (repository.folder / "bad.yaml").write_text(
        "campaign: added_by_me\ntarget: aws  # ours\naccount: '111122223333'\nregion: eu-west-1\n"
    )
    head = repository.commit()
    repository.git("checkout", "--quiet", "main")
    repository.answer("preview", 0, MINE)
    _, calls, _ = repository.run("down", HEAD_SHA=head, SPECS="bad.yaml")
    assert calls == []


def test_a_users_workflow_gives_each_job_only_what_it_names() -> None:
    assert FLOW["permissions"] == {} and set(FLOW[True]) == {"pull_request", "schedule"}, "`on`"
    rights = {name: job["permissions"] for name, job in FLOW["jobs"].items()}
    look = {"contents": "read", "id-token": "write"}
    assert rights == {"preview": look | {"pull-requests": "write"}, "down": look, "drift": look}
    environments = {name: job.get("environment") for name, job in FLOW["jobs"].items()}
    assert environments == {"preview": "bivouac-preview", "down": "bivouac-down", "drift": None}
    for name, job in FLOW["jobs"].items():
        checkout, action = job["steps"]
        assert re.fullmatch(r"actions/checkout@[0-9a-f]{40}", checkout["uses"])
        assert action["uses"] == "OWNER/bivouac/.github/actions/bivouac@COMMIT" and action["with"]["command"] == name
        assert set(action["with"]) <= set(ACTION["inputs"])
        assert name == "drift" or "head.repo.full_name == github.repository" in job["if"], "no fork"
    roles = [job["steps"][1]["with"]["role-to-assume"] for job in FLOW["jobs"].values()]
    assert len(set(roles)) == 3


def test_no_step_of_the_action_puts_a_callers_words_into_its_script() -> None:
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", ""), "what a pull request is called would be run"
    assert GITLAB["preview"]["script"][-1].endswith("/opt/bivouac/infra/ci/pipeline.sh preview")
