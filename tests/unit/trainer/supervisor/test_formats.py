"""A finished checkpoint is told from one that is being written or removed, and a restart finds nothing unchecked."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from infra.spec.workload.sections import JobCheckpoints
from trainer.supervisor import seal
from trainer.supervisor.formats import FORMATS, Finished, forget_later
from trainer.supervisor.job import Job
from trainer.supervisor.place import Place


def put(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def torch_file(path: Path) -> Path:
    """As `torch.save` writes it, in small: a zip whose directory comes last."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data.pkl", b"0" * 4096)
    return path


def half(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def found(name: str, folder: Path, ranks: int = 1) -> list[tuple[int, str]]:
    steps = (one for one in FORMATS[name](folder, ranks) if one.step >= 0)
    return sorted((step.step, str(step.root.relative_to(folder))) for step in steps)


def test_a_spec_names_just_the_formats_that_the_supervisor_knows() -> None:
    assert set(get_args(JobCheckpoints.model_fields["format"].annotation)) == FORMATS.keys()


def test_each_format_ends_with_the_write_that_comes_last(tmp_path: Path) -> None:
    put(tmp_path / "dcp/step-20/.metadata"), put(tmp_path / "dcp/step-30/__0_0.distcp")
    put(tmp_path / "iter_0000100/mp_rank_00/model.pt"), put(tmp_path / "iter_0000200/mp_rank_00/model.pt")
    put(tmp_path / "latest_checkpointed_iteration.txt", "100\n")
    put(tmp_path / "global_step50/a.pt"), put(tmp_path / "global_step60/a.pt")
    put(tmp_path / "latest", "global_step50")
    assert found("dcp", tmp_path / "dcp") == [(20, "step-20")]
    assert found("megatron", tmp_path) == [(100, "iter_0000100")]
    assert found("deepspeed", tmp_path) == [(50, "global_step50")]


def test_hugging_faces_is_finished_with_its_state_and_all_ranks_random_states(tmp_path: Path) -> None:
    root = tmp_path / "checkpoint-7"
    put(root / "model.safetensors"), torch_file(root / "rng_state_0.pth")
    assert found("huggingface", tmp_path, 2) == []
    late = torch_file(root / "rng_state_1.pth")
    put(root / "trainer_state.json", '{"global_step": ')
    assert found("huggingface", tmp_path, 2) == [], "the state is half written"
    put(root / "trainer_state.json", json.dumps({"global_step": 7}))
    half(late)
    assert found("huggingface", tmp_path, 2) == [], "rank 1's is half written"
    late.unlink()
    assert found("huggingface", tmp_path, 2) == [], "it has not begun"
    torch_file(late)
    sign = put(root / "checkpoint-is-incomplete.txt")
    assert found("huggingface", tmp_path, 2) == [], "the Trainer says so"
    sign.unlink()
    assert found("huggingface", tmp_path, 2) == found("huggingface", tmp_path, 0) == [(7, "checkpoint-7")]
    assert found("huggingface", tmp_path, 3) == []


def test_a_checkpoint_of_weights_alone_has_no_random_states(tmp_path: Path) -> None:
    put(tmp_path / "checkpoint-7/trainer_state.json", "{}")
    assert found("huggingface", tmp_path, 8) == [(7, "checkpoint-7")]


def test_lightnings_file_is_finished_when_all_of_it_has_been_moved(tmp_path: Path) -> None:
    path = torch_file(tmp_path / "version_0/checkpoints/epoch=0-step=12.ckpt")
    whole = [(12, "version_0/checkpoints/epoch=0-step=12.ckpt")]
    torch_file(tmp_path / "version_0/checkpoints/last.ckpt")
    (tmp_path / "last-step=12.ckpt").symlink_to(path)
    assert found("lightning", tmp_path) == whole
    half(path)
    assert found("lightning", tmp_path) == []


@pytest.mark.parametrize("last", ["meta.pt", "latest"])
def test_lightnings_folder_is_finished_with_the_file_of_its_strategy(last: str, tmp_path: Path) -> None:
    root = tmp_path / "epoch=0-step=12.ckpt"
    put(root / ".metadata"), put(root / "__0_0.distcp"), put(root / "checkpoint/mp_rank_00.pt")
    assert found("lightning", tmp_path) == []
    torch_file(root / last)
    assert found("lightning", tmp_path) == [(12, root.name)]


def test_after_a_restart_nothing_later_is_there_to_be_taken_up_whole_or_half(tmp_path: Path) -> None:
    names = ["step=10.ckpt", "step=20.ckpt", "last.ckpt", "last-v1.ckpt"]
    files = [torch_file(tmp_path / name) for name in names]
    half(torch_file(tmp_path / "step=30.ckpt"))
    files[1].chmod(0o600)
    forget_later("lightning", tmp_path, Finished(20, files[1]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.ckpt", "step=10.ckpt", "step=20.ckpt"]
    last = tmp_path / "last.ckpt"
    assert not last.is_symlink() and last.read_bytes() == files[1].read_bytes(), (
        "a job that goes on from its last one gets the checked one, and may write over it"
    )
    assert last.stat().st_mode & 0o777 == 0o600, "nobody else may read what the job keeps to itself"
    (tmp_path / "last.ckpt").unlink()
    for name in ("checkpoint-10/trainer_state.json", "checkpoint-20/model.safetensors", "other/file"):
        put(tmp_path / name, "{}")
    forget_later("huggingface", tmp_path, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "step=10.ckpt", "step=20.ckpt"]


def job(tmp_path: Path, form: str) -> Job:
    place = Place("tiny", 1, "n0", "127.0.0.1", 0, 1, 1, "127.0.0.1:29500", "", "")
    config = {"checkpoints": {"folder": str(tmp_path / "own"), "format": form, "keep": 9}, "launcher": "torchrun"}
    return Job(config | {"identity": "one", "config_digest": "config"}, place, tmp_path, tmp_path)


def whole(root: Path) -> Path:
    step = root.name.rpartition("-")[2]
    put(root / "model.safetensors"), put(root / f"global_step{step}/zero.pt"), put(root / "trainer_state.json", "{}")
    return root


def test_what_the_job_is_removing_is_not_sealed(tmp_path: Path) -> None:
    """`save_total_limit`: the Trainer removes a checkpoint file by file once a newer one is whole."""
    one = job(tmp_path, "huggingface")
    for step in (8, 9, 10):
        whole(tmp_path / f"own/checkpoint-{step}")
    (tmp_path / "own/checkpoint-9/model.safetensors").unlink()
    one.sealing.look()
    assert seal.committed(one.tier) == [10, 8] and one.committed_step == 10


def test_a_newer_one_that_comes_while_files_are_listed_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, first = job(tmp_path, "huggingface"), whole(tmp_path / "own/checkpoint-1")
    looks = iter([False, True])

    def find(folder: Path, ranks: int, above: int) -> Iterator[Finished]:
        yield Finished(1, first)
        if next(looks):
            yield Finished(2, whole(tmp_path / "own/checkpoint-2"))

    (first / "model.safetensors").unlink()
    monkeypatch.setitem(FORMATS, "huggingface", find)
    one.sealing.look()
    assert seal.committed(one.tier) == []


def test_a_folder_that_goes_while_it_is_listed_ends_no_sealing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, real = job(tmp_path, "huggingface"), FORMATS["huggingface"]
    whole(tmp_path / "own/checkpoint-1")

    def gone(folder: Path, ranks: int, above: int) -> Iterator[Finished]:
        raise FileNotFoundError(folder / "checkpoint-0")
        yield

    monkeypatch.setitem(FORMATS, "huggingface", gone)
    one.sealing.look()
    monkeypatch.setitem(FORMATS, "huggingface", real)
    one.sealing.look()
    assert seal.committed(one.tier) == [1]


def test_what_the_job_has_told_is_sealed_at_a_later_look_if_the_tier_could_not_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, told = job(tmp_path, "client"), whole(tmp_path / "own/step-1")
    one.sealing.told[1] = Finished(1, told)
    with monkeypatch.context() as full:
        full.setattr(seal, "publish", lambda *given: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        one.sealing.look()
    assert seal.committed(one.tier) == []
    one.sealing.put_off.clear()  # half a minute later
    one.sealing.look()
    assert seal.committed(one.tier) == [1]
    shutil.rmtree(told)
    one.sealing.look()
    assert not one.sealing.told
