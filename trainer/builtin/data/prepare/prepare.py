"""Preparation of text as token shards: deterministic, resumable, and complete or absent (the manifest comes last).

It makes two passes over the input. The first digests every document, the second encodes the kept ones. Units of work
depend on the input alone, so that neither the number of workers nor a kill changes a byte.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from trainer.builtin.data.prepare.assemble import Assemble, Whole, drafts, gather
from trainer.builtin.data.prepare.chat import refuse_waste
from trainer.builtin.data.prepare.documents import Unit, units_of
from trainer.builtin.data.prepare.encode import Encode, told_path
from trainer.builtin.data.prepare.filters import MEANING
from trainer.builtin.data.prepare.inputs import File, change_error, list_source
from trainer.builtin.data.prepare.samples import SampleOutcomes
from trainer.builtin.data.prepare.scan import Scan, excerpt_path
from trainer.builtin.data.prepare.stages import encoding, reading, shards
from trainer.builtin.data.prepare.verdicts import Verdicts
from trainer.builtin.data.prepare.vocabulary import (
    SAMPLE_BYTES,
    begin_of,
    end_of,
    given_tokenizer,
    load_tokenizer,
    sample_of,
    size_of,
    train_tokenizer,
)
from trainer.builtin.data.prepare.workers import Progress, Workers
from trainer.builtin.data.store import write_whole
from trainer.contract import (
    DATA_MANIFEST_NAME,
    DATA_REPORT_NAME,
    DATA_SUMMARY_NAME,
    TOKENIZER_NAME,
    DataManifest,
    SourceCounts,
)
from trainer.contract.recipe import Recipe
from trainer.errors import DataError, unread

WORK, PLAN, LOCK = ".work", ".plan", ".lock"
_FORMAT = 2
"""Incremented when the same recipe gives other bytes, so that an older version's unfinished work is not continued."""
_OURS = re.compile(
    r"^(?:manifest\.json|tokenizer\.json|summary\.json|report\.html|\.work|\.plan|\.lock|(?:train|validation)-\d{5}\.(?:bin|idx)"
    r"|\..*\.partial)$"
)
Listed = list[list[File]]
"""Files by source, in their order."""
_INT16_IDS = 2**15
_EXPANDS = 4
"""Approximate bytes of text per byte of a compressed file, for the share of the tokenizer's sample."""
KEPT_SHOWN, DROPPED_SHOWN = 8, 3


def make(recipe: Recipe, target: Path, progress: Progress, cores: int | None = None) -> DataManifest:
    """Prepare a recipe into `target`; `progress` gets the stage's name and the finished share of the whole.

    Continue a killed run of the same recipe over the same files. Raises `DataError` for a source that is missing,
    empty, unreadable, changing, or too small for the vocabulary.
    """
    progress("list", 0.0)
    with Workers(cores, progress) as workers:
        return prepare(recipe, list_files(recipe), target, workers)


def prepare(recipe: Recipe, files: Listed, target: Path, workers: Workers) -> DataManifest:
    """Prepare listed files into `target` as `make` does, with these workers."""
    _refuse_foreign(target)
    target.mkdir(parents=True, exist_ok=True)
    with _lock_folder(target):
        plan = plan_digest(recipe, files)
        if (existing := _made_before(target, plan)) is not None:
            workers.progress("done", 1.0)
            return existing
        units = units_of(files, recipe.parameters.document_bytes)
        manifest = _Preparation(recipe, files, units, target, _work_folder(target, plan), workers).run()
        write_whole(target / PLAN, plan.encode())
        return manifest


