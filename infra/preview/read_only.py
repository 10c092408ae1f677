"""A read-only session of a campaign: nothing is written, no lease is taken, and every guard refuses."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from infra.bake.foundation import campaign_settings, foundation_settings
from infra.data import dataset, source
from infra.engine.drift import StackLook, look, resources_of, short
from infra.engine.state_copy import stored_state
from infra.errors import UserError
from infra.plan.plan import Plan
from infra.record.identity import read_identity
from infra.record.payloads.outputs import ProvisionOutput
from infra.session.block_clock import clock_of
from infra.session.context import Context
from infra.session.session import SPEC, STACK_CONFIG, open_session, stored_deadline, stored_plan
from infra.spec.campaign import Spec
from infra.spec.names import DATA_FOLDER, FOUNDATION_STACK, PROJECT
from infra.stack.settings import CampaignSettings

NO_DATA = "not-prepared-here"
_ASSOCIATION = "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation"


def read_only_context(spec: Spec, plan: Plan | None, console: Console) -> Context:
    """Return a context without the lease: `guard` raises `LeaseLost`. `plan`: None for the stored one."""
    session = open_session(spec, "looker")
    plan = plan or stored_plan(session.store, spec)
    now = datetime.now(UTC)
    deadline = stored_deadline(session.store) or clock_of(session.account, spec, plan, now)[1]
    stored_identity = read_identity(session.store)
    return session.context(plan, console, deadline, stored_identity.identity if stored_identity else "")


def other_spec(context: Context) -> UserError | None:
    """Return an error naming each changed field if the campaign was begun with another spec, else None."""
    document = context.store.get_json(SPEC)
    if document is None:
        return None
    stored_spec = Spec.model_validate(document)
    changes = list(differing(stored_spec.model_dump(mode="json"), context.spec.model_dump(mode="json")))
    if not changes:
        return None
    return UserError(
        f"campaign {context.spec.campaign} was begun with another spec",
        seen=", ".join(f"{path}: {short(old)} -> {short(new)}" for path, old, new in changes),
        cure="set these fields back; or give the new campaign another name, or first end this one: "
        f"bivouac down {context.spec.campaign}",
    )


def look_at_stacks(
    context: Context, names: Container[str] | None = None, *, look_inside: bool = True
) -> tuple[StackLook, ...]:
    """Compare foundation and campaign, or those in `names`, with AWS and with the program."""
    configs = {stack: settings for stack, settings in stacks(context).items() if names is None or stack in names}
    with ThreadPoolExecutor(len(configs) or 1) as pool:
        # The digest of unprepared data takes seconds: computed while the foundation is looked at.
        futures = {stack: pool.submit(settings) for stack, settings in configs.items()}
        # One after the other: two inline programs in one process conflict when they import the SDK's lazy modules.
        return tuple(look(context, stack, settings.result(), inner=look_inside) for stack, settings in futures.items())


def stacks(context: Context) -> dict[str, Callable[[], Mapping[str, str]]]:
    """Return stack -> a function for its configuration, as in provision."""
    return {
        FOUNDATION_STACK: foundation_settings(context.store, context.spec).to_config,
        context.names.stack: lambda: as_operated(context, campaign_settings(context, data_digest(context))).to_config(),
    }


def as_operated(context: Context, settings: CampaignSettings) -> CampaignSettings:
    """Return the settings with the stack's operator: a look must not plan to replace that."""
    config = context.store.get_json(STACK_CONFIG) or {}
    operator = config.get(f"{PROJECT}:operatorArn")
    return settings.model_copy(update={"operator_arn": operator}) if operator else settings


def data_digest(context: Context) -> str | None:
    """Return the digest by the record, else by the stack, else of the data as it would be prepared now; None if the
    cluster is to prepare it."""
    if digest := ProvisionOutput.known(context.state().finished_stages).data_digest:
        return digest
    for resource in resources_of(stored_state(context.store, context.names.stack)).values():
        if resource["type"] == _ASSOCIATION and resource["inputs"]["fileSystemPath"] == f"/{DATA_FOLDER}":
            return str(resource["inputs"]["dataRepositoryPath"]).rstrip("/").rpartition("/")[2]
    if context.spec.prepares_data:
        return None
    try:
        if context.spec.runtime.requirements is not None:
            raise UserError("its packages are chosen when the campaign starts")
        if context.spec.workload is not None:
            return source.pack(context.spec.workload.on(context.spec.target)).digest
        return dataset.prepare(context.spec, context.progress.step).digest
    except UserError as error:
        # The data is mostly missing where a pull request is previewed; only one link's path depends on it.
        context.progress.note(f"the data is not here, its digest is left open: {error.what}")
        return NO_DATA


def differing(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted name, old value, new value) of every field that differs between two documents."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from differing(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new:
        yield path, old, new
