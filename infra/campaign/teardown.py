"""Teardown: destroys the stack, only after the archive is verified or abandoned. It ends in success, or in an error
that names each leftover, its reason and what to do; it can be entered again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import httpx2
from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.account import Account
from infra.bake.builder import end_builders, living_builders
from infra.bake.foundation import campaign_settings
from infra.campaign.billing import bills_on
from infra.cluster.kubernetes import OF_WORLD
from infra.engine.engine import Engine
from infra.engine.failures import RETRIED, Cause, EngineFailed, cure_for
from infra.engine.kubernetes_state import forget_kubernetes
from infra.engine.nodegroups import end_instances
from infra.errors import BivouacError, NotProven, PermanentError, UserError
from infra.folders import writable
from infra.inventory import certify
from infra.inventory.stakes import may_hold_checkpoints, refuse_unproven
from infra.inventory.sweep import remove_left
from infra.kinds import KINDS, Remain, ResourceKind, kind_of_type
from infra.record.events import CampaignState
from infra.record.identity import read_identity
from infra.record.payloads.outputs import ProvisionOutput, TeardownOutput
from infra.record.payloads.stages import Abandoned
from infra.session.context import Context
from infra.spec import waits
from infra.spec.names import Names, freeze_policy


def remains(account: Account, names: Names) -> tuple[Remain, ...]:
    """Return everything that blocks the teardown, in the order of removal."""
    kinds = sorted(KINDS, key=lambda kind: kind.step)
    return tuple(row for kind in kinds for row in _remains_or_doubt(account, names, kind))


def holding(type: str, rows: tuple[Remain, ...]) -> Remain | None:
    """Return what most likely holds a resource of Pulumi's type; first what has to be ended, then what only waits."""
    holders = kind_of_type(type).held_by
    blockers = [row for row in rows if holders and row.what.startswith(holders)]
    return next((row for row in blockers if not row.waits), next(iter(blockers), None))


def _remains_or_doubt(account: Account, names: Names, kind: ResourceKind) -> list[Remain]:
    if kind.remains is None:
        return []
    try:
        return list(kind.remains(account, names))
    except (ClientError, BotoCoreError) as error:
        code = error.response["Error"]["Code"] if isinstance(error, ClientError) else type(error).__name__
        return [Remain(f"perhaps more of: {kind.name}s", f"could not look: {code}", "allow the listing")]


PATIENCE_S = waits.TEARDOWN.seconds
"""Time for which transient failures are retried, from the first one after something was removed: a try alone may take
three quarters of an hour."""
FUTILE_ROUNDS = 3
"""This many tries in a row that removed nothing end it, unless AWS only throttles or fails."""
_PASSING = frozenset({Cause.THROTTLED, Cause.SERVER})
_LOOK_AFTER_S = 20.0
_LOOK_EVERY_S = 15.0


def run(context: Context, *, abandon: bool = False) -> TeardownOutput:
    """Destroy the campaign's stack, which may be empty already. The foundation stays."""
    state = context.state()
    try:
        refuse_unproven(state, context.spec.campaign, read_identity(context.store))
    except NotProven:
        if abandon:
            context.store.append(Abandoned(who=context.operator_arn))
        elif not state.tells_nothing or may_hold_checkpoints(context.account, context.spec.campaign):
            raise
    _terminate_builders(context)
    _unfreeze(context)
    engine = Engine(context, writable(context.results / "pulumi"))
    count = _destroy(context, engine, state)
    swept = remove_left(context)
    if swept:
        context.progress.note(f"removed what the stack did not know: {', '.join(swept)}")
    if count == 0:
        _refuse_forgotten(context)
    context.progress.note(f"{count} resources destroyed" if count else "the stack was empty and nothing is left")
    if on := bills_on(context):
        context.progress.note(on)
    return TeardownOutput(resources=count, swept=swept)


