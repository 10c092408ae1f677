"""The account's clients: where presigned addresses point, and what missing credentials are told as."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, EndpointConnectionError

from infra.aws.account import Account, explained
from infra.cli.prepare.addons import offers_of
from infra.cli.refusals import refusal
from infra.engine.failures import Cause, cause_of
from infra.errors import BivouacError, PermanentError, TemporaryError, UserError
from tests.serving import serve

REGIONS = ("us-east-1", "us-west-2", "eu-south-2")


@pytest.fixture(autouse=True)
def signed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("operation", ["get_object", "put_object", "upload_part"])
def test_a_presigned_address_names_the_endpoint_of_the_buckets_region(region: str, operation: str) -> None:
    bucket = f"bivouac-state-123456789012-{region}"
    where: dict[str, Any] = {"Bucket": bucket, "Key": "k"}
    where |= {"UploadId": "u", "PartNumber": 1} if operation == "upload_part" else {}
    for client in (Account(region).client("s3"), Account(region).lease_client(timedelta(seconds=30))):
        url = urlsplit(client.generate_presigned_url(operation, Params=where))
        assert (url.netloc, url.path) == (f"{bucket}.s3.{region}.amazonaws.com", "/k")
        assert f"%2F{region}%2Fs3%2Faws4_request" in url.query


@pytest.mark.parametrize("endpoint", ["http://10.77.0.2:5000", "http://localhost:5000"])
@pytest.mark.parametrize("bucket", ["bivouac-state-123456789012-us-west-2", "with.dots"])
def test_an_endpoint_of_ones_own_gets_its_buckets_in_the_path(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, bucket: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    client = Account("us-west-2").client("s3")
    assert client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "k"}).startswith(
        f"{endpoint}/{bucket}/k?"
    )


PROXY = b"<!DOCTYPE HTML>\n<html lang=en><title>502 Bad Gateway</title>"


@pytest.fixture
def proxy() -> Iterator[tuple[list[int], str]]:
    """The statuses with which each request is answered by a page, and the address; afterwards there is no volume."""
    statuses: list[int] = []

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status = statuses.pop(0) if statuses else 0
            body = PROXY if status else b"<DescribeVolumesResponse><volumeSet/></DescribeVolumesResponse>"
            self.send_response(status or 200)
            self.send_header("Content-Type", "text/html" if status else "text/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Answers)
    serve(server)
    yield statuses, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def _volumes(address: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", address)
        tries = Config(retries={"mode": "standard", "total_max_attempts": 2})
        return Account("us-west-2", tries).client("ec2").describe_volumes()["Volumes"]


def test_a_page_of_a_proxy_in_place_of_an_answer_is_asked_again(proxy: tuple[list[int], str]) -> None:
    statuses, address = proxy
    statuses.append(502)
    assert _volumes(address) == [] and statuses == []


def test_a_page_that_stays_is_a_failure_of_the_server(proxy: tuple[list[int], str]) -> None:
    statuses, address = proxy
    statuses += [502, 502]
    with pytest.raises(ClientError) as caught:
        _volumes(address)
    assert cause_of(str(caught.value)) is Cause.SERVER
    assert isinstance(explained(caught.value), TemporaryError)


@pytest.mark.parametrize("status", [200, 403])
def test_a_page_with_another_status_comes_from_somebody_else(proxy: tuple[list[int], str], status: int) -> None:
    statuses, address = proxy
    statuses.append(status)
    with pytest.raises(BotoCoreError, match=f"DescribeVolumes was answered with a web page and status {status}"):
        _volumes(address)


def _told(call: Callable[[], object]) -> tuple[int, str, str]:
    """Exit code, words and cure, as the command line tells what this raises."""
    with pytest.raises((BivouacError, BotoCoreError, ClientError)) as caught:
        call()
    told = refusal(caught.value)
    return told.exit_code, told.what, str(told.cure)


def _without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def _profile(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    _without(monkeypatch, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    (folder / "config").write_text(text)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    monkeypatch.setenv("HOME", str(folder))  # where a login's token would lie


SSO = """[profile mine]
sso_session = corp
sso_account_id = 123456789012
sso_role_name = training
[sso-session corp]
sso_start_url = https://corp.example/start
sso_region = us-east-1
"""
PROCESS = "[profile mine]\ncredential_process = false\n"


@pytest.mark.parametrize(
    ("absent", "config", "cure"),
    [
        (("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), None, "set AWS_PROFILE or AWS_ACCESS_KEY_ID and"),
        (("AWS_SECRET_ACCESS_KEY",), None, "set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ((), "[profile another]\n", "set AWS_PROFILE or"),
        ((), SSO, "aws sso login"),
        ((), PROCESS, "aws sso login"),
    ],
    ids=["none", "half", "no such profile", "login expired", "a program that fails"],
)
def test_missing_credentials_get_one_answer_from_every_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, absent: tuple[str, ...], config: str | None, cure: str
) -> None:
    """An address that nobody serves: with credentials all of these would speak of the network."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    if config is None:
        _without(monkeypatch, *absent)
    else:
        _profile(monkeypatch, tmp_path, config)
    told = _told(lambda: Account("us-east-1").identity())
    assert told[0] == 64 and cure in told[2]
    assert told == _told(lambda: offers_of(Account("us-east-1"), "1.36"))
    assert told == _told(lambda: Account("us-east-1").client("s3").list_buckets())


