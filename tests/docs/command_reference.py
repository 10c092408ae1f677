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
    all_commands = list(commands(root, "bivouac"))
    lines = [HEAD]
    if options := list(_options(root)):
        lines += ["Options before any command:", "", *table(("option", "meaning", "default"), options), ""]
    panel = None
    overview: list[str] = []
    for name, command, group in all_commands:
        if group != panel:
            overview += ["", f"**{group}**", ""] if group else [""]
            panel = group
        overview += item(f"[`{name}`](#{name.replace(' ', '-')}): {_first_paragraph(command.help)}")
    lines += [*overview, ""]
    for name, command, _ in all_commands:
        lines += _section(name, command)
    return "\n".join(lines).rstrip() + "\n"


def commands(group: Any, name: str, panel: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield each visible command below a group: its name in full, the command, the help panel that it stands in."""
    subcommands = [(key, command) for key, command in group.commands.items() if not command.hidden]
    order = list(dict.fromkeys(_panel(command) for _, command in subcommands))
    for key, command in sorted(subcommands, key=lambda pair: order.index(_panel(pair[1]))):
        stands_in, full = panel or _panel(command), f"{name} {key}"
        if not hasattr(command, "commands"):
            yield full, command, stands_in
            continue
        if command.invoke_without_command:
            yield full, command, stands_in
        yield from commands(command, full, stands_in)


def _panel(command: Any) -> str:
    panel = command.rich_help_panel
    return panel if isinstance(panel, str) else ""


def _first_paragraph(help_text: str | None) -> str:
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
        metavar = _metavar(argument) + ("..." if argument.nargs == -1 else "")
        words.append(metavar if argument.required else f"[{metavar}]")
    return " ".join(words)


def _arguments(command: Any) -> Iterator[tuple[str, str, str]]:
    for argument in _visible(command, "argument"):
        yield f"`{_metavar(argument)}`", argument.help or "", "required" if argument.required else _default(argument)


def _options(command: Any) -> Iterator[tuple[str, str, str]]:
    for option in _visible(command, "option"):
        names = ", ".join(f"`{opt}`" if option.is_flag else f"`{opt} {_value(option)}`" for opt in option.opts)
        names += "".join(f", `{opt}`" for opt in option.secondary_opts)
        variables = [option.envvar] if isinstance(option.envvar, str) else option.envvar or []
        default = "required" if option.required else _default(option)
        repeatable = option.multiple and "repeated" not in (option.help or "")
        if variables:
            default = f"{' or '.join(f'`{name}`' for name in variables)}, else {default}"
        yield names, (option.help or "") + (" May be repeated." if repeatable else ""), default


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
