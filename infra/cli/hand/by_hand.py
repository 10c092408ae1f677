"""`pulumi` typed by hand: the driver's configuration of a stack from a spec file, and what the CLI needs around it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from infra import target
from infra.aws.account import Account
from infra.bake import node_image
from infra.bake.foundation import campaign_settings, key_of, settle_config
from infra.bake.sources import code_of, keep_code
from infra.cli.options import site_steps
from infra.cli.prepare.checked import checked, with_answers
from infra.cli.records import record_of
from infra.console.plain_console import say
from infra.engine.state_copy import backend, passphrase, provider, stack_settings, stored_state
from infra.errors import PermanentError, UserError
from infra.inventory import certify
from infra.plan.checks import Level, failed
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.preview.read_only import as_operated, other_spec, read_only_context, stacks
from infra.record.events import Stage
from infra.record.payloads.stages import StageFinished, StageStarted
from infra.record.store import CampaignStore
from infra.session.context import Context
from infra.session.session import STACK_CONFIG, foundation_lease, open_session, opened, stored_spec
from infra.session.state_bucket import ensure_bucket
from infra.spec.campaign import Spec, load
from infra.spec.names import FOUNDATION_STACK, PROJECT, campaign_stack

SPEC_KEY = f"{PROJECT}:spec"
_QUIET = Console(quiet=True)


def configuration(stack: str, settings: Mapping[str, str], root: Path, *, preview: bool) -> Mapping[str, str]:
    """Return what the driver would configure; an `up` begins the record, with which `bivouac run` goes on. `settings`:
    the stack's own configuration. `root`: folder of `Pulumi.yaml`. Raises `UserError`; `LeaseHeld` beside a driver."""
    spec = _spec(stack, settings, root, preview)
    plan = make_plan(spec, survey(spec))
    look = read_only_context(spec, plan, _QUIET)
    if (refusal := other_spec(look)) is not None:
        raise refusal
    if stack not in (configurations := stacks(look)):
        cure = f"--stack {' or --stack '.join(configurations)}; `bivouac stack init SPEC` makes them"
        raise UserError("the stack is not the spec's", seen=f"{stack}; campaign {spec.campaign}", cure=cure)
    if preview:
        return configurations[stack]() if stack == FOUNDATION_STACK else _of_campaign(look)
    if stack == FOUNDATION_STACK:
        with foundation_lease(look):
            return settle_config(look)
    if look.state().ended:
        raise UserError(f"campaign {spec.campaign} has ended", seen="its report", cure="give the next one another name")
    if (image := node_image.known_image(look)) is None:
        # The launch template keeps the image that it was made with.
        raise UserError("its image is not baked", seen=f"image.nodes: {spec.image.nodes}", cure="bivouac bake SPEC")
    with opened(spec, plan, _QUIET, target.site_facts()) as context:
        # What a driver that goes on, a teardown and the closer need of the record.
        certify.note_baseline(context)
        if (store := context.store).state().started_at is None:
            store.append(StageStarted(stage=Stage.PLAN, who=context.operator_arn))
            store.append(StageFinished(stage=Stage.PLAN, seconds=0.0, outputs={}))
        store.put_json(node_image.RECORD, store.get_json(node_image.RECORD) or {"manifest": image.key})
        keep_code(context, code_of(context))
        store.put_json(STACK_CONFIG, config := _of_campaign(context))
        return config


def _of_campaign(context: Context) -> Mapping[str, str]:
    """Return the configuration with the data that a driver has linked, and none before."""
    digest = (context.store.get_json(STACK_CONFIG) or {}).get(f"{PROJECT}:dataDigest")
    return as_operated(context, campaign_settings(context, digest)).to_config()