def _unfreeze(context: Context) -> None:
    """Detach the policy that AWS Budgets attached to the spec's roles; it is not part of the stack. Each region has its
    own policy: a freeze by another region's campaign stays."""
    iam, spec = context.account.client("iam"), context.spec
    policy = f"arn:aws:iam::{spec.account}:policy/{freeze_policy(spec.region)}"
    for role in spec.money.freeze_roles:
        context.guard()
        try:
            iam.detach_role_policy(RoleName=role, PolicyArn=policy)
        except iam.exceptions.NoSuchEntityException:
            continue
        context.progress.note(f"role {role} may buy again: AWS Budgets had frozen it")


def _destroy(context: Context, engine: Engine, state: CampaignState) -> int:
    """Destroy the stack, with retries while failures are transient; return the number of its resources."""
    digest = ProvisionOutput.known(state.finished_stages).data_digest or "0" * 64
    config = campaign_settings(context, digest).to_config()
    tries, pause, most_seen = _Tries(), 2.0, 0
    while True:
        try:
            stack = engine.stack(context.names.stack, config)
            engine.amend(stack, partial(forget_kubernetes, context))
            count = engine.resources(stack)
            most_seen = max(most_seen, count)
            tries.begin(count)
            with _watch_waits(context, engine):
                engine.destroy(stack)
            return most_seen
        except (EngineFailed, *OF_WORLD) as error:
            failure = _as_failure(context, error)
            if tries.end(failure):
                _end_instances(context)
                raise _final_error(context, failure) from failure
            _prepare_another(context, failure)
            reason = f"another try in a moment: {failure.seen}"[:200]
        for _ in context.turns(pause):
            context.progress.step(reason)
        pause = min(pause * 2, 60.0)


@dataclass
class _Tries:
    """Tries to destroy the stack, judged by what they removed."""

    left: int = -1
    """Resources before the newest try."""
    futile: int = 0
    failing_since: float | None = None
    """Time of the first failure after something was removed."""

    def begin(self, resources: int) -> None:
        if resources == self.left:
            self.futile += 1
        else:
            self.left, self.futile, self.failing_since = resources, 0, None

    def end(self, failure: EngineFailed) -> bool:
        """Return whether this failure is the last."""
        now = time.monotonic()
        self.failing_since = now if self.failing_since is None else self.failing_since
        if Cause.CREDENTIALS in failure.causes or not failure.causes & RETRIED:
            return True
        too_many = self.futile >= FUTILE_ROUNDS and not failure.causes <= _PASSING
        return too_many or now - self.failing_since > PATIENCE_S


def _as_failure(context: Context, error: Exception) -> EngineFailed:
    """Convert a failure of our own calls, which may be as transient as the engine's."""
    if isinstance(error, EngineFailed):
        return error
    if isinstance(error, httpx2.HTTPError):
        return EngineFailed("a look at the cluster", context.names.stack, (), f"the cluster is unreachable: {error}")
    return EngineFailed("a look at AWS", context.names.stack, (), str(error))


def _prepare_another(context: Context, error: EngineFailed) -> None:
    """Print what failed; terminate the instances of a node group that hangs, since they bill most."""
    for failure in error.failures:
        context.progress.note(f"{failure.title}: {failure.cause}: {failure.message[:300]}")
    if any(failure.kind.endswith(":NodeGroup") for failure in error.failures):
        _end_instances(context)
    if any(failure.cause is Cause.DEPENDENCY and kind_of_type(failure.kind).network for failure in error.failures):
        _clear_network(context)


def _end_instances(context: Context) -> None:
    """Terminate the instances, which bill most, if AWS lets us; the next try, or the final error, reports the rest."""
    with suppress(ClientError, BotoCoreError):
        end_instances(context)


