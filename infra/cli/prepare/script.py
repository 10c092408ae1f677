"""A training script as its source shows it, without running it: what starts it, what it saves, what it prints."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from infra.errors import UserError

_STARTERS = (
    "torch.distributed", "accelerate", "deepspeed", "lightning", "pytorch_lightning", "megatron", "torchtitan",
    "transformers.Trainer", "transformers.TrainingArguments", "transformers.HfArgumentParser",
    "transformers.Seq2SeqTrainer", "transformers.Seq2SeqTrainingArguments",
)  # fmt: skip
"""Imports of a script whose ranks torchrun starts."""
_FORMATS = (
    ("megatron", "megatron"), ("lightning", "lightning"), ("pytorch_lightning", "lightning"),
    ("transformers.Trainer", "huggingface"), ("transformers.Seq2SeqTrainer", "huggingface"),
    ("torch.distributed.checkpoint", "dcp"),
)  # fmt: skip
"""Import -> format of its checkpoints where nothing else is likely; all others are recognised by `auto`."""
_STEP_NAME = re.compile(r"(global_?)?(step|iter)(ation)?(_?num)?", re.IGNORECASE)
_STEP_WORD = re.compile(r"\b(global_step|step|iteration|iter)s?\b[^\w\0]*\0", re.IGNORECASE)
_LOSS_WORD = re.compile(r"loss[^\w\0]*\0", re.IGNORECASE)
_HOLE = re.compile(r"%[-+ #0\d.]*[sdfgeir]|\{[^{}]*\}")
_STEP, _LOSS = r"(?P<step>\d[\d,]*)", r".*?(?i:loss)\D{0,8}?(?P<loss>[-+]?[\d.]+(?:[eE][-+]?\d+)?|nan|inf)"
_BAR = r"(?P<step>\d+)/\d+ \[\d+:"
"""Of tqdm, as frameworks' own loops show it."""
_PRINTS = ("print", "info", "warning", "log", "write", "print0", "print_rank0", "print_rank_0")
_STEPS = re.compile(
    r"(?<![\w])-*(?:(?:max|total|num|n)[_-]?)?(?:train(?:ing)?[_-]?)?(?:steps|iters|iterations)\b"
    r"(?:['\"][^\n]*\bdefault|: *int)? *= *(\d[\d_]*)\b",
    re.IGNORECASE,
)
"""A constant, a keyword's value, or an option's default."""
_FOLDER = re.compile(r"--(out(put)?|save|ckpt|checkpoints?)[-_]?(dir|path|folder)")
_MOST_FILES = 200


@dataclass
class Script:
    """What a script shows; each proposal has its reason."""

    source: str
    """Folder with the code."""
    name: str
    """The script, below it."""
    launcher: str
    launcher_why: str
    format: str
    pattern: str | None
    """None: JSON lines."""
    progress_why: str
    steps: int
    """0: it does not say."""
    folder_option: str
    """Its option for the folder of its checkpoints, if it does not read `BIVOUAC_CHECKPOINTS`; empty: none is known."""
    knows_folder: bool
    needs_cuda: bool
    """It names CUDA, and never asks whether there is any."""
    requirements: bool
    """There is a `requirements.txt`."""
    at_root: bool
    """Its imports begin at the source's root, not in its own folder."""
    absent: tuple[str, ...]
    """Modules that this machine lacks."""


def look_at(path: Path) -> Script:
    """Return what a script shows, or `train.py` of a folder. Raises `UserError` for what is no Python."""
    path = path / "train.py" if path.is_dir() else path
    if not path.is_file():
        raise UserError("there is no such script", seen=path, cure="give the path of the Python file that trains")
    nodes, text, at_root = _nodes(path.resolve())
    source = Path.cwd() if at_root else path.parent
    imports, calls = set(_imports(nodes)), [node for node in nodes if isinstance(node, ast.Call)]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    names = {_name(node) for node in nodes}
    starter = next((import_name for import_name in _STARTERS if _imports_any(import_name, imports)), "")
    launcher, reason = "none", "nothing in it starts ranks"
    if _imports_any("mpi4py", imports) or _imports_any("horovod", imports):
        launcher, reason = "mpirun", "it imports mpi4py or horovod"
    elif starter or "LOCAL_RANK" in texts or "init_process_group" in names:
        launcher, reason = "torchrun", f"it imports {starter}" if starter else "it asks for its rank"
    form = next((form for name, form in _FORMATS if _imports_any(name, imports)), "auto")
    pattern, progress_why = _progress(calls, form, _imports_any("tqdm", imports))
    steps, options = _STEPS.search(text), sorted(text for text in texts if _FOLDER.fullmatch(text))
    trains = starter.startswith("transformers.")
    cuda = {"nccl", "cuda", "cuda:0"} & texts or ("cuda" in names and "device" not in names)
    tops = {name.partition(".")[0] for name in imports} - {*sys.stdlib_module_names, "bivouac"}
    return Script(
        source=str(source), name=str(path.resolve().relative_to(source.resolve())), launcher=launcher,
        launcher_why=reason, format=form, pattern=pattern, progress_why=progress_why, at_root=at_root,
        steps=int(steps[1].replace("_", "")) if steps else 0,
        folder_option=(options or (["--output_dir"] if trains else [""]))[0],
        knows_folder="BIVOUAC_CHECKPOINTS" in texts or "bivouac" in imports,
        needs_cuda=bool(cuda) and not {"is_available", "device_count"} & names,
        requirements=(source / "requirements.txt").is_file(),
        absent=tuple(sorted(top for top in tops if not (_module(top, path.parent, source) or _is_installed(top)))),
    )  # fmt: skip


