"""An account whose clients are botocore's own and have no network: AWS's model judges each request and each answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from botocore import xform_name
from botocore.awsrequest import AWSResponse
from botocore.validate import ParamValidator

from infra.aws.account import Account

REGION, OWNER = "us-east-1", "123456789012"
READS = ("describe_", "list_", "get_", "head_")
TRAIN, OTHER = {"bivouac:campaign": "train"}, {"bivouac:campaign": "train-2"}
"""Tags of the campaign, and of another whose name begins alike."""


@dataclass(frozen=True)
class Refused:
    """An answer of AWS that is an error."""

    code: str
    status: int = 400


Answer = Mapping[str, Any] | Refused | Exception | Callable[[dict[str, Any]], Any]


class ByModel(Account):
    """`answers`: `service.operation` -> answer, or a function of the request; an exception is raised. Of a listing the
    first page is empty, and each further one has a single item. Changes are answered without being told."""

    def __init__(self, answers: Mapping[str, Answer] | None = None) -> None:
        self.region = REGION
        self.answers = dict(answers or {})
        self.calls: list[tuple[str, dict[str, Any]]] = []
        """All requests, each listing once."""

    @property
    def changes(self) -> list[tuple[str, dict[str, Any]]]:
        return [call for call in self.calls if not call[0].partition(".")[2].startswith(READS)]

    def identity(self) -> dict[str, str]:
        return {"Account": OWNER, "Arn": f"arn:aws:iam::{OWNER}:user/ada"}

    def client(self, service: str) -> Any:
        client = _client(service)
        _asks[service] = self
        return client

    def answer(self, service: str, client: Any, model: Any, asked: dict[str, Any]) -> tuple[AWSResponse, Any]:
        method = xform_name(model.name)
        paging = _paging(client, method, model)
        start = next((asked[key] for key in paging["input_token"] if key in asked), "0")
        request = {key: value for key, value in asked.items() if key not in paging["input_token"]}
        told = self.answers.get(f"{service}.{method}")
        if start == "0":
            self.calls.append((f"{service}.{method}", request))
        if told is None:
            assert not method.startswith(READS), f"no answer to {service}.{method}"
            told = {}
        answer = told(request) if callable(told) else told
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Refused):
            error = {"Error": {"Code": answer.code, "Message": "no"}}
            return _http(answer.status), error | {"ResponseMetadata": {"HTTPStatusCode": answer.status}}
        if not any(key.endswith(("Ids", "Names", "Arns")) for key in request):
            answer = _page(answer, int(start), paging)
        assert model.output_shape is None or not _wrong(answer, model.output_shape)
        return _http(200), answer


_asks: dict[str, ByModel] = {}
"""Service -> the account that its one client answers for; clients take long to make."""


@cache
def _real() -> Account:
    return Account(REGION)


@cache
def _client(service: str) -> Any:
    client = _real().client(service)

    def keep(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        context["asked"] = dict(params)

    def answer(model: Any, context: dict[str, Any], **_: Any) -> Any:
        return _asks[service].answer(service, client, model, context["asked"])

    client.meta.events.register_last("before-parameter-build.*.*", keep)
    client.meta.events.register("before-call.*.*", answer)
    return client


def _wrong(answer: Mapping[str, Any], shape: Any) -> list[str]:
    """Return unknown fields and wrong types. A test gives the fields that it needs; AWS's lists may be empty whatever
    its model says."""
    report = ParamValidator().validate(answer, shape).generate_report()
    return [line for line in report.splitlines() if not line.startswith(("Missing required", "Invalid length"))]


def _http(status: int) -> AWSResponse:
    return AWSResponse(None, status, {}, None)


def _paging(client: Any, method: str, model: Any) -> dict[str, Any]:
    """Return tokens, lists and the flag of a listing with pages, as botocore's paginators describe them."""
    if client.can_paginate(method):
        paging = client.get_paginator(method)._pagination_cfg
    elif model.output_shape is not None and "NextToken" in model.output_shape.members:
        lists = [name for name, shape in model.output_shape.members.items() if shape.type_name == "list"]
        paging = {"input_token": "NextToken", "output_token": "NextToken", "result_key": lists}
    else:
        paging = {"input_token": [], "output_token": [], "result_key": []}
    several = {key: [value] if isinstance(value, str) else value for key, value in paging.items()}
    return {"more_results": [], **several}


def _page(whole: Mapping[str, Any], start: int, paging: Mapping[str, Any]) -> dict[str, Any]:
    """Return the page at `start`: nothing at 0, the first item at 1."""
    lists = [key for key in paging["result_key"] if key in whole]
    cut = {key: list(whole[key])[start - 1 : start] if start else [] for key in lists}
    last = start >= max((len(whole[key]) for key in lists), default=0)
    tokens = {} if last else dict.fromkeys(paging["output_token"], str(start + 1))
    flags = dict.fromkeys(paging["more_results"], not last)
    return {**whole, **cut, **tokens, **flags}


def pairs(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags in the spelling of most services."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]
