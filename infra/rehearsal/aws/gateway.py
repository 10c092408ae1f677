"""The entry of the emulated AWS: it identifies a request, applies faults and IAM, and passes it to its service."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import socket
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NoReturn

from moto.core.model import OperationModel, ServiceModel
from moto.core.parse import PROTOCOL_PARSERS
from moto.core.request import Request, determine_request_protocol
from moto.core.routing import NotFound, get_service_router
from moto.core.serialize import XFormedAttributePicker, get_serializer_class
from moto.core.utils import get_service_model
from moto.moto_server.werkzeug_app import BackendRequest, DomainDispatcherApplication, create_backend_app
from werkzeug.wrappers import Response

from infra.rehearsal.aws.answers import HeldAnswer, RequestRefused, rewind
from infra.rehearsal.aws.iam.access import authenticate, authorise, authorise_assume_role, caller
from infra.rehearsal.aws.iam.arns import needs
from infra.rehearsal.aws.iam.signing import Message, Signature, read_signature
from infra.rehearsal.aws.operations import AwsError
from infra.rehearsal.aws.strict.admission import Admission, ServiceCall
from infra.rehearsal.aws.world import Call, FaultAnswer, World

log = logging.getLogger(__name__)

Environ = dict[str, Any]
StartResponse = Callable[..., Any]

MODELS = {
    "tagging": "resourcegroupstaggingapi",
    "monitoring": "cloudwatch",
    "elasticloadbalancing": "elbv2",
    "email": "ses",
    "servicequotas": "service-quotas",
}
"""Signing names that differ from the service model's name."""
WITH_BODY = {"DeleteObjects", "CreateBucket", "PutBucketTagging"}
"""S3 operations whose body is looked at; other bodies are streamed through unread."""
HOSTS = 1000