@dataclass(frozen=True)
class _Preparation:
    recipe: Recipe
    files: Listed
    units: list[Unit]
    out: Path
    work: Path
    workers: Workers

    def run(self) -> DataManifest:
        parameters, numbers = self.recipe.parameters, [unit.number for unit in self.units]
        self.workers.run_stage(reading(Scan(parameters, self._sample_share(), self.work), self.units))
        verdicts = Verdicts(self.work, self.units, len(self.files))
        verdicts.settle(parameters)
        self.workers.progress("tokenizer", 0.15)
        tokenizer_bytes = self._tokenizer(verdicts, numbers)
        tokenizer = load_tokenizer(tokenizer_bytes)
        size = size_of(tokenizer)
        dtype = "int16" if size <= _INT16_IDS else "int32"
        begin = begin_of(tokenizer, self.recipe.beginning_of_document)
        task = Encode(parameters, end_of(tokenizer, self.recipe.end_of_document), dtype, self.work, begin, size)
        self.workers.run_stage(encoding(task, self.units))
        if parameters.chat is not None:
            for unit in self.units:
                verdicts.lose(unit, SampleOutcomes.model_validate_json(told_path(self.work, unit.number).read_bytes()))
            refuse_waste(verdicts.dropped, verdicts.documents)
        self._refuse_changes()
        (self.out / DATA_MANIFEST_NAME).unlink(missing_ok=True)
        names = [source.name for source in self.recipe.sources]
        shard_drafts = list(drafts(self.work, self.units, names, parameters.shard_tokens))
        self._remove_others({draft.name for draft in shard_drafts})
        self.workers.run_stage(
            shards(Assemble(dtype, size, self.work, self.out, masked=parameters.chat is not None), shard_drafts)
        )
        return self._finish(gather(self.work, shard_drafts, size), verdicts, tokenizer_bytes, task, size)

    def _finish(self, totals: Whole, verdicts: Verdicts, tokenizer: bytes, task: Encode, size: int) -> DataManifest:
        sources = tuple(self._counts(index, totals, verdicts) for index in range(len(self.files)))
        is_masked = self.recipe.parameters.chat is not None
        manifest = DataManifest(
            format=3 if is_masked else 2,
            sources=sources,
            parameters=self.recipe.parameters,
            documents=verdicts.documents,
            held_out_documents=verdicts.held_out,
            skipped_documents=sum(sum(counts.values()) for counts in verdicts.dropped),
            source_bytes=sum(verdicts.kept_bytes),
            vocabulary=size,
            end_of_document=task.end,
            beginning_of_document=task.begin,
            dtype="int16" if task.dtype == "int16" else "int32",
            tokenizer_sha256=hashlib.sha256(tokenizer).hexdigest(),
            train=totals.train,
            validation=totals.validation,
            train_tokens=sum(shard.tokens for shard in totals.train),
            validation_tokens=sum(shard.tokens for shard in totals.validation),
            counted_tokens=totals.counted_tokens if is_masked else None,
            unigram_loss=totals.unigram_loss,
        )
        write_whole(self.out / TOKENIZER_NAME, tokenizer, durable=True)
        summary_data = summary(self.work, [unit.number for unit in self.units], totals.lengths)
        write_whole(self.out / DATA_SUMMARY_NAME, json.dumps(summary_data, indent=1).encode(), durable=True)
        content = json.dumps(manifest.model_dump(mode="json"), indent=1).encode()
        write_whole(self.out / DATA_MANIFEST_NAME, content, durable=True)
        shutil.rmtree(self.work)
        self.workers.progress("done", 1.0)
        return manifest

    def _counts(self, index: int, data_set: Whole, verdicts: Verdicts) -> SourceCounts:
        source, shards = (
            self.recipe.sources[index],
            [s for s in data_set.train if s.source == self.recipe.sources[index].name],
        )
        return SourceCounts(
            name=source.name,
            location=source.public_location,
            pattern=source.pattern,
            weight=source.weight,
            licence=source.licence,
            origin=source.origin,
            files=len(self.files[index]),
            bytes=verdicts.kept_bytes[index],
            documents=sum(shard.documents for shard in shards),
            tokens=sum(shard.tokens for shard in shards),
            dropped=dict(sorted(verdicts.dropped[index].items())),
            cut=verdicts.cut[index],
        )

    def _tokenizer(self, verdicts: Verdicts, numbers: list[int]) -> bytes:
        """Return the tokenizer, made once: a later run of the same recipe reuses it."""
        path = self.work / TOKENIZER_NAME
        if not path.exists():
            if self.recipe.tokenizer is not None:
                write_whole(path, given_tokenizer(self.recipe.tokenizer))
            else:
                texts = sample_of(self.work, numbers, verdicts)
                write_whole(path, train_tokenizer(texts, self.recipe.vocabulary).to_str().encode())
            self.workers.agree(path)
        return path.read_bytes()

    def _sample_share(self) -> float:
        if self.recipe.tokenizer is not None:
            return 0.0
        return min(1.0, SAMPLE_BYTES / max(text_bytes(self.files), 1))

    def _refuse_changes(self) -> None:
        """Raise `DataError` if the files have changed since they were listed."""
        for listing, now in zip(self.files, list_files(self.recipe), strict=True):
            if listing != now:
                raise change_error(next(iter({*listing} ^ {*now})))

    def _remove_others(self, names: set[str]) -> None:
        """Remove shards of earlier preparations and temporary files of killed ones."""
        for path in [*self.out.glob("*.bin"), *self.out.glob("*.idx"), *self.out.glob(".*.partial")]:
            if path.stem not in names:
                path.unlink()
        (self.out / DATA_REPORT_NAME).unlink(missing_ok=True)