def _nodes(path: Path) -> tuple[list[ast.AST], str, bool]:
    """Return nodes and text of a script and of its project's modules that it imports; True if these begin at the
    working folder, and not beside the script."""
    package = Path.cwd().resolve()
    roots = (path.parent, package) if path.is_relative_to(package) else (path.parent,)
    waiting, paths, nodes, text, at_root = [path], set[Path](), list[ast.AST](), "", False
    while waiting and len(paths) < _MOST_FILES:
        module = waiting.pop()
        if module in paths:
            continue
        paths.add(module)
        try:
            content = module.read_bytes()
            nodes += ast.walk(tree := ast.parse(content, str(module)))
            text += content.decode(errors="replace")
        except (SyntaxError, ValueError, OSError) as error:
            if module == path:
                cure = "give the Python file that trains"
                raise UserError("the script is no Python", seen=f"{path}: {error}", cure=cure) from error
            continue
        for name in _imports(ast.walk(tree)):
            if (all_nodes := _module(name, *roots)) is not None:
                at_root = at_root or not all_nodes.is_relative_to(path.parent)
                waiting.append(all_nodes)
    return nodes, text, at_root


def _module(name: str, *roots: Path) -> Path | None:
    """Return the file of a module, or of the one that a name is imported from, below the first root that has it."""
    for root in roots:
        for parts in (name.split("."), name.split(".")[:-1]):
            path = root.joinpath(*parts)
            for file in (path.with_suffix(".py"), path / "__init__.py") if parts else ():
                if file.is_file():
                    return file
    return None


def _imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield dotted names: modules, what is imported from them, and `torch.distributed` where it is only used."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.distributed":
            yield "torch.distributed"


def _imports_any(name: str, imports: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for module in imports)


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _progress(calls: list[ast.Call], form: str, bar: bool) -> tuple[str | None, str]:
    """Return the pattern of the lines that tell the step, and from where it comes."""
    prints = [call for call in calls if _name(call.func) in _PRINTS]
    keys = {key.value for call in calls if _name(call.func) == "dumps" for argument in call.args
            if isinstance(argument, ast.Dict) for key in argument.keys if isinstance(key, ast.Constant)}  # fmt: skip
    if {"step", "global_step", "iteration", "iter"} & keys:
        return None, "it prints JSON with its step"
    patterns = [pattern for call in prints if (pattern := _pattern("".join(_line(call.args))))]
    if patterns:
        return max(patterns, key=lambda candidate: "(?P<loss>" in candidate), "from the line that it prints"
    if form == "megatron":
        return rf"iteration\s+{_STEP}/.*lm loss: (?P<loss>\S+)", "Megatron-LM's own line"
    if bar or form in ("huggingface", "lightning"):
        return _BAR, "its progress bar"
    return None, 'NOT FOUND: let it print lines such as {"step": 5, "loss": 2.1}'


def _pattern(line: str) -> str | None:
    """Return a pattern for a printed line, in which a null character and a name stand for each value."""
    if word := _STEP_WORD.search(line):
        begin = rf"(?i:\b{word[1]})s?\D{{0,8}}?"
    elif word := next((match for match in re.finditer(r"\0(\w*)", line) if _STEP_NAME.fullmatch(match[1])), None):
        if "\0" in line[: word.start()]:
            return None
        begin = r"^\D*"
    else:
        return None
    return begin + _STEP + (_LOSS if _LOSS_WORD.search(line, word.end()) else "")


def _line(arguments: list[ast.expr]) -> Iterator[str]:
    for number, node in enumerate(arguments):
        yield " " if number else ""
        if isinstance(node, ast.JoinedStr):
            yield from _line_of(node.values)
        elif isinstance(node, ast.BinOp) and isinstance(node.left, ast.Constant):
            yield from _line_of([node.left])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
            yield from _line_of([node.func.value])
        else:
            yield from _line_of([node])


def _line_of(parts: Iterable[Any]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, ast.Constant):
            yield _HOLE.sub("\0", str(part.value))
        else:
            yield f"\0{_name(part.value if isinstance(part, ast.FormattedValue) else part)} "


def _name(node: ast.AST) -> str:
    """Return the last name of an expression: `self.state.step + 1` -> `step`."""
    if isinstance(node, ast.BinOp):
        return _name(node.left)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
