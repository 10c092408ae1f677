"""EventBridge Scheduler with schedules that fire: each call goes over HTTP, as the target's role."""

from __future__ import annotations

import functools
import json
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import boto3
import botocore.session
from botocore import xform_name
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.model import ListShape, MapShape, OperationModel, Shape, StructureShape
from moto.scheduler.models import EventBridgeSchedulerBackend, Schedule
from moto.scheduler.responses import EventBridgeSchedulerResponse

from infra.rehearsal.aws.iam import access
from infra.rehearsal.aws.operations import AwsError, Parameters, add_backend, wrap
from infra.rehearsal.aws.world import World

log = logging.getLogger(__name__)

TICK_S = 0.5
RETRY_S = 2.0
RUNS = "schedule-runs.jsonl"
"""File in <work>/aws: one line per call of a schedule, with its outcome."""
SERVICE = "scheduler.amazonaws.com"
AT = re.compile(r"at\((\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\)")
RATE = re.compile(r"rate\((\d+) (minute|hour|day)s?\)")
RETRIED = ("Throttling", "ThrottlingException", "TooManyRequestsException", "RequestLimitExceeded")


UNIVERSAL = re.compile(r"arn:aws:scheduler:::aws-sdk:(?P<service>[a-z0-9-]+):(?P<action>\w+)")
FORBIDDEN = ("get", "describe", "list", "poll", "receive", "search", "scan", "query", "select", "read", "batchGet")
"""AWS refuses actions that only read."""
_session = botocore.session.get_session()


@dataclass(frozen=True)
class Target:
    service: str
    operation: OperationModel
    arguments: dict[str, Any]

    @property
    def method(self) -> str:
        """Method name of the boto3 client."""
        return xform_name(self.operation.name)


def invalid(message: str) -> AwsError:
    return AwsError("ValidationException", message)


def parse(arn: str, text: str | None) -> Target:
    """Return the call that a schedule will make; raises ValidationException as CreateSchedule does.

    The input's members are in PascalCase, whatever the service's own spelling. For camelCase, AWS's CreateSchedule
    reports that the required members are missing.
    """
    match = UNIVERSAL.fullmatch(arn)
    if not match:
        raise invalid(f"Provided Arn is not in correct format, or not part of the rehearsal (only aws-sdk): {arn}")
    service, action = match["service"], match["action"]
    if action.startswith(FORBIDDEN):
        raise invalid(f"{action} only reads and cannot be a target")
    if service not in _session.get_available_services():
        raise invalid(f"{service} is not a service")
    model = _session.get_service_model(service)
    name = next((name for name in model.operation_names if name[0].lower() + name[1:] == action), None)
    if name is None:
        raise invalid(f"{service} has no action {action}")
    operation = model.operation_model(name)
    try:
        document = json.loads(text or "{}")
    except ValueError:
        raise invalid(f"Invalid Json: {text}") from None
    arguments = _convert(operation.input_shape, document, name) if operation.input_shape else {}
    return Target(service, operation, arguments)


def _convert(shape: Shape, value: Any, path: str) -> Any:
    if isinstance(shape, ListShape) and isinstance(value, list):
        return [_convert(shape.member, item, path) for item in value]
    if isinstance(shape, MapShape) and isinstance(value, dict):
        return {key: _convert(shape.value, item, path) for key, item in value.items()}
    if not isinstance(shape, StructureShape) or not isinstance(value, dict):
        return value
    names = {member[0].upper() + member[1:]: member for member in shape.members}
    missing = [name for name, member in names.items() if member in shape.required_members and name not in value]
    unknown = sorted(set(value) - set(names))
    if missing or unknown:
        raise invalid(f"Invalid RequestJson: {path}: missing {missing}, unknown {unknown}; members: {sorted(names)}")
    return {names[key]: _convert(shape.members[names[key]], item, f"{path}.{key}") for key, item in value.items()}