def _spec(stack: str, settings: Mapping[str, str], root: Path, preview: bool) -> Spec:
    """Return the spec that the configuration names, checked as `bivouac run` checks it."""
    if wrong := sorted(key for key in settings if key.startswith(f"{PROJECT}:") and key != SPEC_KEY):
        cure = f"pulumi config rm --stack {stack} {wrong[0]}; the one key is {SPEC_KEY}, all else stands in the spec"
        raise UserError("the configuration has a key that nothing reads", seen=", ".join(wrong), cure=cure)
    if not (text := settings.get(SPEC_KEY, "")):
        cure = f"pulumi config set --stack {stack} {SPEC_KEY} campaign.yaml"
        raise UserError("the stack has no spec", seen=f"{SPEC_KEY} is not set", cure=cure)
    if text.startswith("{"):
        return Spec.model_validate_json(text)
    check = checked(path := root / Path(text).expanduser())
    if check.spec is not None and check.spec.target == "rehearsal" and target.site_facts() is None:
        cure = f"bivouac shell {path} -- pulumi ..."
        raise UserError("a rehearsal's account is in its site", seen="a shell outside of the site", cure=cure)
    if check.spec is not None:
        target.refuse_standing(check.spec)
    check = check if preview else with_answers(check, _QUIET)
    if failed(check.findings) or check.spec is None:
        errors = "; ".join(str(finding) for finding in check.findings if finding.level is Level.ERROR)
        raise UserError("the spec has errors", seen=f"{path}: {errors}", cure=f"bivouac check {path}")
    return check.spec


def init_command(name: str, region: str, console: Console) -> int:
    """Make the state bucket, the stacks and their files in the project's folder, where they are missing."""
    if not Path("Pulumi.yaml").exists():
        raise UserError("no Pulumi project is here", seen=Path.cwd(), cure="cd to the clone, where Pulumi.yaml is")
    spec, store, text = spec_and_record(name, region, console)
    account = Account(spec.region)
    ensure_bucket(account, store.bucket, spec.account)
    environ = environment(store.bucket, spec.region)
    for stack in write_stacks(Path.cwd(), store, text):
        key = None if stack == FOUNDATION_STACK else key_of(account, spec)
        if key is None and stack != FOUNDATION_STACK and spec.encryption.customer_key:
            cure = f"pulumi up --stack {FOUNDATION_STACK}, then this again"
            raise UserError("the campaign's key is not made yet", seen="encryption.customer_key: true", cure=cure)
        address = provider(key, spec.region) or "passphrase"
        command = ["pulumi", "stack", "select", stack, "--create", "--secrets-provider", address]
        if code := subprocess.call(command, env=environ):
            raise PermanentError(f"stack {stack} is not made", seen=f"exit code {code}", cure="mend what Pulumi says")
        say(console, f"{'stack':<10} {stack}: Pulumi.{stack}.yaml")
    export = f"export PULUMI_BACKEND_URL='{environ['PULUMI_BACKEND_URL']}' PULUMI_CONFIG_PASSPHRASE=, or before each"
    say(console, f"{'then':<10} {export} command: bivouac shell {name} --")
    return 0


def spec_and_record(name: str, region: str, console: Console) -> tuple[Spec, CampaignStore, str]:
    """Return spec, record and value of `SPEC_KEY`, by a spec's path or a begun campaign's name; enter its site."""
    if name.endswith((".yaml", ".yml")):
        spec = load(Path(name)).spec
        target.enter_for(spec, site_steps(console))
        return spec, open_session(spec, "by-hand").store, os.path.abspath(name)
    target.enter_where(name)
    spec = stored_spec(store := record_of(name, region))
    target.refuse_standing(spec, "shell")
    return spec, store, spec.model_dump_json()


def environment(bucket: str, region: str) -> dict[str, str]:
    """Return the environment of a shell in which `pulumi` finds engine, Python, backend and passphrase."""
    path = os.pathsep.join([*target.hands("pulumi", "pulumi-language-python"), os.environ["PATH"]])
    place = {"AWS_REGION": region, "AWS_DEFAULT_REGION": region, "AWS_PAGER": "", "PATH": path}
    return {**os.environ, **passphrase(), **backend(bucket, region), **place}


def write_stacks(folder: Path, store: CampaignStore, spec: str) -> tuple[str, ...]:
    """Write `Pulumi.STACK.yaml` of foundation and campaign; return the stacks' names. `spec`: path or JSON."""
    names = FOUNDATION_STACK, campaign_stack(store.campaign)
    for stack in names:
        settings = {**stack_settings(stored_state(store, stack)), "config": {SPEC_KEY: spec}}
        (folder / f"Pulumi.{stack}.yaml").write_text(json.dumps(settings, indent=1) + "\n")
    return names