def _final_error(context: Context, engine_failure: EngineFailed) -> UserError | PermanentError:
    """Return the final error: each leftover, its reason and what to do."""
    campaign = context.spec.campaign
    if Cause.CREDENTIALS in engine_failure.causes:
        return UserError(
            "the AWS credentials have expired during the teardown",
            seen=engine_failure.seen,
            cure=f"renew them (for instance `aws sso login`), then `bivouac down {campaign}` continues from there",
        )
    rows = remains(context.account, context.names)
    # A leftover that only waits for another one needs no line.
    telling = [row for row in rows if not row.waits]
    for row in telling:
        context.progress.note(str(row))
    facts = [*(str(failure) for failure in engine_failure.failures), *(f"{row.what}: {row.why}" for row in telling)]
    cures = [*(row.do for row in telling), *(cure_for(failure.cause) for failure in engine_failure.failures)]
    return PermanentError(
        f"campaign {campaign} is not torn down",
        seen=" | ".join(facts) or engine_failure.words,
        cure="; ".join([*dict.fromkeys(cures), f"then `bivouac down {campaign}` continues"]),
    )


def _refuse_forgotten(context: Context) -> None:
    """Raise if resources exist though the stack is empty: its state may have been lost."""
    names, spec = context.names, context.spec
    context.progress.step("the stack is empty: checking that its resources are gone too")
    facts = certify.knowledge(context.store, names)

    def certain() -> tuple[str, ...]:
        """Return certain leftovers; the certificate waits for and reports uncertain ones."""
        return certify.look_through(context.account, names, context.operator_arn, spec.account, (), facts).certain

    leftovers = certain()
    for _ in context.turns(certify.SETTLE_S, 1.0):
        if not leftovers:
            return
        context.progress.step(f"still seen: {', '.join(leftovers[:3])}; listings may lag")
        leftovers = certain()
    raise PermanentError(
        f"the state of stack {names.stack} is empty, but resources of {spec.campaign} exist",
        seen=", ".join(leftovers),
        cure=f"`bivouac sweep {spec.campaign}` removes what is provably the campaign's; then `bivouac down` again",
    )


@contextmanager
def _watch_waits(context: Context, engine: Engine) -> Iterator[None]:
    """Print what holds a resource that the engine waits long for."""
    end = threading.Event()

    def look() -> None:
        while not end.wait(_LOOK_EVERY_S):
            slow = [
                (kind, start) for kind, start in engine.watch.open.values() if time.monotonic() - start > _LOOK_AFTER_S
            ]
            if any(kind_of_type(kind).network for kind, _ in slow):
                _clear_network(context)
            rows = remains(context.account, context.names) if slow else ()
            for kind, start in slow[:2]:
                bare = kind.rpartition(":")[2]
                holder = holding(kind, rows)
                context.progress.step(f"{bare} since {time.monotonic() - start:.0f} s{f': {holder}' if holder else ''}")

    thread = threading.Thread(target=look, name="teardown-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()


def _clear_network(context: Context) -> None:
    """Remove what AWS put into the network, if AWS lets us; the final error names the rest. Once subnets are deleted
    the cluster has gone, and its group serves nobody."""
    with suppress(ClientError, BotoCoreError, BivouacError):
        if names := remove_left(context, in_network=True):
            context.progress.note(f"removed what AWS had put into the network: {', '.join(names)}")


def _terminate_builders(context: Context) -> None:
    """Terminate builders that a killed bake left: they are not in the stack."""
    context.guard()
    ids = end_builders(context.account, context.names)
    if not ids:
        return
    for _ in context.turns(waits.BUILDER_END.seconds):
        if not (ids := living_builders(context.account, context.names)):
            return
        context.progress.step(f"builder {', '.join(ids)} is terminating")
    raise PermanentError(
        "a builder does not terminate",
        seen=f"{', '.join(ids)} after {waits.BUILDER_END.seconds:.0f} s",
        cure=f"look at it in the console, or ask AWS Support; `bivouac down {context.spec.campaign}` goes on",
    )
