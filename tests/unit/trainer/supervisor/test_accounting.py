"""Everything in a job's folder is accounted for: sealed, being written, or unrecognised and told."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.worlds.checkpoint_files import saved
from tests.worlds.supervisor_tier import JobNode, put, torch_file
from trainer.contract import UNRECOGNISED_NAME, Status, entry_path
from trainer.supervisor import accounting, seal
from trainer.supervisor.formats import Finished


def test_what_another_format_would_know_is_counted_and_told_with_that_format(tmp_path: Path) -> None:
    node = JobNode(tmp_path, "dcp")
    (
        put(node.own / "epoch=1-val_loss=0.10.ckpt", torch_file()),
        put(node.own / "epoch=2-val_loss=0.05.ckpt", torch_file()),
    )
    account = node.end()
    assert (account.files, account.ended, account.fits) == (2, True, "lightning")
    assert "`.metadata`" in account.why and "`.ckpt`" in account.why
    assert account.entries == ("epoch=1-val_loss=0.10.ckpt", "epoch=2-val_loss=0.05.ckpt")
    assert node.unrecognised()[0]["fits"] == "lightning"
    status = Status.model_validate(node.job.status())
    assert status.unrecognised is not None and status.unrecognised.files == 2
    assert status.unrecognised.bytes == account.bytes > 0


def test_sealed_and_older_checkpoints_their_markers_and_trackers_are_known(tmp_path: Path) -> None:
    node = JobNode(tmp_path)
    for step in (10, 20):
        put(node.own / f"ckpt_{step}.pt"), put(node.own / f"ckpt_{step}.pt.done", "")
    put(node.own / "latest.txt", "20")
    account = node.end()
    assert seal.committed(node.tier) == [20, 10]
    assert (account.files, account.bytes, account.entries, account.why) == (0, 0, (), "") and not node.unrecognised()
    assert "unrecognised" not in node.job.status()


def test_the_newest_step_in_a_folder_of_which_nothing_is_sealed_is_unrecognised(tmp_path: Path) -> None:
    node = JobNode(tmp_path, "marker")
    for step in (10, 20):
        for run in ("a", "b"):
            put(node.own / run / f"step-{step}/state", run), put(node.own / run / f"step-{step}/DONE", "")
        node.job.sealing.look()
    account = node.end()
    (root,) = {seal.origin(node.tier, step).partition("/")[0] for step in seal.committed(node.tier)[:1]}
    other_run = "b" if root == "a" else "a"
    assert account.files == 2 and account.entries == (f"{other_run}/step-20",), "what is older has been overtaken"


def test_after_a_restart_older_checkpoints_of_the_job_are_still_known(tmp_path: Path) -> None:
    first_attempt = JobNode(tmp_path)
    for step in (10, 20):
        put(first_attempt.own / f"save-{step}/state"), put(first_attempt.own / f"save-{step}/DONE", "")
    first_attempt.end()
    second = JobNode(tmp_path)
    second.job.sealing.resume()
    assert second.end().files == 0


def test_a_half_written_checkpoint_is_being_written_until_the_job_ends(tmp_path: Path) -> None:
    node = JobNode(tmp_path)
    put(node.own / "step-10/__0_0.distcp")
    node.job.sealing.look()
    assert node.published().files == 0
    account = node.end(code=1)
    assert (account.files, account.entries) == (1, ("step-10",)) and "step-10 (dcp)" in account.why


def test_what_is_older_than_two_intervals_is_told_while_the_job_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = JobNode(tmp_path, "marker")
    accounts, now = node.job.sealing.accounts, [time.monotonic()]
    monkeypatch.setattr(accounting.time, "monotonic", lambda: now[0])
    node.job.sealing.recogniser.told_steps.heard.extend([(0.0, 1), (9.0, 10)])  # and a save each 10 steps
    put(node.own / "step-10.weights", age_s=25)
    accounts.look(-1)
    assert not node.unrecognised()
    now[0] += 60
    accounts.look(-1)
    assert [(event["files"], event["newest"]) for event in node.unrecognised()] == [(1, "step-10.weights")]
    now[0] += 60
    accounts.look(-1)
    assert len(node.unrecognised()) == 1, "once, until something is sealed"


def test_a_folder_in_which_nothing_is_known_is_one_entry_and_others_are_named(tmp_path: Path) -> None:
    node = JobNode(tmp_path)
    put(node.own / "runs/events/events.out.tfevents.1"), put(node.own / "runs/log.txt"), put(node.own / "run/log.txt")
    (
        put(node.own / "run/step-10/state"),
        put(node.own / "run/step-10/DONE", ""),
        put(node.own / "run/tokens/tokenizer.json"),
    )
    account = node.end()
    assert account.entries == ("run/log.txt", "run/tokens", "runs") and account.files == 4 and account.fits == ""


def test_a_file_in_place_that_is_newer_than_its_sealed_version_is_unrecognised(tmp_path: Path) -> None:
    node = JobNode(tmp_path)
    put(node.own / "ckpt.pt", torch_file())
    assert node.end().files == 0 and seal.committed(node.tier) == [0]
    (node.own / "ckpt.pt").write_bytes(b"PK\x03\x04 torn")
    account = node.end(code=1)
    assert account.files == 1 and "ckpt.pt" in account.why


def test_names_of_any_bytes_are_told_as_text_and_found_again(tmp_path: Path) -> None:
    node, names = JobNode(tmp_path), [b"\xff\xfe", b"a\\x41", b"\x1b[31m", "Gewichte-\u00e4\u4e2d".encode(), b"a\nb"]
    for name in names:
        put(node.own / os.fsdecode(name))
    account = node.end()
    assert {os.fsencode(entry_path(node.own, entry).name) for entry in account.entries} == set(names)
    assert all(entry.isprintable() for entry in account.entries)
    with pytest.raises(ValueError, match="leads out"):
        entry_path(node.own, "../x")


def test_what_cannot_be_looked_at_is_counted(tmp_path: Path) -> None:
    node, foreign_folder = JobNode(tmp_path), tmp_path / "elsewhere"
    put(foreign_folder / "model.pt"), put(node.own / "a/inside")
    (node.own / "out").symlink_to(foreign_folder), (node.own / "in").symlink_to("a")
    assert sorted(node.end().entries) == ["a", "out"]


def test_each_node_saves_what_lies_on_its_own_disk_alone(tmp_path: Path) -> None:
    node = JobNode(tmp_path, tier="local", rank=1, nodes=2)
    put(node.own / "weights/part-1.dat", "mine"), put(node.own / "notes.txt")
    (node.own / "weights/out").symlink_to("/nowhere")
    for _ in range(2):  # an attempt more finds what the one before has saved
        node.job.sealing.accounts.look(-1, job_ended=True)
    node.job.sealing.accounts.look(-1, job_ended=True)
    saved = node.tier / "own/node-0001"
    assert (saved / "weights/part-1.dat").read_text() == "mine" and (saved / "notes.txt").exists()
    assert os.readlink(saved / "weights/out") == "/nowhere"
    assert not (node.tier / UNRECOGNISED_NAME).exists(), "node 0 publishes"


def test_the_note_is_published_when_nothing_is_unrecognised_too(tmp_path: Path) -> None:
    node = JobNode(tmp_path)
    node.end()
    content = json.loads((node.tier / UNRECOGNISED_NAME).read_text())
    assert (content["files"], content["format"], content["attempt"], content["entries"]) == (0, 1, 1, [])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    known=st.sets(st.integers(1, 50), max_size=4),
    others=st.sets(
        st.lists(st.sampled_from(["a", "logs", "tokenizer-32000", "x.json", "w.bin"]), min_size=1, max_size=3).map(
            "/".join
        ),
        max_size=6,
    ),
    form=st.sampled_from(["step-{}/DONE", "run/ckpt-{}/DONE"]),
)
def test_every_file_is_sealed_or_below_an_entry(
    known: set[int], others: set[str], form: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    node = JobNode(tmp_path_factory.mktemp("camp"))
    files = {put(node.own / form.format(step)) for step in known}
    for name in others:
        if not any(parent.is_file() for parent in (node.own / name).parents) and not (node.own / name).is_dir():
            files.add(put(node.own / name))
    node.own.mkdir(parents=True, exist_ok=True)
    account = node.end()
    entries = [entry_path(node.own, entry) for entry in account.entries]
    of_entries = {path for path in files if any(entry in (path, *path.parents) for entry in entries)}
    assert files - of_entries == {path for path in files if path.name == "DONE"}
    assert account.files == len(of_entries)


def test_weights_without_an_optimizer_are_sealed_and_told(tmp_path: Path) -> None:
    for tier in ("shared", "local"):
        node = JobNode(tmp_path / tier, tier=tier)
        put(node.own / "checkpoint-10/model.safetensors"), put(node.own / "checkpoint-10/trainer_state.json", "{}")
        node.end()
        assert seal.committed(node.tier) == [10]
        events = [event for event in node.events if event["event"] == "weights_only"]
        assert [list(event) for event in events] == [["event", "why"]] and "no optimizer" in events[0]["why"]


def test_older_checkpoints_of_other_names_that_an_attempt_before_has_sealed_are_known(tmp_path: Path) -> None:
    node = JobNode(tmp_path, "marker")
    for name in ("a-5", "b-7", "step-20"):
        put(node.own / name / "state"), put(node.own / name / "DONE", "")
        node.job.sealing.look()
    second = JobNode(tmp_path, "marker")
    second.job.sealing.resume()
    assert all((second.own / name / "DONE").exists() for name in ("a-5", "b-7"))
    put(second.own / "c-20/state"), put(second.own / "c-20/DONE", "")
    account = second.end()
    assert seal.committed(second.tier)[0] == 20
    assert account.files == 0 or account.entries == ("c-20",), (
        "what is older is known; the same step elsewhere may not be"
    )


@pytest.mark.parametrize("names", [("step-10", "step-30"), ("ckpt_10.pt", "ckpt_30.pt")])
def test_what_has_a_smaller_number_and_was_written_after_what_is_sealed_is_unrecognised(
    names: tuple[str, str], tmp_path: Path
) -> None:
    def write(name: str) -> None:
        path = node.own / name
        (put(path / "state"), put(path / "DONE", "")) if name.startswith("step") else put(path, torch_file())

    node, (older, newest) = JobNode(tmp_path), names
    write(older), write(newest)
    node.job.sealing.finish(0)
    assert seal.committed(node.tier)[0] == 30 and node.published().files == 0
    later_s = time.time() + 60
    write(older)  # the job has begun again
    for path in [node.own / older, *(node.own / older).rglob("*")]:
        os.utime(path, (later_s, later_s))
    account = node.end()
    assert account.entries == (older,) and account.bytes > 0


def test_why_says_nothing_of_unfinished_checkpoints_where_there_are_none(tmp_path: Path) -> None:
    node = JobNode(tmp_path)
    put(node.own / "notes.txt"), put(node.own / "more.txt"), put(node.own / "README")
    assert node.end().why == "looked for checkpoints of all known formats; other files here: 2 `.txt`, 1 `README`"


def test_of_very_many_entries_the_folders_at_the_top_stand_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounting, "_MOST", 3)
    node = JobNode(tmp_path, "marker")
    for number, below in enumerate(("", "", "", "")):
        put(node.own / f"a/{number}/x{below}"), put(node.own / f"a/{number}/step-1/.bivouac-known")
        put(node.own / f"file-{number % 2}")
    put(node.own / "a/step-9/DONE", ""), put(node.own / "a/step-9/state")
    assert node.end().entries == ("a", "file-0", "file-1")
    for number in range(2, 5):
        put(node.own / f"file-{number}")
    assert node.end().entries == (".",)


def test_a_format_fits_whatever_the_number_of_ranks(tmp_path: Path) -> None:
    node = JobNode(tmp_path, "dcp")
    for name in ("rng_state_0.pth", "rng_state_1.pth"):
        put(node.own / "checkpoint-10" / name, torch_file())
    put(node.own / "checkpoint-10/trainer_state.json", "{}")
    assert node.end().fits == "huggingface"


def test_it_looks_every_half_minute_and_on_node_0_alone_where_the_tier_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_node = JobNode(tmp_path / "other", rank=1, nodes=2)
    put(second_node.own / "x"), second_node.job.sealing.accounts.look(-1, job_ended=True)
    assert second_node.job.sealing.accounts.now is None
    node, now = JobNode(tmp_path, "client"), [time.monotonic()]
    accounts = node.job.sealing.accounts
    monkeypatch.setattr(accounting.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(accounting.time, "thread_time", lambda: 0.0)
    put(node.own / "x", age_s=9000), accounts.look(-1)
    put(node.own / "y", age_s=9000), accounts.look(-1)
    for later, files in ((29, 1), (2, 2)):
        now[0] += later
        accounts.look(-1)
        assert accounts.now is not None and accounts.now.files == files
    assert not node.unrecognised()
    for later, told in ((560, 0), (32, 1)):  # twice 300 s, where nothing tells how often it saves
        now[0] += later
        accounts.look(-1)
        assert len(node.unrecognised()) == told


def test_the_seconds_between_seals_are_the_save_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, now = JobNode(tmp_path, "client"), [1000.0]
    accounts = node.job.sealing.accounts
    monkeypatch.setattr(accounting.time, "monotonic", lambda: now[0])
    for later, step in ((0, 10), (100, 20), (40, 30)):
        now[0] += later
        accounts.look(step)
    put(node.own / "x", age_s=9000)
    for later, told in ((150, 0), (49, 0), (31, 1)):
        now[0] += later
        accounts.look(30)
        assert len(node.unrecognised()) == told
    now[0] += 40
    accounts.look(40)
    now[0] += 541
    accounts.look(40)
    assert len(node.unrecognised()) == 2, "again after another seal, and by the longest interval"


@pytest.mark.parametrize(("names", "files"), [(("model",), 0), (("model", "opt"), 2)])
def test_an_older_checkpoint_of_another_run_is_known_by_its_series_if_all_of_it_is(
    names: tuple[str, ...], files: int, tmp_path: Path
) -> None:
    node = JobNode(tmp_path)
    restored = saved(node.own / "run-2/model_20.pt")
    node.job.sealing.recogniser.note_restored(Finished(20, restored))
    node.job.sealing.committed = 20
    for name in names:
        path = saved(node.own / f"run-1/{name}_10.pt")
        os.utime(path, (time.time() - 60,) * 2)
    assert node.end().files == files


def test_where_state_lies_and_nothing_is_sealed_the_job_may_tell_its_checkpoints(tmp_path: Path) -> None:
    node = JobNode(tmp_path)
    saved(node.own / "gpt.pt")
    account = node.end()
    assert (account.files, account.fits) == (1, "client")
    assert not (node.tier / "own").exists(), "it lies on the shared tier already"


def test_a_link_that_leads_out_is_unrecognised_also_alone(tmp_path: Path) -> None:
    node = JobNode(tmp_path)
    put(tmp_path / "elsewhere", "the model")
    node.own.mkdir(parents=True), (node.own / "weights").symlink_to(tmp_path / "elsewhere")
    account = node.end()
    assert (account.files, account.bytes, account.entries) == (1, 0, ("weights",))


def test_what_is_being_removed_is_known_beside_every_series(tmp_path: Path) -> None:
    node = JobNode(tmp_path, "marker")
    for number, name in enumerate(("a/step-20", "b/step-30", "c/step-40")):
        put(node.own / name / "state"), put(node.own / name / "DONE", "")
        put(node.own / f"{name[0]}/step-1{number}/state", age_s=60)  # its marker went first
    assert node.end().files == 0 and len(seal.committed(node.tier)) == 3
