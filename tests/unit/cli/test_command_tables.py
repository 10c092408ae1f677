"""What commands print in tables: every id whole at 80 columns, and words from outside as they are, never as markup."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from rich.console import Console

from infra.aws.market import Choice
from infra.bake.image_inventory import BakedImage
from infra.cli.data import checkpoints, checkpoints_text
from infra.cli.end import orphans as orphans_command
from infra.cli.end import sweep
from infra.cli.prepare import addons, block, images
from infra.cli.prepare import catalogue as catalogue_command
from infra.cli.rendering import _figures
from infra.console.tables import Listing
from infra.inventory import Evidence, Suspicion, orphans
from infra.inventory.sweep import Leftover, Sight
from infra.kinds import Thing
from infra.plan import catalogue
from infra.plan.estimates.figure import Figure
from infra.rehearsal import doctor
from infra.spec.campaign import Capacity
from trainer.contract.listing import Listed

DAY = datetime(2026, 11, 1, tzinfo=UTC)
VOLUME = "vol-0123456789abcdef0"
HOSTILE = ("scratch [do not delete]", "data [/mnt]", "a [bold red]b[/] [link=x]c", r"d \[e]")


def printed(print_it: Callable[[Console], object]) -> str:
    """As in a pipe: 80 columns, and no terminal."""
    out = io.StringIO()
    print_it(Console(file=out, width=80))
    return out.getvalue()


def left(name: str = "", id: str = VOLUME) -> Leftover:
    return Leftover("volume", Thing(id, name, created=DAY), Evidence.UNPLACED)


def orphan(name: str = "", campaign: str = "forgotten") -> orphans.OrphanSight:
    owner = orphans.Owner(campaign, True, f"its time ran out [{name}]", f"held [{name}]")
    found = orphans.Orphan(owner, left(name), "2026-11-01T00:00:00Z")
    return orphans.OrphanSight((found,), (owner,), {"topic [/x]": "no"})


def shown(table: Listing) -> str:
    return printed(table.show)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_in_aws_is_shown_as_it_is_before_anything_is_removed(name: str) -> None:
    suspect = Suspicion("volume", Thing(VOLUME, name), f"with Name={name}")
    text = printed(lambda console: sweep._show(Sight((left(name),), (suspect,), {name: name}), console))
    assert f"{name} ({VOLUME})" in text and f"with Name={name}" in text and f"could not look: {name}: {name}" in text
    text = printed(lambda console: orphans_command._show(orphan(name, name), console))
    assert f" {name} " in text and f"{name} ({VOLUME})" in text and "topic [/x]" in text
    assert f"{name} is over: its time ran out [{name}]" in text and f"{name} is held [{name}]" in text


def test_a_name_cannot_move_the_cursor_or_turn_the_line() -> None:
    text = printed(lambda console: sweep._show(Sight((left("a\x1b[2Kb\r\n\u202ec"),), (), {}), console))
    assert r"a\x1b[2Kb\r\n\u202ec" in text and "\x1b" not in text


def test_a_sweep_shows_every_id_whole() -> None:
    long = "arn:aws:elasticloadbalancing:us-west-2:123456789012:loadbalancer/net/bivouac-drilled/0123456789abcdef"
    text = printed(lambda console: sweep._show(Sight((left("x" * 60), left(id=long)), (), {}), console))
    assert f"{'x' * 60} ({VOLUME})" in text and long in text and "2026-11-01 00:00" in text and "removes it" in text
    text = printed(lambda console: orphans_command._show(orphan("x" * 60, "c" * 40), console))
    assert f"{'x' * 60} ({VOLUME})" in text and "c" * 40 in text and "2026-11-01T00:00:00Z" in text and "…" not in text


def test_a_sweep_prices_what_is_left_and_sums_it_up() -> None:
    several = (Leftover("NAT gateway", Thing("nat-1"), Evidence.TAG), left())
    text = printed(lambda console: sweep._show(Sight(several, (), {}), console))
    assert " 0.045 " in text and "together 0.045 USD/h, and 1 whose price is not in the catalogue" in text


def test_the_catalogue_shows_every_type_and_figure_whole() -> None:
    items = catalogue.instance_types()
    rows = shown(catalogue_command.table(items)).splitlines()
    for item in items:
        row = next(row.split() for row in rows if row.split()[:1] == [item.name])
        assert {f"{item.network_gbit_s}", f"{item.network_cards}", f"{item.efa_interfaces}"} <= set(row), item.name
        assert item.price_usd_per_hour is None or str(item.price_usd_per_hour) in row


def test_offers_show_every_id_whole() -> None:
    choice = Choice(
        instance_type="p6-b200.48xlarge", zone="us-west-2-lax-1a", capacity=Capacity.CAPACITY_BLOCK,
        usd_per_hour=Decimal("113.9328"), usd=Decimal("1234567.89"), starts=DAY, ends=DAY, id="cb-0123456789abcdef0",
        fits=True, note="sold as a whole [/b], paid at once, and it cannot be given back whatever becomes of it",
    )  # fmt: skip
    text = shown(block.table([choice], "2 nodes for x"))
    for word in ("p6-b200.48xlarge", "us-west-2-lax-1a", "cb-0123456789abcdef0", "1,234,567.89", "2026-11-01 00:00Z"):
        assert word in text
    assert "[/b]," in text.split()


def test_images_show_every_id_whole() -> None:
    digest, ami = f"sha256:{'0123456789abcdef' * 4}", "ami-0123456789abcdef0"
    base = "123456789012.dkr.ecr.us-west-2.amazonaws.com/bivouac/base:cuda-13.0"
    rows = (
        BakedImage("trainer image", digest, base, DAY, Decimal(9), (), None, ("campaign [x]",)),
        BakedImage("node image", ami, "", DAY, Decimal(30), (), None),
    )
    text = printed(lambda console: images._show(rows, console))
    assert digest in text and ami in text and base in text and "campaign [x]" in text


def test_add_ons_show_every_build_whole() -> None:
    builds = [f"v1.{number}.3-eksbuild.{number}" for number in (11, 12, 13)]
    pinned, default, newest = builds
    text = shown(addons.table([addons.Offered("amazon-cloudwatch-observability", pinned, default, newest, sold=False)]))
    assert all(build in text for build in builds) and "amazon-cloudwatch-observability" in text


def test_the_doctor_shows_every_path_whole_and_in_its_own_words() -> None:
    path = "/home/somebody/[/clone]/with/a/long/path/that/no/terminal/holds/.venv/bin/python"
    found = (doctor.Diagnosis("kube-controller-manager", path, False, f"install it: {path}"),)
    text = shown(doctor.render(found))
    assert text.count(path) == 2 and "kube-controller-manager" in text and "missing" in text


def test_checkpoints_show_every_node_whole() -> None:
    node = "ip-10-77-131-204.us-west-2.compute.internal"
    row = Listed(tier="local", node=node, step=1_000_000, committed=False, why="[/attempt-0001] is not there")
    text = shown(checkpoints.table([row], None))
    assert node in text and "1000000" in text and "[/attempt-0001]" in text


def test_a_diff_shows_every_tensor_whole() -> None:
    name = "transformer.layers.31.feed_forward.gate_proj.weight"
    moved = {"tensor": name, "changed": 1, "elements": 2, "norm_first": 1.0, "norm_second": 2.0,
             "norm_of_difference": 1.0, "largest_difference": 1.0}  # fmt: skip
    answer = {"metadata": {}, "only_in_first": [], "only_in_second": [],
              "shards": [{"shard": "attempt-0001/rank-00001.pt", "equal": False, "tensors": [moved]}]}  # fmt: skip
    text = printed(lambda console: checkpoints_text.show_difference(answer, console))
    assert name in text and "attempt-0001/rank-00001.pt" in text


def test_a_plans_figures_are_whole_and_its_formulas_are_words() -> None:
    figure = Figure(
        name="Daly's period", value=Decimal("123456789"), unit="s", formula="sqrt(2 C mu) [1 + sqrt(C/2mu)/3] [/b]" * 3
    )
    text = shown(_figures("Cadence", (figure,)))
    assert "123,456,789" in text and text.count("[/b]") == 3 and max(map(len, text.splitlines())) == 80
