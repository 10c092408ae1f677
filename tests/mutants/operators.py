"""Small changes to a module's source that a test should notice: boundaries, conditions, numbers, what is left out.

Each replaces one piece of the text, so that a mutant reads as a line of code and its reverse. Docstrings, types,
decorators and the wording of events, logs and errors stay as they are.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is"}
COMPARISONS |= {"in": "not in", "not in": "in"}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
}
NAMES = {"all": "any", "any": "all", "min": "max", "max": "min"}
WORDING = re.compile(r"^(emit|print|say|told|report|_report|debug|info|warning|exception|log|_log|\w*(Error|Warning))$")
"""Calls whose arguments are words for people, and which leave nothing undone when they are left out."""


@dataclass(frozen=True)
class Mutant:
    """One change; `place` and `change` name it without line numbers."""

    place: str
    before: str
    after: str
    source: str
    lines: range
    """Those of the statement: a test that runs none of them cannot notice."""

    @property
    def change(self) -> str:
        return f"{self.before}  =>  {self.after}"


def mutants(source: str) -> list[Mutant]:
    """Return every mutant of a module, in the order of its text."""
    return _Mutation(source).all()


class _Mutation:
    def __init__(self, source: str) -> None:
        self._source, self._bytes = source, source.encode()
        self._starts = [0]
        for line in self._bytes.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._found: dict[tuple[int, int, str], Mutant] = {}
        self._place: list[str] = []
        self._lines = range(0)
        self._truth = False

    def all(self) -> list[Mutant]:
        self._body(ast.parse(self._source).body)
        return [self._found[key] for key in sorted(self._found)]

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _span(self, node: ast.AST) -> tuple[int, int]:
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self._bytes[start:end].decode()

    def _change(self, start: int, end: int, new: str) -> None:
        changed = self._bytes[:start] + new.encode() + self._bytes[end:]
        first = self._bytes.rfind(b"\n", 0, start) + 1
        last = self._bytes.find(b"\n", end)
        last = len(self._bytes) if last < 0 else last
        before = self._bytes[first:last].decode()
        after = (self._bytes[first:start] + new.encode() + self._bytes[end:last]).decode()
        before, after = (" ".join(text.replace("raise\n", "raise;").split()) for text in (before, after))
        if before == after:
            return
        where = ".".join(self._place) or "module"
        mutant = Mutant(where, before, after, changed.decode(), self._lines)
        self._found.setdefault((start, end, new), mutant)

    def _replace(self, node: ast.AST, new: str) -> None:
        self._change(*self._span(node), new)

    # Statements

    def _body(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        inner = getattr(node, "body", None)
        last = inner[0].lineno - 1 if isinstance(inner, list) and inner[0].lineno > node.lineno else node.end_lineno
        outer, self._lines = self._lines, range(node.lineno, (last or node.lineno) + 1)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node)
            case ast.ClassDef(name=name, body=body):
                self._place.append(name)
                self._body(body)
                self._place.pop()
            case ast.Expr(value=ast.Constant()) | ast.Assert() | ast.Import() | ast.ImportFrom():
                pass
            case ast.Raise():
                self._replace(node, "pass")
                self._expressions(node)
            case ast.Expr(value=ast.Call() as call):
                if not WORDING.match(_called(call)):
                    self._replace(node, "pass")
                self._expressions(node)
            case ast.AnnAssign(value=value):
                if value is not None:
                    self._expression(value)
            case ast.Assign() | ast.AugAssign():
                self._assignment(node)
            case ast.Return(value=value) if value is not None:
                self._return(node, value)
            case ast.Continue() | ast.Break():
                self._replace(node, "break" if isinstance(node, ast.Continue) else "continue")
            case ast.With() | ast.If() | ast.While() | ast.For() | ast.Try() | ast.Match():
                self._compound(node)
            case _:
                self._expressions(node)
        self._lines = outer

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for default in (*node.args.defaults, *(default for default in node.args.kw_defaults if default)):
            self._expression(default)
        self._place.append(node.name)
        returns = node.returns
        self._truth = isinstance(returns, ast.Name) and returns.id == "bool"
        self._body(node.body)
        self._place.pop()

    def _assignment(self, node: ast.Assign | ast.AugAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        made = self._place[-1:] == ["__init__"]
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets) and not made:
            self._replace(node, "pass")
        if isinstance(node, ast.AugAssign):
            if not made:
                self._replace(node, "pass")
            if type(node.op) in ARITHMETIC:
                old, new = ARITHMETIC[type(node.op)]
                self._between(self._span(node.target)[1], self._span(node.value)[0], old + "=", new + "=")
        self._expression(node.value)

    def _return(self, node: ast.Return, value: ast.expr) -> None:
        if not (isinstance(value, ast.Constant) and isinstance(value.value, bool | None)):
            self._replace(value, f"not ({self._text(value)})" if self._truth else "None")
        self._expression(value)

    def _compound(self, node: ast.stmt) -> None:
        match node:
            case ast.If(test=test, body=body, orelse=orelse):
                self._condition(test)
                self._body(body)
                self._body(orelse)
            case ast.While(test=test, body=body):
                if not isinstance(test, ast.Constant):
                    self._replace(test, "False")
                    self._expression(test)
                self._body(body)
            case ast.For(iter=over, body=body, orelse=orelse):
                self._first_only(over)
                self._expression(over)
                self._body(body)
                self._body(orelse)
            case ast.With(items=items, body=body):
                for item in items:
                    call = item.context_expr
                    if isinstance(call, ast.Call) and _called(call) == "suppress":
                        self._change(self._span(call.func)[1], self._span(call)[1], "(Exception)")
                    else:
                        self._expression(call)
                self._body(body)
            case ast.Try():
                self._try(node)
            case ast.Match(subject=subject, cases=cases):
                self._expression(subject)
                for case in cases:
                    if case.guard:
                        self._condition(case.guard)
                    self._body(case.body)

    def _try(self, node: ast.Try) -> None:
        self._body(node.body)
        for handler in node.handlers:
            # Who never gets here may do so when more is caught.
            self._lines = range(node.lineno, handler.body[0].lineno + 1)
            if handler.type is not None and self._text(handler.type) not in ("Exception", "BaseException"):
                self._replace(handler.type, "Exception")
            first = handler.body[0]
            if not isinstance(first, ast.Raise):
                start, _ = self._span(first)
                self._change(start, start, "raise; " if first.lineno == handler.lineno else self._raise_above(first))
            self._body(handler.body)
        self._body(node.orelse)
        self._body(node.finalbody)

    def _raise_above(self, first: ast.stmt) -> str:
        return "raise\n" + " " * first.col_offset

    # Expressions

    def _expressions(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._expression(child)

    def _expression(self, node: ast.expr) -> None:
        match node:
            case ast.JoinedStr() | ast.Name():
                return  # the places inside an f-string are not those of the text before Python 3.12
            case ast.Constant():
                self._constant(node)
            case ast.Compare():
                self._compare(node)
            case ast.BoolOp():
                self._bool(node)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._replace(node, f"({self._text(operand)})")
                self._expression(operand)
            case ast.BinOp():
                self._binary(node)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self._condition(test)
                self._expression(body)
                self._expression(orelse)
            case ast.Call():
                self._call(node)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                for part in node.generators:
                    self._first_only(part.iter)
                    self._expression(part.iter)
                    for test in part.ifs:
                        self._condition(test, "True")
                self._expressions(node)
            case ast.Lambda(body=body):
                self._expression(body)
            case _:
                self._expressions_below(node)

    def _expressions_below(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._expression(child)
            elif isinstance(child, ast.keyword):
                self._expression(child.value)

    def _condition(self, test: ast.expr, *becomes: str) -> None:
        for truth in becomes or ("True", "False"):
            self._replace(test, truth)
        self._expression(test)

    def _constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._replace(node, str(not value))
        elif isinstance(value, int):
            for other in dict.fromkeys((value + 1, value - 1, value * 20)):
                if other != value:
                    self._replace(node, str(other) if other >= 0 else f"({other})")
        elif isinstance(value, float):
            for scaled in dict.fromkeys((value + 1, value * 20, value / 20)):
                if scaled != value:
                    self._replace(node, repr(scaled))

    def _compare(self, node: ast.Compare) -> None:
        left = node.left
        for right in node.comparators:
            gap = self._bytes[self._span(left)[1] : self._span(right)[0]].decode()
            if found := re.search(r"(?<![\w])(is\s+not|not\s+in|is|in|[<>=!]=?)", gap):
                old = " ".join(found.group().split())
                at = self._span(left)[1] + len(gap[: found.start()].encode())
                self._change(at, at + len(found.group().encode()), COMPARISONS[old])
            left = right
        for side in (node.left, *node.comparators):
            for text in (side, *getattr(side, "elts", ())):
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    self._replace(text, repr(f"XX{text.value}"))
            self._expression(side)

    def _bool(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        start, end = self._span(node)
        for left, right in zip(node.values, node.values[1:], strict=False):
            low, high = self._span(left)[1], self._span(right)[0]
            gap = self._bytes[low:high].decode()
            swapped = re.sub(rf"\b{old}\b", new, gap)
            text = self._bytes[start:low].decode() + swapped + self._bytes[high:end].decode()
            self._replace(node, f"({text})")
        if len(node.values) > 2:
            for one in node.values:
                others = [f"({self._text(value)})" for value in node.values if value is not one]
                self._replace(node, f"({f' {old} '.join(others)})")
        for value in node.values:
            self._expression(value)

    def _binary(self, node: ast.BinOp) -> None:
        words = any(_is_text(side) for side in (node.left, node.right))
        if type(node.op) in ARITHMETIC and not words:
            old, new = ARITHMETIC[type(node.op)]
            self._between(self._span(node.left)[1], self._span(node.right)[0], old, new)
        self._expression(node.left)
        self._expression(node.right)

    def _between(self, low: int, high: int, old: str, new: str) -> None:
        at = self._bytes.find(old.encode(), low, high)
        if at >= 0:
            self._change(at, at + len(old), new)

    def _call(self, node: ast.Call) -> None:
        name = _called(node)
        if isinstance(node.func, ast.Name) and name in NAMES:
            self._replace(node.func, NAMES[name])
        if WORDING.match(name):
            return
        if name == "round":
            self._expression(node.args[0])  # its digits are for the reader
            return
        self._expressions_below(node)

    def _first_only(self, over: ast.expr) -> None:
        if not isinstance(over, ast.Tuple | ast.List):
            self._replace(over, f"__import__('itertools').islice({self._text(over)}, 1)")


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", "") or getattr(node.func, "id", "")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
