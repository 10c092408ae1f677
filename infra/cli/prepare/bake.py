"""`bivouac bake SPEC`: makes the images of a campaign before it begins."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from infra import target
from infra.cli.answers import aside, write_json
from infra.cli.options import site_steps
from infra.cli.prepare.check import show
from infra.cli.prepare.checked import checked
from infra.console.plain_console import say
from infra.console.terminal import ask_yes
from infra.errors import UserError
from infra.folders import refuse_unwritable, results_folder
from infra.plan.checks import failed
from infra.plan.plan import make_plan


def bake_command(path: Path, force: bool, consent: bool, console: Console, *, as_json: bool = False) -> int:
    """Bake both images; exit code 0 when both exist. `bivouac run` finds them by the digests of their inputs."""
    output, console = console, aside(console, as_json)
    check = checked(path)
    if failed(check.findings) or check.spec is None or check.facts is None:
        show(path, check.findings, as_json, output)
        return UserError.exit_code
    spec = check.spec
    refuse_unwritable(results_folder(spec.campaign, spec.account, spec.region), "BIVOUAC_RESULTS")
    target.enter_for(spec, site_steps(console))
    question = "Two builders (m7i.large) for up to two hours, and the storage of an image. Go?"
    if target.spends(spec) and not consent and not ask_yes(question, console):
        raise UserError("nothing was started", seen="no", cure="answer yes, or give --yes")
    # Pulumi and boto3 take a second to import: only a bake that really starts pays for it.
    from infra.bake import bake
    from infra.bake.builder import LIFE
    from infra.session.session import opened_for_images

    with opened_for_images(spec, make_plan(spec, check.facts), console, LIFE) as context:
        with context.progress.stage("bake", "foundation; node image, trainer image, steward image"):
            images = bake.images(context, force=force)
        if as_json:
            write_json(output, images.data())
            return 0
        nodes, place = images.node_image, f"s3://{context.buckets.state}"
        assert nodes is not None, "a bake has one"
        say(console, f"node image    {nodes.ami}  {place}/{nodes.manifest}")
        say(console, f"trainer image {images.image}  {place}/{images.manifest}")
    return 0