@pytest.mark.parametrize(
    ("token", "config", "ends"),
    [
        (None, None, False),
        ("FwoGZXIvYXdzEBY", None, True),
        (None, "[profile mine]\naws_access_key_id = A\naws_secret_access_key = s\naws_session_token = t\n", True),
        (None, "[profile mine]\ncredential_process = {program}\n", False),
    ],
    ids=["a user's key", "a session in the environment", "a copied session", "a program that renews"],
)
def test_only_a_session_that_nobody_renews_ends_by_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, token: str | None, config: str | None, ends: bool
) -> None:
    if token is not None:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    if config is not None:
        given = {"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "s", "SessionToken": "t",
                 "Expiration": "2126-11-23T00:00:00Z"}  # fmt: skip
        (tmp_path / "given.json").write_text(json.dumps(given))
        _profile(monkeypatch, tmp_path, config.format(program=f"cat {tmp_path}/given.json"))
    assert Account("us-east-1").ends_by_itself() is ends


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("UnrecognizedClientException", "The security token included in the request is invalid."),
        ("InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records."),
        ("AuthFailure", "AWS was not able to validate the provided access credentials"),
    ],
)
def test_credentials_that_a_service_does_not_take_are_the_users_to_renew(code: str, words: str) -> None:
    told = refusal(ClientError({"Error": {"Code": code, "Message": words}}, "Describe"))
    assert isinstance(told, UserError) and words in str(told.seen) and "aws sso login" in str(told.cure)


def test_a_network_that_fails_is_no_lack_of_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    unserved = EndpointConnectionError(endpoint_url="https://eks.us-east-1.amazonaws.com/")
    assert isinstance(refusal(unserved), TemporaryError)
    refused = refusal(ClientError({"Error": {"Code": "AuthFailure", "Message": "Not authorized for images"}}, "Run"))
    assert isinstance(refused, PermanentError)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("infra.aws.account._RETRIES", Config(retries={"total_max_attempts": 1}, connect_timeout=1))
    assert "network" in _told(lambda: Account("us-east-1").identity())[2]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("KMS.DisabledException", "arn:aws:kms:eu-north-1:123456789012:key/k is disabled."),
        (
            "AccessDenied",
            "User: arn:aws:sts::1:assumed-role/r/s is not authorized to perform: kms:GenerateDataKey on it",
        ),
        ("InvalidKMSKey.InvalidState", "The KMS key provided is in an incorrect state"),
    ],
)
def test_a_key_that_does_not_serve_is_named_as_the_cause(code: str, message: str) -> None:
    error = explained(ClientError({"Error": {"Code": code, "Message": message}}, "PutObject"))
    assert isinstance(error, UserError) and "KMS key" in error.what and "enable-key" in str(error.cure)


def test_a_denial_by_the_organization_sends_to_its_administrator_and_no_other_does() -> None:
    denied = "User: arn:aws:iam::1:user/a is not authorized to perform: fsx:CreateFileSystem with an explicit deny in a"
    cures = [
        str(explained(ClientError({"Error": {"Code": "AccessDeniedException", "Message": words}}, "C")).cure)
        for words in (f"{denied} service control policy", f"{denied}n identity-based policy")
    ]
    assert "organization" in cures[0] and "organization" not in cures[1]


def test_a_refusal_that_only_names_a_key_s_setting_is_no_matter_of_the_key() -> None:
    told = {"Error": {"Code": "AccessDenied", "Message": "not authorized to perform: s3:PutObject, kms:ViaService set"}}
    assert isinstance(explained(ClientError(told, "PutObject")), PermanentError)
