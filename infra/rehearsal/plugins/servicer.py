"""gRPC service of a provider package: pulumirpc.ResourceProvider, called by the Pulumi engine."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import grpc
from google.protobuf import any_pb2, empty_pb2
from google.protobuf.struct_pb2 import Struct
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc, status_pb2

from infra.errors import BivouacError
from infra.rehearsal.plugins.package import (
    InitFailed,
    OperationFailed,
    Package,
    PropertyChange,
    PropertyFailure,
    Request,
    ResourceGone,
)
from infra.rehearsal.plugins.wire import decode, encode

log = logging.getLogger(__name__)
Method = TypeVar("Method", bound=Callable[..., Any])
_KINDS = provider_pb2.PropertyDiff.Kind


def _report_errors(method: Method) -> Method:
    """Turn errors into gRPC statuses, which the engine prints beside the resource."""

    @functools.wraps(method)
    def answer(self: Servicer, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return method(self, request, context)
        except InitFailed as error:
            context.set_trailing_metadata((("grpc-status-details-bin", _init_failed(error)),))
            context.abort(grpc.StatusCode.UNKNOWN, error.reason)
        except (OperationFailed, BivouacError) as error:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        except Exception as error:
            log.exception("%s failed", method.__name__)
            context.abort(grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}")

    return answer  # type: ignore[return-value]


class Servicer(provider_pb2_grpc.ResourceProviderServicer):
    def __init__(self, package: Package) -> None:
        self.package = package

    def GetPluginInfo(self, request: empty_pb2.Empty, context: grpc.ServicerContext) -> plugin_pb2.PluginInfo:
        return plugin_pb2.PluginInfo(version=self.package.version)

    @_report_errors
    def GetSchema(
        self, request: provider_pb2.GetSchemaRequest, context: grpc.ServicerContext
    ) -> provider_pb2.GetSchemaResponse:
        return provider_pb2.GetSchemaResponse(schema=json.dumps(self.package.schema()))

    @_report_errors
    def CheckConfig(
        self, request: provider_pb2.CheckRequest, context: grpc.ServicerContext
    ) -> provider_pb2.CheckResponse:
        return _checked(request.news, self.package.check_config(decode(request.news)))

    @_report_errors
    def DiffConfig(self, request: provider_pb2.DiffRequest, context: grpc.ServicerContext) -> provider_pb2.DiffResponse:
        return _diff(self.package.diff_config(decode(request.olds), decode(request.news)), False)

    @_report_errors
    def Configure(
        self, request: provider_pb2.ConfigureRequest, context: grpc.ServicerContext
    ) -> provider_pb2.ConfigureResponse:
        self.package.configure(decode(request.args))
        # Without acceptSecrets the engine unwraps secrets and marks the same properties of our answer.
        return provider_pb2.ConfigureResponse(supportsPreview=True)

    @_report_errors
    def Check(self, request: provider_pb2.CheckRequest, context: grpc.ServicerContext) -> provider_pb2.CheckResponse:
        naming = {
            "random_seed": request.randomSeed,
            "proposed_name": request.autonaming.proposed_name if request.HasField("autonaming") else "",
        }
        inputs, failures = self.package.check(_request(request, request.news, request.olds, **naming))
        return _checked(encode(inputs), failures)

    @_report_errors
    def Diff(self, request: provider_pb2.DiffRequest, context: grpc.ServicerContext) -> provider_pb2.DiffResponse:
        return _diff(*self.package.diff(_request(request, request.news, request.old_inputs, request.olds)))

    @_report_errors
    def Create(self, request: provider_pb2.CreateRequest, context: grpc.ServicerContext) -> provider_pb2.CreateResponse:
        limits = {"timeout_s": request.timeout, "preview": request.preview}
        resource_id, state = self.package.create(_request(request, request.properties, **limits))
        return provider_pb2.CreateResponse(id=resource_id, properties=encode(state))

    @_report_errors
    def Read(self, request: provider_pb2.ReadRequest, context: grpc.ServicerContext) -> provider_pb2.ReadResponse:
        try:
            resource_id, inputs, state = self.package.read(
                _request(request, request.inputs, request.inputs, request.properties)
            )
        except ResourceGone:
            return provider_pb2.ReadResponse(id="")
        return provider_pb2.ReadResponse(id=resource_id, inputs=encode(inputs), properties=encode(state))

    @_report_errors
    def Update(self, request: provider_pb2.UpdateRequest, context: grpc.ServicerContext) -> provider_pb2.UpdateResponse:
        limits = {"timeout_s": request.timeout, "preview": request.preview}
        state = self.package.update(_request(request, request.news, request.old_inputs, request.olds, **limits))
        return provider_pb2.UpdateResponse(properties=encode(state))

    @_report_errors
    def Delete(self, request: provider_pb2.DeleteRequest, context: grpc.ServicerContext) -> empty_pb2.Empty:
        values = request.old_inputs, request.old_inputs, request.properties
        self.package.delete(_request(request, *values, timeout_s=request.timeout))
        return empty_pb2.Empty()

    @_report_errors
    def Invoke(self, request: provider_pb2.InvokeRequest, context: grpc.ServicerContext) -> provider_pb2.InvokeResponse:
        answer = self.package.invoke(request.tok, decode(request.args))
        return provider_pb2.InvokeResponse(**{"return": encode(answer)})

    def Cancel(self, request: empty_pb2.Empty, context: grpc.ServicerContext) -> empty_pb2.Empty:
        self.package.cancel()
        return empty_pb2.Empty()


def _request(
    message: Any, inputs: Struct, old_inputs: Struct | None = None, state: Struct | None = None, **fields: Any
) -> Request:
    """Return the request in plain Python; a URN is `urn:pulumi:stack::project::parent$type::name`."""
    parts = message.urn.split("::")
    return Request(
        urn=message.urn,
        type=parts[2].split("$")[-1],
        name="::".join(parts[3:]),
        id=getattr(message, "id", ""),
        inputs=decode(inputs),
        old_inputs={} if old_inputs is None else decode(old_inputs),
        state={} if state is None else decode(state),
        **fields,
    )


def _checked(inputs: Struct, failures: Sequence[PropertyFailure]) -> provider_pb2.CheckResponse:
    rows = [provider_pb2.CheckFailure(property=failure.property, reason=failure.reason) for failure in failures]
    return provider_pb2.CheckResponse(inputs=inputs, failures=rows)


def _diff(changes: Sequence[PropertyChange], delete_first: bool) -> provider_pb2.DiffResponse:
    if not changes:
        return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_NONE)
    detail = {
        change.path: provider_pb2.PropertyDiff(
            kind=_KINDS.Value(change.kind.upper() + ("_REPLACE" if change.replaces else "")), inputDiff=True
        )
        for change in changes
    }
    replaces = [change.path for change in changes if change.replaces]
    return provider_pb2.DiffResponse(
        changes=provider_pb2.DiffResponse.DIFF_SOME,
        replaces=replaces,
        deleteBeforeReplace=bool(replaces) and delete_first,
        diffs=sorted({change.path.split(".")[0].split("[")[0] for change in changes}),
        detailedDiff=detail,
        hasDetailedDiff=True,
    )


def _init_failed(error: InitFailed) -> bytes:
    detail = any_pb2.Any()
    detail.Pack(
        provider_pb2.ErrorResourceInitFailed(
            id=error.resource_id, properties=encode(error.state), reasons=[error.reason], inputs=encode(error.inputs)
        )
    )
    status = status_pb2.Status(code=grpc.StatusCode.UNKNOWN.value[0], message=error.reason, details=[detail])
    return status.SerializeToString()
