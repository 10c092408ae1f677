"""Prepared data is the same bytes every time, in a format that others read, and without what must not be in it."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.ipc
import pytest
import zstandard
from pyarrow import parquet
from tokenizers import Tokenizer

from tests.root import ROOT
from tests.trainer.data_sets import content, decoded, prepare, quiet, recipe, simple, texts, write_text
from trainer.builtin.data.prepare import documents
from trainer.builtin.data.prepare.inputs import list_source
from trainer.builtin.data.prepare.prepare import make
from trainer.contract.recipe import Source
from trainer.errors import DataError


def test_preparing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    source = write_text(tmp_path / "text")
    simple(source, tmp_path / "one")
    simple(source, tmp_path / "two")
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_neither_cores_nor_a_kill_in_between_change_a_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "text"
    source.mkdir()
    for index, text in enumerate(texts(400)):
        (source / f"{index:04d}.txt").write_text(text)
    monkeypatch.setattr(documents, "UNIT_BYTES", 2**13)
    whole = recipe(source)
    make(whole, tmp_path / "one", quiet, cores=1)
    make(whole, tmp_path / "three", quiet, cores=3)
    assert content(tmp_path / "one") == content(tmp_path / "three")

    for stage, after in (("read", 0.07), ("encode", 0.4), ("write", 0.95)):

        def fall(seen: str, part: float, stage: str = stage, after: float = after) -> None:
            if seen == stage and part > after:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            make(whole, tmp_path / "killed", fall, cores=1)
        assert not (tmp_path / "killed" / "manifest.json").exists()
    began: list[float] = []
    make(whole, tmp_path / "killed", lambda stage, part: began.append(part) if stage == "encode" else None, cores=2)
    assert began[0] == pytest.approx(0.9), "what the killed runs had encoded was encoded again"
    assert content(tmp_path / "one") == content(tmp_path / "killed")


def test_the_same_recipe_over_unchanged_files_is_not_prepared_again(tmp_path: Path) -> None:
    source = write_text(tmp_path / "text")
    first = simple(source, tmp_path / "out")
    stages: list[str] = []
    again = prepare(source, "*.txt", None, 0.2, 5, 270, tmp_path / "out", lambda stage, part: stages.append(stage))
    assert again == first and stages == ["list", "done"]
    (source / "0.txt").write_text("something else altogether\n" * 50)
    assert simple(source, tmp_path / "out") != first


def test_deepspeeds_own_reader_reads_the_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset import MMapIndexedDataset

    source = tmp_path / "text.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(200)))
    manifest = make(recipe(source), tmp_path / "out", quiet, cores=1)
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    found = []
    for shard in (*manifest.train, *manifest.validation):
        reader = MMapIndexedDataset(str(tmp_path / "out" / shard.file).removesuffix(".bin"), skip_warmup=True)
        assert (len(reader), reader.sizes.sum()) == (shard.documents, shard.tokens)
        assert reader.doc_idx.tolist() == list(range(shard.documents + 1))
        found += [tokenizer.decode(reader[index][:-1].tolist()) for index in range(len(reader))]
    assert sorted(found) == sorted(texts(200))
    assert len(manifest.train) > 2
    capsys.readouterr()


@pytest.mark.parametrize("vocabulary", [300, 2**15 + 1])
def test_the_type_of_the_ids_is_one_that_megatron_and_deepspeed_number_alike(tmp_path: Path, vocabulary: int) -> None:
    """3 is int16 and 4 is int32 for both; 8 is uint16 for Megatron and uint64 for DeepSpeed."""
    from trainer.builtin.data.prepare.assemble import index_bytes

    dtype = "int16" if vocabulary <= 2**15 else "int32"
    assert index_bytes(np.array([3, 1]), dtype)[17] == {"int16": 3, "int32": 4}[dtype]
    document = json.loads(write_tokenizer(tmp_path / "tokenizer.json").read_text())
    if vocabulary > 300:
        ids = document["model"]["vocab"]
        ids[max(ids, key=ids.__getitem__)] = vocabulary - 1
        (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    made = recipe(write_text(tmp_path / "text")).model_copy(update={"tokenizer": tmp_path / "tokenizer.json"})
    manifest = make(made, tmp_path / "out", quiet, cores=1)
    assert manifest.dtype == dtype
    assert (tmp_path / "out" / manifest.train[0].file).stat().st_size == manifest.train[0].tokens * manifest.token_bytes


def write_tokenizer(path: Path) -> Path:
    from trainer.builtin.data.prepare.vocabulary import train_tokenizer

    train_tokenizer(iter(texts(50)), 300).save(str(path))
    return path


PACKED = [(suffix, packed) for suffix in ("txt", "jsonl") for packed in ("", "gz", "zst", "xz", "bz2")]


@pytest.mark.parametrize(("suffix", "compression"), [*PACKED, ("parquet", "")])  # Parquet compresses inside
def test_every_format_and_compression_gives_the_same_documents(tmp_path: Path, suffix: str, compression: str) -> None:
    wanted = texts(40)
    source = tmp_path / "in"
    source.mkdir()
    packs: dict[str, Callable[[bytes], bytes]] = {
        "": bytes,
        "gz": gzip.compress,
        "zst": zstandard.ZstdCompressor().compress,
        "xz": lzma.compress,
        "bz2": bz2.compress,
    }
    pack = packs[compression]
    end = f".{compression}" if compression else ""
    if suffix == "parquet":
        parquet.write_table(pyarrow.table({"text": wanted}), source / "a.parquet", row_group_size=7)
    elif suffix == "jsonl":
        lines = "".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(wanted))
        (source / f"a.jsonl{end}").write_bytes(pack(lines.encode()))
    else:
        for index, text in enumerate(wanted):
            (source / f"{index:03d}.txt{end}").write_bytes(pack(text.encode()))
    manifest = make(recipe(source), tmp_path / "out", quiet, cores=1)
    kept = decoded(tmp_path / "out", manifest) + decoded(tmp_path / "out", manifest, "validation")
    assert sorted(kept) == sorted(wanted)


def test_a_folder_of_hugging_face_datasets_gives_its_column_of_text(tmp_path: Path) -> None:
    """`save_to_disk` writes streams of Arrow, beside JSON that is no text; a hub's repository has Parquet."""
    rows = texts(90)
    for name, part in (("data-00000-of-00002.arrow", rows[:40]), ("data-00001-of-00002.arrow", rows[40:])):
        (tmp_path / "set/train").mkdir(parents=True, exist_ok=True)
        table = pyarrow.table({"id": list(range(len(part))), "text": part})
        with pyarrow.ipc.new_stream(str(tmp_path / "set/train" / name), table.schema) as stream:
            stream.write_table(table, max_chunksize=7)
    (tmp_path / "set/train/state.json").write_text("{}")
    source = Source(location=str(tmp_path / "set"), pattern="train/*.arrow")
    manifest = make(recipe(source), tmp_path / "out", quiet, cores=1)
    kept = decoded(tmp_path / "out", manifest) + decoded(tmp_path / "out", manifest, "validation")
    assert sorted(kept) == sorted(rows)
    with pytest.raises(DataError, match=r"no column 'words'.*id, text"):
        make(recipe(source, text_field="words"), tmp_path / "other", quiet, cores=1)
    (tmp_path / "set/train/data-00001-of-00002.arrow").write_bytes(b"ARROW1\0\0 damaged")
    with pytest.raises(DataError, match="cannot be read"):
        make(recipe(source), tmp_path / "damaged", quiet, cores=1)