@dataclass
class Due:
    """The next firing time of a schedule; a different `stamp` means that the schedule was changed since."""

    stamp: tuple[str, str, float]
    at: datetime | None


class Schedules:
    def __init__(self, world: World) -> None:
        self.world = world
        self.due: dict[str, Due] = {}

    @property
    def backend(self) -> EventBridgeSchedulerBackend:
        return self.world.backend("scheduler")

    def create_schedule(self, params: Parameters) -> dict[str, Any]:
        self._check(params)
        if (params.get("GroupName") or "default") not in self.backend.schedule_groups:
            raise AwsError("ResourceNotFoundException", f"no group {params['GroupName']}")
        completion_action = params.get("ActionAfterCompletion") or "NONE"
        schedule = self.backend.create_schedule(**_fields(params), action_after_completion=completion_action)
        return {"ScheduleArn": schedule.arn}

    def update_schedule(self, params: Parameters) -> dict[str, Any]:
        """Update a schedule. As on AWS, omitted fields return to their defaults."""
        self._check(params)
        schedule = self.backend.update_schedule(**_fields(params))
        schedule.action_after_completion = params.get("ActionAfterCompletion") or "NONE"
        return {"ScheduleArn": schedule.arn}

    def _check(self, params: Parameters) -> None:
        first_time(params["ScheduleExpression"], params.get("ScheduleExpressionTimezone") or "UTC", 0.0)
        target = params["Target"]
        parse(target["Arn"], target.get("Input"))
        if not access.role_trusts(self.world, target["RoleArn"], SERVICE):
            raise invalid("The execution role you provide must allow AWS EventBridge Scheduler to assume the role.")

    def tick(self) -> None:
        """Fire the due schedules, each call on its own thread."""
        now = datetime.now(UTC)
        with self.world.lock:
            schedules = [entry for group in self.backend.schedule_groups.values() for entry in group.schedules.values()]
            for schedule in schedules:
                stamp = (schedule.schedule_expression, schedule.schedule_expression_timezone, schedule.creation_date)
                if schedule.arn not in self.due or self.due[schedule.arn].stamp != stamp:
                    self.due[schedule.arn] = Due(stamp, first_time(*stamp))
                due = self.due[schedule.arn]
                if (
                    schedule.state == "ENABLED"
                    and due.at is not None
                    and due.at <= now
                    and not _has_ended(schedule, now)
                ):
                    due.at = due.at + period if (period := _period(schedule.schedule_expression)) else None
                    self.world.spawn(functools.partial(self._fire, schedule))
            self.due = {arn: due for arn, due in self.due.items() if arn in {entry.arn for entry in schedules}}

    def _fire(self, schedule: Schedule) -> None:
        policy = schedule.target["RetryPolicy"]
        deadline = time.monotonic() + policy.get("MaximumEventAgeInSeconds", 86400)
        for attempt in range(policy.get("MaximumRetryAttempts", 185) + 1):
            error, is_transient = self._call(schedule)
            self._record(schedule, attempt, error)
            if not error or not is_transient or time.monotonic() + RETRY_S > deadline:
                break
            time.sleep(RETRY_S)
        is_single = AT.fullmatch(schedule.schedule_expression) is not None
        with self.world.lock:
            group = self.backend.schedule_groups.get(schedule.group_name)
            if is_single and schedule.action_after_completion == "DELETE" and group:
                group.schedules.pop(schedule.name, None)

    def _call(self, schedule: Schedule) -> tuple[str | None, bool]:
        """Make one call; return its error, if any, and whether a retry may help."""
        target = parse(schedule.target["Arn"], schedule.target.get("Input"))
        role = schedule.target["RoleArn"]
        if not access.role_trusts(self.world, role, SERVICE):
            return f"AccessDenied: {role} does not trust {SERVICE}", False
        role_session = access.open_session(self.world, role, schedule.name)
        session = boto3.Session(
            role_session.access_key_id,
            role_session.secret_access_key,
            role_session.session_token,
            region_name=self.world.region,
        )
        single_try = Config(retries={"total_max_attempts": 1})
        client = session.client(target.service, endpoint_url=self.world.endpoint_url, config=single_try)
        try:
            getattr(client, target.method)(**target.arguments)
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
            code = error.response["Error"]["Code"]
            return str(error), status >= 500 or code in RETRIED
        except BotoCoreError as error:
            return str(error), True
        return None, False

    def _record(self, schedule: Schedule, attempt: int, error: str | None) -> None:
        line = {
            "time": datetime.now(UTC).isoformat(),
            "schedule": schedule.arn,
            "target": schedule.target["Arn"],
            "input": schedule.target.get("Input"),
            "attempt": attempt,
            "error": error,
        }
        log.info("schedule %s fired: %s", schedule.name, error or "done")
        path = self.world.work / "aws" / RUNS
        with self.world.lock:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def first_time(expression: str, zone: str, created_at: float) -> datetime:
    """Return the first firing of a schedule made at `created_at` (epoch seconds); raises ValidationException."""
    try:
        timezone = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError):
        raise invalid(f"Invalid Schedule Timezone {zone}.") from None
    if match := AT.fullmatch(expression):
        try:
            return datetime.fromisoformat(match[1]).replace(tzinfo=timezone).astimezone(UTC)
        except ValueError:
            raise invalid(f"Invalid Schedule Expression {expression}.") from None
    if period := _period(expression):
        return datetime.fromtimestamp(created_at, UTC) + period
    raise invalid(f"Invalid Schedule Expression {expression}; a rehearsal takes at(yyyy-mm-ddThh:mm:ss) and rate(...)")