def list_files(recipe: Recipe) -> Listed:
    """Return the files of each source; of their content nothing is read."""
    parameters = recipe.parameters
    return [list_source(source, parameters.max_files, parameters.seed, parameters.format) for source in recipe.sources]


def text_bytes(files: Listed) -> int:
    """Return about how much text the files hold, by their sizes alone."""
    return sum(file.size * (_EXPANDS if file.compression else 1) for source in files for file in source)


def _refuse_foreign(target: Path) -> None:
    """Raise `DataError` if the output folder holds files that are not of a data set."""
    try:
        names = sorted(path.name for path in target.iterdir()) if target.exists() else []
    except OSError as error:
        refusal = DataError("the output cannot be used", f"{target}: {error.strerror}", "name another folder")
        raise unread(error, refusal) from error
    foreign = [name for name in names if not _OURS.match(name)]
    if foreign:
        detail = f"{', '.join(foreign[:3])} in {target}"
        raise DataError("the output folder holds other files", detail, "name an empty or a new folder")


def plan_digest(recipe: Recipe, files: Listed) -> str:
    """Return the digest of all that determines the bytes: an equal one means that nothing is to be prepared again."""
    tokenizer_digest = hashlib.sha256(given_tokenizer(recipe.tokenizer)).hexdigest() if recipe.tokenizer else None
    plan: dict[str, Any] = {
        "format": _FORMAT,
        "tokenizers": tokenizers.__version__,
        "recipe": recipe.model_dump(mode="json", exclude={"tokenizer"}),
        "given": tokenizer_digest,
        "files": [[(file.place, file.state) for file in source_files] for source_files in files],
    }
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()


def _made_before(target: Path, plan: str) -> DataManifest | None:
    """Return the manifest if this plan is prepared already, judged by sizes; readers verify digests. Raises `OSError`
    where that cannot be seen."""
    try:
        if (target / PLAN).read_text() != plan:
            return None
        manifest = DataManifest.model_validate_json((target / DATA_MANIFEST_NAME).read_bytes())
        shards = (*manifest.train, *manifest.validation)
        complete = all((target / s.file).stat().st_size == s.tokens * manifest.token_bytes for s in shards)
        return manifest if complete and all((target / s.index).exists() for s in shards) else None
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def _work_folder(target: Path, plan: str) -> Path:
    """Return the work folder; empty it unless it belongs to this plan."""
    work = target / WORK
    mark = work / "plan"
    if not (mark.exists() and mark.read_text() == plan):
        if work.exists():
            shutil.rmtree(work)
        work.mkdir(parents=True)
        write_whole(mark, plan.encode())
    return work


@contextmanager
def _lock_folder(target: Path) -> Iterator[None]:
    """Lock the folder: two preparations must not write into it."""
    with (target / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            cure = "wait for it, or name another folder"
            raise DataError("another preparation writes there", target, cure) from error
        yield


def summary(work: Path, numbers: list[int], lengths: list[int]) -> dict[str, Any]:
    """Return the summary; its excerpts have the smallest digests, so they are reproducible and not chosen by hand."""
    excerpts: dict[str, list[tuple[int, str, str]]] = {}
    for number in numbers:
        for reason, rows in json.loads(excerpt_path(work, number).read_bytes()).items():
            limit = DROPPED_SHOWN if reason else KEPT_SHOWN
            excerpts[reason] = sorted([*excerpts.get(reason, []), *map(tuple, rows)])[:limit]
    return {
        "lengths": lengths,
        "samples": _excerpt_rows(excerpts.get("", [])),
        "dropped": {reason: _excerpt_rows(rows) for reason, rows in sorted(excerpts.items()) if reason},
        "meaning": MEANING,
    }


def _excerpt_rows(rows: list[tuple[int, str, str]]) -> list[dict[str, str]]:
    return [{"file": name, "text": text} for _, name, text in rows]