def test_an_arrow_stream_whose_writer_was_cut_off_is_refused(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    path = tmp_path / "set/data-00000-of-00001.arrow"
    with pyarrow.OSFile(str(path), "wb") as file:
        table = pyarrow.table({"text": ["a document of some words"] * 40})
        stream = pyarrow.ipc.new_stream(file, table.schema)
        stream.write_table(table)
        whole = file.tell()
        stream.close()
    path.write_bytes(path.read_bytes()[:whole])
    with pytest.raises(DataError, match="no end"):
        make(recipe(Source(location=str(tmp_path / "set"), pattern="*.arrow")), tmp_path / "out", quiet)


def test_lines_and_texts_are_whole_wherever_a_file_is_cut_for_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = texts(150)
    lines, text = tmp_path / "a.jsonl", tmp_path / "b.txt"
    lines.write_text("".join(json.dumps({"text": each}, ensure_ascii=False) + "\n" for each in wanted))
    text.write_text("".join(wanted))
    for size in (1000, 10_001):
        monkeypatch.setattr(documents, "UNIT_BYTES", size)
        monkeypatch.setattr(documents, "_CUT_WITHIN", 700)
        out = tmp_path / f"out-{size}"
        manifest = make(recipe(lines), out, quiet, cores=1)
        assert sorted(decoded(out, manifest) + decoded(out, manifest, "validation")) == sorted(wanted)
        pieces = make(recipe(text, document_bytes=1024, deduplicate=False), tmp_path / f"text-{size}", quiet, cores=1)
        kept = [*decoded(tmp_path / f"text-{size}", pieces), *decoded(tmp_path / f"text-{size}", pieces, "validation")]
        assert "".join(sorted(kept)) != "" and sum(map(len, kept)) == len("".join(wanted))
        assert all(piece in text.read_text() for piece in kept)


def test_equal_documents_are_kept_once_and_no_text_is_on_both_sides(tmp_path: Path) -> None:
    once, twice = texts(300, seed=1), texts(100, seed=2)
    for name, rows in (("a", once + twice), ("b", twice + texts(50, seed=3) + once[:20])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    sources = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    manifest = make(recipe(*sources), tmp_path / "out", quiet, cores=1)
    train, held = decoded(tmp_path / "out", manifest), decoded(tmp_path / "out", manifest, "validation")
    assert sorted(train + held) == sorted({*once, *twice, *texts(50, seed=3)})
    assert [source.dropped for source in manifest.sources] == [{}, {"duplicate": 120}]
    assert 0.1 < len(held) / 450 < 0.3
    both = make(recipe(*sources, deduplicate=False), tmp_path / "both", quiet, cores=1)
    train, held = decoded(tmp_path / "both", both), decoded(tmp_path / "both", both, "validation")
    assert len(train + held) == 570 and not set(train) & set(held)


def test_what_is_left_out_is_counted_by_reason_and_shown(tmp_path: Path) -> None:
    rows: list[Any] = [{"text": text} for text in texts(60)]
    rows += [{"text": " \n"}, {"text": "short"}, {"other": 1}, {"text": 7}, {"text": "\ud800 alone" * 9}]
    rows += [{"text": "\x00\x01\x02 bytes of a program" * 3}, {"text": "the same line again\n" * 40}]
    rows += [{"text": "+++ --- /// *** 12 " * 10}, {"text": "x" * 5000}]
    lines = [json.dumps(row) for row in rows] + ["{not json", "[1, 2]"]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "a.jsonl").open("ab").write(b'{"text": "\xff\xfe"}\n')
    rules = recipe(
        tmp_path / "a.jsonl", min_characters=10, max_characters=4000, max_repeated_lines=0.3, min_letters_share=0.5
    )
    manifest = make(rules, tmp_path / "out", quiet, cores=1)
    wanted = {"empty": 1, "too_short": 1, "bad_record": 4, "not_utf8": 2, "binary": 1, "repetitive": 1}
    assert manifest.sources[0].dropped == {**wanted, "few_letters": 1, "too_long": 1}
    assert (manifest.documents, manifest.skipped_documents) == (60, 12)
    document = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert set(document["dropped"]) == set(manifest.sources[0].dropped) and set(document["dropped"]) <= set(
        document["meaning"]
    )
    assert sum(document["lengths"]) == 60 and len(document["samples"]) >= 3


def test_a_compressed_text_is_whole_however_its_words_lie(tmp_path: Path) -> None:
    written = " " + "x" * 3000 + " " + "y" * 2000
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress(written.encode()))
    (file,) = list_source(Source(location=str(path)), None, 1)
    pieces = list(documents.documents(documents.Span(file), "text", 1024))
    assert "".join(piece.text for piece in pieces) == written
    assert all(len(piece.content) <= 1024 for piece in pieces)


