"""Jobs with common habits, under real supervisors: what each trained is sealed whole, given back, and told truly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.supervisor.habits import CASES
from tests.trainer.supervisor.histories import History

Play = Callable[[str], History]


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Play]:
    """Return the history of a case. Jobs wait for seals most of their time, so those that are asked for run side by
    side."""
    here = [item for item in request.session.items if item.path == request.node.path]
    asked = [str(item.callspec.params["history"]) for item in here if isinstance(item, pytest.Function)]
    root: Path = tmp_path_factory.mktemp("cases")
    with ThreadPoolExecutor(6) as beside:
        begun: dict[str, Future[History]] = {}
        for name in dict.fromkeys(asked):
            begun[name] = beside.submit(History(CASES[name], root / str(len(begun))).play)
        yield lambda name: begun[name].result()


@pytest.fixture
def history(play: Play, request: pytest.FixtureRequest) -> History:
    return play(request.param)


def case(*names: str) -> Any:
    return pytest.mark.parametrize("history", names, indirect=True)


@case("in place, lost in the write", "in place, lost between two writes")
def test_each_sealed_step_of_a_file_that_is_written_again_holds_its_own_bytes(history: History) -> None:
    first, second = history.attempts
    assert first.codes == [-9] and max(first.sealed) == 30, "the node was lost after step 30 was sealed"
    assert (second.value("went_on_from"), second.value("whole")) == (30, True)
    assert second.codes == [0] and min(second.steps) == 31 and max(second.sealed) == 60
    for attempt in history.attempts:
        assert [content.split()[0] for step in attempt.sealed.values() for content in step.contents] == [
            str(step).encode() for step in attempt.sealed
        ]


@case("in place, by itself")
def test_a_file_that_is_written_again_is_known_without_a_word_of_the_job(history: History) -> None:
    first, second = history.attempts
    assert first.codes == [-9] and max(first.sealed) == 20
    assert (second.value("went_on_from"), second.value("whole")) == (20, True)
    assert second.codes == [0] and max(second.sealed) == 40


@case("told, and written again at once")
def test_a_file_that_is_rewritten_before_the_seal_is_not_sealed_under_its_first_step(
    history: History,
) -> None:
    first, second = history.attempts
    wholes = [f"{step} {'x' * 1000}{'y' * 1000}" for step in (10, 20)]
    assert first.codes == [-9] and second.codes == [0]
    assert second.value("found") in ("", wholes[0]), "never half of step 20"
    contents = [
        content.decode() for attempt in history.attempts for one in attempt.sealed.values() for content in one.contents
    ]
    assert set(contents) <= set(wholes)


@case("saves again where it resumed")
def test_a_job_that_dies_while_it_overwrites_its_checkpoint_resumes_from_it_once_more(
    history: History,
) -> None:
    first, second, third = history.attempts
    assert (first.codes, second.codes, max(first.sealed), max(second.sealed)) == ([-9], [-9], 30, 30)
    assert (second.value("went_on_from"), third.value("went_on_from")) == (30, 30)
    assert third.codes == [0] and max(third.sealed) == 40
    assert first.sealed[30] == second.sealed[30], "what attempt 2 wrote has not touched it"


@case("folders of digits")
def test_folders_of_the_job_whose_names_end_in_a_number_outlive_a_restart(history: History) -> None:
    first, second = history.attempts
    assert (first.codes, second.codes) == ([-9], [0])
    assert second.value("went_on_from") == 20 and max(second.sealed) == 30
    beside = ["tokenizer-32000", "tensorboard-20251125", "vocab_50257", "eval-results-5000"]
    assert first.value("beside") == second.value("beside") == beside


@case("a link of its own")
def test_a_job_that_does_not_take_up_what_it_is_offered_is_told_of_at_once(history: History) -> None:
    first, second = history.attempts
    assert first.codes == [-9] and max(first.sealed) == 30
    elsewhere = [(event["offered"], event["first"]) for event in second.events("resumed_elsewhere")]
    assert (second.value("went_on_from"), elsewhere) in [(30, []), (0, [(30, 1)])]


@case("a link to a file")
def test_links_and_empty_folders_come_back_as_the_job_made_them(history: History) -> None:
    assert sorted(history.last.sealed) == [10, 20] and not history.last.events("not_sealed")
    for offer in (history.offer(), history.offer(new_disk=True)):
        assert (offer.resume, offer.text("state"), offer.tree["step-20/empty"][0]) == ("step-20", "20", "folder")
        assert offer.tree["step-20/newest-state"][2] == "state"
    assert history.offer().tree["step-20/tokenizer.json"][2] == "../vocabulary.json"
    assert history.offer(new_disk=True).tree["step-20/tokenizer.json"][3] == "words", "there is nothing to lead to"


@case("a link that leads out")
def test_a_checkpoint_with_a_link_that_leads_out_is_refused_aloud(history: History) -> None:
    assert not history.last.sealed
    (refused, *_) = history.last.events("not_sealed")
    assert refused["step"] == 20 and "data" in refused["why"]
    assert history.last.unrecognised is not None and history.last.unrecognised["files"] >= 1


@case("long names")
def test_names_of_any_alphabet_and_length_come_back(history: History) -> None:
    assert sorted(history.last.sealed) == [10, 20]
    deep = f"optimizer=adamw/{'模型权重分片-第一部分-' * 3}/layer/权重.bin"
    for offer in (history.offer(), history.offer(new_disk=True)):
        assert (offer.resume, offer.text(deep), offer.text("ü" * 127)) == ("step-20", "20", "254 bytes")
        assert offer.text("not-utf-8-\udcff\udcfe") == "bytes"


@case("private files")
def test_sealed_files_are_readable_for_the_archive_and_come_back_with_the_jobs_rights(history: History) -> None:
    assert sorted(history.last.sealed) == [10, 20]
    places = [path for path in history.camp.tier.rglob("step-*") if "own" not in path.parts]
    entries = [path for place in places for path in (place, *place.rglob("*"))]
    assert {oct(path.stat().st_mode & 0o777) for path in entries if path.is_file()} == {"0o644"}
    assert {oct(path.stat().st_mode & 0o777) for path in entries if path.is_dir()} == {"0o755"}
    tree = history.offer(new_disk=True).tree
    assert [oct(tree[f"step-20/{name}"][1]) for name in ("model.safetensors", "run.sh")] == ["0o600", "0o700"]


@case("nested DCP", "nested DCP, by itself")
def test_model_and_optimizer_below_one_step_are_one_checkpoint(history: History) -> None:
    assert history.last.codes == [0], history.last.logs[0][-2000:]
    assert max(history.last.sealed) == 40
    offer = history.offer(new_disk=True)
    assert offer.resume == "run-a/step-40"
    assert [offer.text(f"{part}/__0_0.distcp") for part in ("model", "optim")] == ["model of 40", "optim of 40"]


@case("Lightning by epoch")
def test_a_lightning_file_whose_name_tells_no_step_is_sealed_or_told_as_unrecognised(history: History) -> None:
    if history.last.sealed:
        assert "weights of 40" in history.offer().text()
    else:
        assert history.last.unrecognised is not None and history.last.unrecognised["files"] == 4
        assert "epoch=4" in history.last.unrecognised["newest"] and history.last.unrecognised["why"]


@case("a file each")
def test_one_file_for_each_checkpoint_with_a_marker_beside_it_is_sealed(history: History) -> None:
    assert sorted(history.last.sealed) == [10, 20] and history.last.codes == [0]
    offer = history.offer(new_disk=True)
    assert (offer.resume, offer.text()) == ("ckpt_20.pt", "weights of 20")


@case("large steps")
def test_a_step_of_ten_digits_is_sealed_and_offered(history: History) -> None:
    assert sorted(history.last.sealed) == [10**9 + 5, 2 * 10**9 + 5] and history.last.codes == [0]
    assert history.offer().text("state") == "20"


@case("two folders of steps")
def test_of_two_folders_with_the_same_step_both_are_sealed_or_one_is_told(history: History) -> None:
    wanted = {b"generator of 20", b"discriminator of 20"}
    unsealed = wanted - {content for one in history.last.sealed.values() for content in one.contents}
    assert history.last.unrecognised is not None
    entries = history.last.unrecognised["entries"]
    lost = {content.decode().partition(" ")[0] for content in unsealed}
    assert len(lost) <= 1 and all(any(entry.startswith(name) for entry in entries) for name in lost)


@case("a file with the newest name")
def test_a_job_that_looks_for_a_file_with_the_newest_name_finds_what_was_restored(history: History) -> None:
    first, second = history.attempts
    assert (first.codes, max(first.sealed)) == ([-9], 20)
    assert (second.value("went_on_from"), second.codes, max(second.sealed)) == (20, [0], 40)
    assert history.last.unrecognised is not None and not history.last.unrecognised["files"]


@case("no known format")
def test_what_no_format_knows_is_told_with_its_size_and_its_newest_file(history: History) -> None:
    content = history.last.unrecognised
    assert content is not None and not history.last.sealed
    assert (content["files"], content["bytes"], content["newest"]) == (2, 26, "weights.20.h5x")
    assert content["ended"] and content["why"]


@case("all ranks print", "batches of epochs", "counted from zero")
def test_the_step_never_goes_back_and_a_job_that_counts_its_own_way_is_done(history: History) -> None:
    steps = history.last.steps
    assert history.last.codes == [0] and history.last.end.reason == "done"
    assert steps == sorted(set(steps)) and history.last.end.step == max(steps)


@case("all ranks print")
def test_the_foremost_of_all_ranks_counts(history: History) -> None:
    assert history.last.steps == list(range(1, 21))


@case("batches of epochs")
def test_checkpoints_that_are_named_by_their_epoch_are_sealed(history: History) -> None:
    assert len(history.last.sealed) == 2 and history.offer().text("state") == "3"


@case("counted from zero")
def test_a_loop_that_counts_from_zero_has_its_losses_and_its_checkpoints(history: History) -> None:
    assert sorted(history.last.sealed) == [15, 30]
    assert {event["loss"] for event in history.last.events("step")} == {1.0}


@case("colour")
def test_colour_codes_between_step_and_loss_hide_neither(history: History) -> None:
    losses = {event["step"]: event["loss"] for event in history.last.events("step")}
    assert losses == {step: round(7.8534 - step / 100, 4) for step in range(1, 21)} and history.last.codes == [0]


@case("told by the last node")
def test_steps_and_checkpoints_may_be_told_on_any_node(history: History) -> None:
    assert history.last.codes == [0, 0] and history.last.end.step == 20
    assert sorted(history.last.sealed) == [10, 20] and history.offer().text("state") == "20"


@case("variables")
def test_variables_in_words_and_environment_are_replaced(history: History) -> None:
    own = str(history.camp.tier / "own")
    assert history.last.value("saw") == ["/opt/x:/image/lib", f"{own}/out", "--out", f"{own}/run"]
