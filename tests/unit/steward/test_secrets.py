"""A job's secrets are fetched into its pod's memory, or refused in words that hold no value."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, CredentialRetrievalError

from infra.errors import TemporaryError
from infra.spec.secrets import SecretSources
from infra.steward import secrets
from infra.steward.secrets import SecretRefused, fetch_all, main
from tests.tables import Table
from trainer.contract import ExitCode, Termination

TABLE = Table(__file__)

VALUE = "hunter22-and-more"
WHOLE = json.dumps({"token": VALUE, "port": 54321, "flag": True, "deep": {"token": VALUE}, "short": "abc"})


def refusal(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": f"no {VALUE}"}}, "GetSecretValue")


class Keeper:
    """Secrets Manager and Systems Manager of one region; `troubles` come first, one for each call, None for none."""

    region = "eu-west-1"

    def __init__(self, *troubles: Exception | None) -> None:
        self.troubles, self.calls = list(troubles), list[dict[str, Any]]()

    def client(self, service: str) -> Keeper:
        assert service in ("secretsmanager", "ssm")
        return self

    def get_secret_value(self, **asked: Any) -> dict[str, Any]:
        self._trouble(asked)
        known: dict[str, dict[str, Any]] = {
            "team/all": {"SecretString": WHOLE}, "plain": {"SecretString": VALUE}, "binary": {"SecretBinary": b"x"},
            "short": {"SecretString": "abc"}, "zero": {"SecretString": f"a\0{VALUE}"},
        }  # fmt: skip
        if asked["SecretId"] not in known:
            raise refusal("ResourceNotFoundException")
        return known[asked["SecretId"]]

    def get_parameter(self, **asked: Any) -> dict[str, Any]:
        self._trouble(asked)
        return {"Parameter": {"Value": f"{asked['Name']} {VALUE}"}}

    def _trouble(self, asked: dict[str, Any]) -> None:
        self.calls.append(asked)
        if self.troubles and (trouble := self.troubles.pop(0)) is not None:
            raise trouble


def sources(**given: dict[str, str]) -> SecretSources:
    return SecretSources.model_validate({"region": "eu-west-1", "secrets": given})


def fetch(keeper: Keeper, **given: dict[str, str]) -> tuple[dict[str, str], list[float]]:
    pauses = list[float]()
    return fetch_all(sources(**given), lambda: keeper, pauses.append), pauses  # type: ignore[arg-type,return-value]


def test_a_value_is_a_whole_secret_a_member_of_it_or_a_parameter() -> None:
    keeper = Keeper()
    values, pauses = fetch(
        keeper,
        PLAIN={"secret": "plain"},
        TOKEN={"secret": "team/all", "key": "token"},
        PORT={"secret": "team/all", "key": "port"},
        PARAMETER={"parameter": "/team/key"},
    )
    assert values == {"PLAIN": VALUE, "TOKEN": VALUE, "PORT": "54321", "PARAMETER": f"/team/key {VALUE}"}
    assert pauses == []
    assert keeper.calls == [
        {"SecretId": "plain"}, {"SecretId": "team/all"}, {"Name": "/team/key", "WithDecryption": True}
    ], "each is asked for once"  # fmt: skip


@TABLE.cases
def test_what_cannot_be_a_secret_is_refused_by_its_name_and_without_its_value(
    source: dict[str, str], words: str
) -> None:
    with pytest.raises(SecretRefused) as refused:
        fetch(Keeper(), FINE={"secret": "plain"}, WRONG=source, GONE={"secret": "gone"})
    said = str(refused.value)
    assert said.startswith(f"WRONG: secret {source['secret']} ") and words in said
    assert "GONE: secret gone" in said, "all that is wrong, at once"
    assert VALUE not in said and "abc" not in said and "FINE" not in said


@pytest.mark.parametrize("code", ["AccessDeniedException", "DecryptionFailure", "ParameterNotFound"])
def test_a_denial_is_final(code: str) -> None:
    keeper = Keeper(refusal(code))
    with pytest.raises(SecretRefused, match=f"secret plain in eu-west-1: {code}"):
        fetch(keeper, TOKEN={"secret": "plain"})
    assert len(keeper.calls) == 1


@pytest.mark.parametrize(
    "trouble",
    [
        refusal("ThrottlingException"),
        refusal("InternalServiceError"),
        refusal("InternalServerError"),
        refusal("ExpiredTokenException"),
        CredentialRetrievalError(provider="container", error_msg="connection refused"),
    ],
    ids=["busy", "failed", "failed too", "expired", "no role yet"],
)
def test_what_may_pass_is_tried_again_and_not_for_ever(trouble: Exception) -> None:
    values, pauses = fetch(Keeper(trouble, trouble), TOKEN={"secret": "plain"})
    assert values == {"TOKEN": VALUE}
    assert len(pauses) == 2 and 0.5 <= pauses[0] <= 1.5 and 1 <= pauses[1] <= 3, "not all pods at once"
    keeper = Keeper(*[trouble] * 100)
    with pytest.raises(TemporaryError) as away:
        fetch(keeper, TOKEN={"secret": "plain"})
    assert len(keeper.calls) == 9 and VALUE not in str(away.value)


def test_what_was_read_is_not_asked_for_again() -> None:
    keeper = Keeper(None, None, refusal("ThrottlingException"))
    values, _ = fetch(keeper, A={"secret": "plain"}, B={"parameter": "/b"}, C={"parameter": "/c"})
    assert set(values) == {"A", "B", "C"}
    assert [call.get("SecretId") or call["Name"] for call in keeper.calls] == ["plain", "/b", "/c", "/c"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.setenv("BIVOUAC_ATTEMPT", "3")
    monkeypatch.setenv("BIVOUAC_NODE_NAME", "node-1")
    monkeypatch.setenv("BIVOUAC_TERMINATION_LOG", str(tmp_path / "termination"))
    monkeypatch.setattr(secrets.time, "sleep", lambda seconds: None)  # type: ignore[attr-defined]

    def run(keeper: Keeper, text: str | None = None, **given: dict[str, str]) -> int:
        monkeypatch.setattr(secrets, "Account", lambda region, tries: keeper)
        file = tmp_path / "secrets.json"
        file.write_text(text or sources(**given).model_dump_json(exclude_none=True))
        return main(tmp_path, tmp_path / "values.json")

    return run


def test_the_values_are_in_one_file_for_root_and_nowhere_else(
    run: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(Keeper(), TOKEN={"secret": "plain"}, OTHER={"parameter": "/x"}) == 0
    file = tmp_path / "values.json"
    assert json.loads(file.read_text()) == {"TOKEN": VALUE, "OTHER": f"/x {VALUE}"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    output = capfd.readouterr()
    assert output.out == "read OTHER, TOKEN\n" and output.err == ""
    assert not (tmp_path / "termination").exists()
    assert run(Keeper(), TOKEN={"secret": "plain"}) == 0
    assert json.loads(file.read_text()) == {"TOKEN": VALUE}, "a second start writes anew"


class Parser(Exception):
    """An error that quotes what it could not read."""


@pytest.mark.parametrize(
    ("trouble", "code", "reason", "words"),
    [
        (refusal("AccessDeniedException"), ExitCode.USER, "user", "TOKEN: secret plain in eu-west-1: AccessDenied"),
        (refusal("ThrottlingException"), ExitCode.INTERNAL, "internal", "ThrottlingException"),
        (Parser(f"cannot read {VALUE}"), ExitCode.INTERNAL, "internal", "cannot be read: Parser"),
    ],
    ids=["denied", "busy", "unknown"],
)
def test_a_failure_ends_by_the_contract_with_words_and_no_value(
    trouble: Exception, code: ExitCode, reason: str, words: str, run: Callable[..., int], tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert run(Keeper(*[trouble] * 100), TOKEN={"secret": "plain"}) == code
    end = Termination.model_validate_json((tmp_path / "termination").read_text())
    assert (end.exit_code, end.reason, end.attempt, end.node) == (code, reason, 3, "node-1")
    assert (end.step, end.committed_step) == (0, -1)
    assert words in end.detail
    output = capfd.readouterr()
    assert VALUE not in end.detail + output.out + output.err
    assert not (tmp_path / "values.json").exists()


def test_values_of_a_clusters_secrets_come_from_the_kubelet_and_aws_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Any:
        raise AssertionError("AWS was asked")

    monkeypatch.setattr(secrets, "Account", refuse)
    (tmp_path / "secrets.json").write_text(sources(TOKEN={"secret": "hugging-face", "key": "token"}).model_dump_json())
    monkeypatch.setenv("BIVOUAC_SECRET_TOKEN", VALUE)
    assert main(tmp_path, tmp_path / "values.json") == ExitCode.DONE
    assert json.loads((tmp_path / "values.json").read_text()) == {"TOKEN": VALUE}