class Gateway:
    """A WSGI application around moto's own."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.moto = DomainDispatcherApplication(create_backend_app)
        # To match a host name, moto lists its own folders twice per request.
        self.moto.get_backend_for_host = lru_cache(HOSTS)(self.moto.get_backend_for_host)  # type: ignore[method-assign]
        self.door = Admission(world)
        self.past: dict[str, tuple[float, HeldAnswer]] = {}
        """Request -> time and answer, for faults of the effect `stale`."""

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        folder, _, name = path.rpartition("/")
        if path in self.world.routes:
            return self._site(path, environ.get("QUERY_STRING", ""), environ, start_response)
        if f"{folder}/" in self.world.routes:
            return self._site(f"{folder}/", name, environ, start_response)
        if path.startswith(("/moto-api", "/_site")):
            return Response("not found", 404)(environ, start_response)
        return self._aws(environ, start_response)

    def _site(self, path: str, argument: str, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        body = read_body(environ)
        try:
            status, document = self.world.routes[path](argument, body)
        except Exception:
            log.exception("%s failed", path)
            status, document = 500, {"message": "the emulated AWS failed: see its log"}
        response = Response(json.dumps(document), status, mimetype="application/json")
        return response(environ, start_response)

    def _aws(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        signature, operation, model, fault = None, None, None, None
        params: dict[str, Any] = {}
        try:
            message = message_of(environ)
            signature = read_signature(message)
            if signature is None:
                raise AwsError("MissingAuthenticationToken", "the request is not signed")
            if signature.service != "s3":
                body = read_body(environ)
                message = message_of(environ, hashlib.sha256(body).hexdigest())
            model = service_model(signature.service)
            operation, params = identify(environ, model)
            fault = self._fault(signature, operation, environ)
            with self.world.lock:
                self._admit(message, signature, operation, params)
            call = ServiceCall(signature.service, operation, model, params)
            self.door.admit(call)
        except AwsError as error:
            return refusal(environ, model, operation, error)(environ, start_response)
        except ConnectionResetError:
            raise
        except Exception:
            log.exception("%s %s could not be judged", environ["REQUEST_METHOD"], environ["PATH_INFO"])
            return Response(BROKEN, 500)(environ, start_response)
        finally:
            rewind(environ)
        try:
            return self._answer(call, fault, environ, start_response)
        except ConnectionResetError:
            raise
        except Exception:
            log.exception("%s %s could not be answered", call.service, call.operation)
            internal_failure = RequestRefused("InternalFailure", "the emulated AWS failed: see its log", 500)
            return refusal(environ, model, operation, internal_failure)(environ, start_response)

    def _answer(
        self, call: ServiceCall, fault: FaultAnswer | None, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Serve an admitted request, with what its fault does to the answer."""
        service, operation = call.service, call.operation
        serve = self.door.wrap_service(call, self._serve)
        if fault is None:
            return serve(service, environ, start_response)
        if fault.effect == "stale":
            question = json.dumps([service, operation, call.params], default=str, sort_keys=True)
            answer = self._lagging(question, fault.lag_s, lambda: HeldAnswer.collect(serve, service, environ))
        else:
            answer = HeldAnswer.collect(serve, service, environ)
        if fault.effect == "drop-after":
            return hang_up(environ)
        if fault.effect == "refuse-after":
            error = RequestRefused(fault.code, fault.message, fault.status)
            return refusal(environ, call.model, operation, error)(environ, start_response)
        start_response(answer.status, answer.headers)
        return [answer.body[: fault.keep_bytes] if fault.effect == "truncate" else answer.body]

    def _lagging(self, question: str, lag_s: float, ask: Callable[[], HeldAnswer]) -> HeldAnswer:
        """Return the earlier answer to the same request if it is younger than `lag_s`; errors are not stored."""
        documents = self.past.get(question)
        if documents is not None and time.monotonic() - documents[0] < lag_s:
            return documents[1]
        answer = ask()
        if answer.ok:
            self.past[question] = (time.monotonic(), answer)
        return answer

    def _fault(self, signature: Signature, operation: str, environ: Environ) -> FaultAnswer | None:
        """Return the call's fault after its delay; `refuse` raises, `drop` closes the connection."""
        agent = environ.get("HTTP_USER_AGENT", "")
        call = Call(signature.service, operation, signature.access_key, environ["PATH_INFO"], agent)
        fault = next((fault for hook in self.world.faults if (fault := hook(call))), None)
        if fault is not None:
            time.sleep(fault.delay_s)
            if fault.effect == "refuse":
                raise RequestRefused(fault.code, fault.message, fault.status)
            if fault.effect == "drop":
                hang_up(environ)
        return fault

    def _admit(self, message: Message, signature: Signature, operation: str, params: dict[str, Any]) -> None:
        principal = authenticate(self.world, message, signature)
        caller.set(principal)
        owner = message.headers.get("x-amz-expected-bucket-owner")
        if owner not in (None, self.world.account):
            raise AwsError("AccessDenied", f"the bucket is not owned by {owner}")
        if (signature.service, operation) == ("sts", "AssumeRole"):
            authorise_assume_role(self.world, principal, params["RoleArn"], params)
            return
        for need in needs(self.world, signature.service, operation, params):
            authorise(self.world, principal, need.action, need.resources, need.context)

    def _moto(self, service: str, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if service == "s3":  # objects are large, and nothing but requests removes them
            return self.moto(environ, start_response)
        # Without the lock, moto iterates over a dictionary while the scheduler removes from it, and answers 500.
        with self.world.lock:
            return self.moto(environ, start_response)

    def _serve(self, service: str, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        service_class = self.world.services.get(service)
        try:
            if service_class is None:
                return self._moto(service, environ, start_response)
            status, headers, body = service_class.dispatch(BackendRequest(environ))
        except NotImplementedError as error:
            log.warning("%s", error)
            status, headers, body = 501, {}, f"the emulated AWS lacks this: {error}"
        except Exception:
            log.exception("%s %s failed", service, environ.get("PATH_INFO"))
            status, headers, body = 500, {}, BROKEN
        response = Response(body, status, {k: str(v) for k, v in headers.items() if k.lower() != "status"})
        return response(environ, start_response)


def hang_up(environ: Environ) -> NoReturn:
    """Close the connection without an answer."""
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionResetError("an injected fault")


def read_body(environ: Environ) -> bytes:
    """Return the whole body; `rewind` makes it readable again."""
    length = environ.get("CONTENT_LENGTH")
    has_end = bool(length) or environ.get("wsgi.input_terminated")
    body = environ["wsgi.input"].read(*([int(length)] if length else [])) if has_end else b""
    environ["bivouac.body"] = body
    environ["wsgi.input"] = io.BytesIO(body)
    return bytes(body)


def message_of(environ: Environ, body_hash: str | None = None) -> Message:
    raw = environ.get("RAW_URI") or environ.get("REQUEST_URI") or environ["PATH_INFO"]
    path, _, query = raw.partition("?")
    headers = {key[5:].replace("_", "-").lower(): value for key, value in environ.items() if key.startswith("HTTP_")}
    headers |= {
        key.replace("_", "-").lower(): environ[key] for key in ("CONTENT_TYPE", "CONTENT_LENGTH") if key in environ
    }
    body_hash = body_hash or headers.get("x-amz-content-sha256", "")
    return Message(environ["REQUEST_METHOD"], path, query, headers, body_hash)


@lru_cache
def service_model(service: str) -> ServiceModel:
    """Return the model. Raises AwsError UnknownService for a signing name without one."""
    try:
        return get_service_model(MODELS.get(service, service))
    except Exception as error:
        raise AwsError("UnknownService", f"the emulated AWS knows no service {service!r}") from error


def identify(environ: Environ, model: ServiceModel) -> tuple[str, dict[str, Any]]:
    """Return the operation and its input, with the names of the AWS model."""
    request: Request = BackendRequest(environ)
    try:
        operation, labels = get_service_router(model.service_name).match(request)
    except (NotFound, NotImplementedError) as error:
        location = f"{request.method} {request.path}"
        raise AwsError("UnknownOperationException", f"{model.service_name} has no operation at {location}") from error
    if model.service_name == "s3" and operation.name not in WITH_BODY:
        # All members except the body: reading a checkpoint here would hold it in memory twice.
        members = operation.input_shape.members if operation.input_shape else {}
        places = {shape.serialization.get("name", name): name for name, shape in members.items()}
        header_names = {key: name for key, name in places.items() if key.startswith("x-amz-")}
        headers = {name: request.headers[key] for key, name in header_names.items() if key in request.headers}
        query = {places[key]: value for key, value in request.args.items() if key in places}
        return operation.name, {**headers, **query, **{places.get(key, key): value for key, value in labels.items()}}
    if "bivouac.body" not in environ:
        read_body(environ)
        request = BackendRequest(environ)
    parser = PROTOCOL_PARSERS[determine_request_protocol(model, request.content_type)](operation)
    url = parser.parse(
        {
            "method": request.method,
            "values": request.values,
            "headers": request.headers,
            "body": request.data,
            "url_path": request.path,
            "url_params": labels,
        }
    )
    return operation.name, dict(url)


BROKEN = json.dumps({"message": "the emulated AWS failed: see its log"})
DENIED = {"json": "AccessDeniedException", "rest-json": "AccessDeniedException", "ec2": "UnauthorizedOperation"}
"""Protocol -> its services' code for AccessDenied."""


def refusal(environ: Environ, model: ServiceModel | None, operation: str | None, error: AwsError) -> Response:
    """Return the error in the service's own protocol."""
    if model is None:
        return Response(f"<Error><Code>{error.code}</Code><Message>{error.message}</Message></Error>", 403)
    request = BackendRequest(environ)
    protocol = determine_request_protocol(model, request.content_type)
    if error.code == "AccessDenied":
        error = AwsError(DENIED.get(protocol, error.code), error.message)
    serializer = get_serializer_class(model.service_name, protocol)(
        operation_model=model.operation_model(operation) if operation else OperationModel({}, model),
        pretty_print=False,
        value_picker=XFormedAttributePicker(),
    )
    answer = serializer.serialize(error)
    status = error.status if isinstance(error, RequestRefused) else 403
    log.info("refused %s %s: %s %s", model.service_name, operation, error.code, error.message)
    return Response("" if request.method == "HEAD" else answer["body"], status, dict(answer["headers"]))
