"""`bivouac catalogue`: prints the instance types, and compares their figures with AWS's."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from infra.cli.answers import write_json
from infra.cli.options import stderr
from infra.console.plain_console import say
from infra.console.progress import Progress
from infra.console.tables import Listing
from infra.errors import CHANGED, UserError
from infra.plan import catalogue
from infra.plan.catalogue import InstanceType


def list_command(as_json: bool, console: Console) -> int:
    items = catalogue.instance_types()
    if as_json:
        rows = [{**item.model_dump(), "all_reduce": _bandwidth(item)} for item in items]
        write_json(console, rows)
        return 0
    table(items).show(console)
    hardware, price, performance = items[0].hardware, items[0].price, items[0].performance
    for label, origin in (("hardware", hardware), ("prices", price), ("FLOP/s, NVLinks", performance)):
        say(console, f"{label}: as of {origin.as_of}, {origin.source}")
    console.print("absent (-), with the reason:")
    reasons = dict[tuple[str, str], list[str]]()
    for item in items:
        for field, reason in item.absent.items():
            reasons.setdefault((field, reason), []).append(item.name)
        if _bandwidth(item) is None:
            reasons.setdefault(("all-reduce", "no source states it"), []).append(item.name)
    for (field, reason), names in reasons.items():
        say(console, f"  {field}: {reason}: {', '.join(names)}")
    return 0


def thresholds_command(as_json: bool, console: Console) -> int:
    """Print what the health check requires of a node, each limit with its source."""
    table = catalogue.thresholds()
    if as_json:
        write_json(console, table.model_dump(mode="json"))
        return 0
    rows = Listing("threshold", "~judges", "~value", "~unit", "~source", has_rule=True)
    for name, threshold in table.numbers.items():
        rows.row(name, threshold.probe, _words(threshold.value), threshold.unit, threshold.source)
    for probe, source in table.states.items():
        rows.row("", probe, "", "", source)
    rows.show(console)
    say(console, f"as of {table.as_of}; what differs by type: `bivouac catalogue`")
    return 0


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name}: {_words(part)}" for name, part in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def refresh_command(region: str, write: bool, as_json: bool, console: Console) -> int:
    """Compare with AWS. Exit code 0: nothing differs, or it was written; 2: AWS has other figures."""
    from infra.aws.account import Account
    from infra.aws.price_list import compare

    account = Account(region)
    account.identity()
    aside = Progress(stderr)
    with aside.stage("catalogue", "every type against DescribeInstanceTypes and the price list; reads only"):
        comparison = compare(account, datetime.now(UTC).date(), aside.step)
    differing = [row for row in comparison.differences if row.kept is None]
    if write:
        _write(comparison.content)
    if as_json:
        write_json(console, comparison.model_dump(exclude={"content"}))
        return CHANGED if differing and not write else 0
    for row in comparison.differences:
        note = f"  (kept: {row.kept})" if row.kept else ""
        say(console, f"{row.instance_type:<18} {row.field:<24} {row.ours or '-'} -> {row.aws or '-'}{note}")
    if comparison.not_offered:
        console.print(f"not offered in {region}, left as they are: {', '.join(comparison.not_offered)}", soft_wrap=True)
    types = len(catalogue.instance_types())
    console.print(f"{len(differing)} figures of {types} types differ" + (f"; written to {_file()}" if write else ""))
    if differing and not write:
        console.print("`bivouac catalogue refresh --write` takes AWS's figures over")
    return CHANGED if differing and not write else 0


def _write(content: dict[str, Any]) -> None:
    path = _file()
    text = file_text(header(path.read_text("utf-8")), content)
    try:
        partial = path.with_suffix(".partial")
        partial.write_text(text, "utf-8")
        partial.replace(path)
    except OSError as error:
        cure = "run it in a clone that you may write to"
        raise UserError("the catalogue's file cannot be written", seen=error, cure=cure) from error


def _file() -> Path:
    from infra.plan.catalogue.instance_types import FILE

    return Path(catalogue.__file__).with_name(f"{FILE}.yaml")


def _bandwidth(item: InstanceType) -> float | None:
    measurement = catalogue.bandwidth(item.name)
    return None if measurement is None else measurement.bus_bandwidth_gb_s


def table(items: tuple[InstanceType, ...]) -> Listing:
    rows = Listing("type", "accelerators", ">TFLOP/s", ">NVLinks", ">vCPU", ">GiB", ">NVMe GB", ">Gbit/s", ">cards",
                    ">EFA", ">all-reduce GB/s", ">USD/h", "block", has_rule=True)  # fmt: skip
    for item in items:
        rows.row(
            item.name, f"{item.accelerators} x {item.accelerator} {item.accelerator_memory_gib:.0f} GiB",
            _text(item.peak_bf16_tflops), _text(item.nvlinks), str(item.vcpus), str(item.memory_gib),
            f"{item.nvme_count} x {item.nvme_gb}", str(item.network_gbit_s), str(item.network_cards),
            str(item.efa_interfaces), _text(_bandwidth(item)), _text(item.price_usd_per_hour),
            "yes" if item.capacity_block else "",
        )  # fmt: skip
    return rows


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


_WIDTH = 95


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def file_text(header: str, content: dict[str, Any]) -> str:
    """Return the text of the file of instance types, one layout for all rows, so that a diff shows only what changed.
    `header` is its leading comment, `content` has the form that `reading.read` returns."""
    lines = [header.rstrip()]
    for name, value in content.items():
        if name != "types":
            lines.append(_flow({name: value}, "")[1:-1])
    lines.append("types:")
    for name, row in content["types"].items():
        lines += [f"  {name}:", _flow(row, "    ")]
    return "\n".join(lines) + "\n"


def header(text: str) -> str:
    """Return the comment lines at the beginning of a file."""
    comments = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        comments.append(line)
    return "\n".join(comments)


def _flow(value: Any, indent: str) -> str:
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=_WIDTH).rstrip()
    head, *tail = text.splitlines()
    return "\n".join([indent + head, *(f"{indent} {line.strip()}" for line in tail)])