def test_text_that_looks_like_the_end_of_a_document_does_not_end_one(tmp_path: Path) -> None:
    wanted = [f"{text} <|end|> and on" for text in texts(50)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in wanted))
    manifest = make(recipe(tmp_path / "a.jsonl"), tmp_path / "out", quiet, cores=1)
    for shard in manifest.train:
        ids = np.fromfile(tmp_path / "out" / shard.file, dtype=manifest.dtype)
        assert (ids == manifest.end_of_document).sum() == shard.documents


def test_a_gigantic_line_and_file_take_bounded_memory(tmp_path: Path) -> None:
    size = 64 * 2**20
    with (tmp_path / "one-line.txt").open("wb") as file:
        for _ in range(size // 2**20):
            file.write(random.randbytes(2**10).hex().encode() * 512)
    with (tmp_path / "long.jsonl").open("wb") as file:
        file.write(b'{"text": "' + b"a" * (66 * 2**20) + b'"}\n{"text": "a short one"}\n')
    script = (
        "import re, sys; from pathlib import Path\n"
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) // 1024\n"
        "from trainer.contract import Parameters\nfrom trainer.contract.recipe import Recipe, Source\n"
        "from trainer.builtin.data.prepare.documents import units_of\n"
        "from trainer.builtin.data.prepare.inputs import list_source\n"
        "from trainer.builtin.data.prepare.scan import Scan, scan\n"
        "work = Path(sys.argv[2]); work.mkdir()\n"
        "before = peak()\n"
        "files = list_source(Source(location=sys.argv[1], pattern='*.*'), None, 1)\n"
        "rules = Parameters(held_out=0.1, seed=1)\n"
        "units = units_of([files], rules.document_bytes)\n"
        "for unit in units: scan(unit, Scan(rules, 0.01, work))\n"
        "print(len(units), peak() - before)"
    )
    command = [sys.executable, "-c", script, str(tmp_path), str(tmp_path / "work")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    units, mebibytes = map(int, done.stdout.split())
    assert units == 17 and 0 < mebibytes < 160, "16 of 4 MiB and one short line"


def test_files_without_text_are_skipped_and_counted(tmp_path: Path) -> None:
    source = write_text(tmp_path / "text")
    (source / "image.txt").write_bytes(b"\xff\xfe\x00\x9f")
    (source / "empty.txt").write_text("  \n")
    manifest = simple(source, tmp_path / "out")
    assert (manifest.documents, manifest.skipped_documents) == (12, 2)
    assert 0 < manifest.held_out_documents < 12


def test_licence_origin_and_weights_are_kept_in_the_manifest(tmp_path: Path) -> None:
    from trainer.contract.recipe import parse_source

    write_text(tmp_path / "text")
    source = parse_source(f"web@2.5={tmp_path / 'text'}", 0, "*.txt", "CC-BY-4.0", "a crawl")
    manifest = make(recipe(source, vocabulary=270), tmp_path / "out", quiet, cores=1)
    (row,) = manifest.sources
    assert (row.name, row.weight, row.licence, row.origin) == ("web", 2.5, "CC-BY-4.0", "a crawl")
    assert manifest.licence == "CC-BY-4.0"
    assert str(tmp_path) not in (tmp_path / "out" / "manifest.json").read_text(), "the machine shows in the bytes"


def test_a_tokenizer_is_taken_as_it_is_given(tmp_path: Path) -> None:
    given = write_tokenizer(tmp_path / "given.json")
    made = recipe(write_text(tmp_path / "text")).model_copy(update={"tokenizer": given})
    manifest = make(made, tmp_path / "out", quiet, cores=1)
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == given.read_bytes()
    assert manifest.vocabulary == 300
    wrong = made.model_copy(update={"end_of_document": "<|none|>"})
    with pytest.raises(DataError, match="no token that ends a document"):
        make(wrong, tmp_path / "wrong", quiet, cores=1)


@pytest.mark.parametrize(
    ("pattern", "vocabulary", "says"),
    [("*.md", 300, "no file matches"), ("*.txt", 60_000, "too small for the vocabulary")],
)
def test_input_that_cannot_be_used_is_refused_with_what_was_seen(
    tmp_path: Path, pattern: str, vocabulary: int, says: str
) -> None:
    with pytest.raises(DataError, match=says) as refusal:
        simple(write_text(tmp_path / "text"), tmp_path / "out", pattern, vocabulary)
    assert refusal.value.seen and refusal.value.cure
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such data folder"):
        simple(tmp_path / "nowhere", tmp_path / "out")