def _period(expression: str) -> timedelta | None:
    match = RATE.fullmatch(expression)
    return timedelta(**{f"{match[2]}s": int(match[1])}) if match and int(match[1]) else None


def _has_ended(schedule: Schedule, now: datetime) -> bool:
    return schedule.end_date is not None and datetime.fromtimestamp(float(schedule.end_date), UTC) <= now


def _fields(params: Parameters) -> dict[str, Any]:
    """Return arguments for moto's create_schedule and update_schedule, with dates as epoch seconds."""
    dates = {key: params[key].replace(tzinfo=UTC).timestamp() if params.get(key) else None for key in DATES}
    return {
        "description": params.get("Description"),
        "end_date": dates["EndDate"],
        "flexible_time_window": params["FlexibleTimeWindow"],
        "group_name": params.get("GroupName"),
        "kms_key_arn": params.get("KmsKeyArn"),
        "name": params["Name"],
        "schedule_expression": params["ScheduleExpression"],
        "schedule_expression_timezone": params.get("ScheduleExpressionTimezone"),
        "start_date": dates["StartDate"],
        "state": params.get("State") or "ENABLED",
        "target": params["Target"] | {"RetryPolicy": RETRIES | (params["Target"].get("RetryPolicy") or {})},
    }


DATES = ("StartDate", "EndDate")
RETRIES = {"MaximumEventAgeInSeconds": 86400, "MaximumRetryAttempts": 185}
LISTED = ("Arn", "CreationDate", "GroupName", "LastModificationDate", "Name", "State", "Target")


def _list_page(moto: Callable[..., str], response: EventBridgeSchedulerResponse) -> str:
    """Reduce a list's schedules to their listed fields, fewer than those of GetSchedule."""
    page = json.loads(moto(response))
    page["Schedules"] = [{key: schedule[key] for key in LISTED} for schedule in page["Schedules"]]
    return json.dumps(page)


def install(world: World) -> None:
    schedules = Schedules(world)
    add_backend(world, EventBridgeSchedulerResponse, schedules)
    wrap(EventBridgeSchedulerResponse, "list_schedules", _list_page)
    world.schedule_every(TICK_S, schedules.tick)
