"""The page docs/commands.md, made from the command line itself: names, arguments, options, help texts."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin

import typer

from infra.cli.main import app
from tests.docs.tables import item, table

HEAD = """\
# Commands

<!-- Made by `make docs` from infra/cli. Do not edit it by hand. -->

The words in capitals are yours: `NAME` is the name of a campaign, `SPEC` the path of a spec. Every command also takes
`--help`.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | the command looked, and something is not as it should be (`doctor`, `data audit`, `checkpoints diff`) |
| 2 | the command compared, and something differs (`preview`, `status --refresh`, `addons`, `catalogue refresh`) |
| 73 | the campaign has ended, and no checkpoint of it is proven in the archive |
| 64 to 78 | a refusal or an error, after sysexits: what is wrong, the value seen, the cure |
| 130 | Ctrl-C |
"""


def page() -> str:
    """Return the whole page."""
    root: Any = typer.main.get_command(app)
    found = list(commands(root, "bivouac"))
    lines = [HEAD]
    if options := list(_options(root)):
        lines += ["Options before any command:", "", *table(("option", "meaning", "default"), options), ""]
    panel = None
    overview: list[str] = []
    for name, command, group in found:
        if group != panel:
            overview += ["", f"**{group}**", ""] if group else [""]
            panel = group
        overview += item(f"[`{name}`](#{name.replace(' ', '-')}): {_first(command.help)}")
    lines += [*overview, ""]
    for name, command, _ in found:
        lines += _section(name, command)
    return "\n".join(lines).rstrip() + "\n"


def commands(group: Any, name: str, panel: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield each visible command below a group: its name in full, the command, the help panel that it stands in."""
    below = [(key, one) for key, one in group.commands.items() if not one.hidden]
    order = list(dict.fromkeys(_panel(one) for _, one in below))
    for key, one in sorted(below, key=lambda pair: order.index(_panel(pair[1]))):
        stands_in, full = panel or _panel(one), f"{name} {key}"
        if not hasattr(one, "commands"):
            yield full, one, stands_in
            continue
        if one.invoke_without_command:
            yield full, one, stands_in
        yield from commands(one, full, stands_in)


def _panel(command: Any) -> str:
    panel = command.rich_help_panel
    return panel if isinstance(panel, str) else ""


def _first(help_text: str | None) -> str:
    """Return the first paragraph of a help text, in one line."""
    return " ".join((help_text or "").split("\n\n")[0].split())


def _section(name: str, command: Any) -> list[str]:
    lines = [f"## {name}", "", "```text", _usage(name, command), "```", "", *item(command.help or "", ""), ""]
    rows = [*_arguments(command), *_options(command)]
    return [*lines, *table(("argument or option", "meaning", "default"), rows), ""] if rows else lines


def _visible(command: Any, kind: str) -> Iterator[Any]:
    for parameter in command.params:
        if parameter.param_type_name == kind and not parameter.hidden and parameter.name != "help":
            yield parameter


def _usage(name: str, command: Any) -> str:
    words = [name]
    for option in _visible(command, "option"):
        if option.required:
            words.append(f"{option.opts[0]} {_value(option)}")
    if any(not option.required for option in _visible(command, "option")):
        words.append("[OPTIONS]")
    for argument in _visible(command, "argument"):
        shown = _metavar(argument) + ("..." if argument.nargs == -1 else "")
        words.append(shown if argument.required else f"[{shown}]")
    return " ".join(words)


def _arguments(command: Any) -> Iterator[tuple[str, str, str]]:
    for one in _visible(command, "argument"):
        yield f"`{_metavar(one)}`", one.help or "", "required" if one.required else _default(one)


def _options(command: Any) -> Iterator[tuple[str, str, str]]:
    for one in _visible(command, "option"):
        names = ", ".join(f"`{opt}`" if one.is_flag else f"`{opt} {_value(one)}`" for opt in one.opts)
        names += "".join(f", `{opt}`" for opt in one.secondary_opts)
        asked = [one.envvar] if isinstance(one.envvar, str) else one.envvar or []
        default = "required" if one.required else _default(one)
        again = one.multiple and "repeated" not in (one.help or "")
        if asked:
            default = f"{' or '.join(f'`{name}`' for name in asked)}, else {default}"
        yield names, (one.help or "") + (" May be repeated." if again else ""), default


def _default(parameter: Any) -> str:
    value = parameter.default
    if getattr(parameter, "is_flag", False):
        return "on" if value is True and parameter.secondary_opts else "off"
    if value is None or value == "" or value == []:
        return "none"
    return f"`{value}`"


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name).upper().strip("[]")


def _value(option: Any) -> str:
    """Return the placeholder of an option's value: its type where that is a number, a path or a text."""
    if option.metavar:
        return str(option.metavar)
    annotation = option.type_descriptor.annotation
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    if get_origin(annotation) is list:
        annotation = get_args(annotation)[0]
    return {"int": "N", "float": "NUMBER", "Path": "PATH"}.get(
        annotation.__name__, option.opts[0].strip("-").replace("-", "_").upper()
    )
