"""What Ansible's connection makes of an answer of SSM, whose commands run here in sh, as on a builder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

INTERN = sys.intern

from ansible.errors import AnsibleError  # noqa: E402
from ansible.playbook.play_context import PlayContext  # noqa: E402
from ansible.plugins.loader import connection_loader  # noqa: E402

# Ansible puts a class of its own there, over which torch's compiler, imported later in this process, stumbles.
sys.intern = INTERN

PLUGINS = Path(__file__).parents[2] / "playbooks/plugins/connection"


class Ssm:
    """Runs a command at once and keeps so many characters of what it prints."""

    class exceptions:
        InvocationDoesNotExist = KeyError

    def __init__(self, kept_characters: int) -> None:
        self.kept_characters = kept_characters

    def send_command(self, **given: Any) -> dict[str, Any]:
        self.done = subprocess.run(["sh", "-c", *given["Parameters"]["commands"]], capture_output=True, text=True)
        return {"Command": {"CommandId": "one"}}

    def get_command_invocation(self, **given: Any) -> dict[str, Any]:
        out = self.done.stdout
        return {
            "Status": "Failed" if self.done.returncode else "Success",
            "ResponseCode": self.done.returncode,
            "StandardOutputContent": out[: self.kept_characters],
            "StandardErrorContent": self.done.stderr,
        }


def connection(kept_characters: int) -> Any:
    connection_loader.add_directory(str(PLUGINS))
    made = connection_loader.get("ssm_command", PlayContext(), "/dev/null")
    made.set_options(direct={"instance": "i-1", "region": "us-east-1", "bucket": "b", "prefix": "p/", "timeout": 60})
    made._ssm, made._connected = Ssm(kept_characters), True
    return made


def test_a_command_answers_with_its_own_code_output_and_errors_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ssm = connection(24_000)
    assert ssm.exec_command("echo said; echo trouble >&2; exit 3") == (3, b"said\n", b"trouble\n")
    assert ssm.exec_command("printf %s 'no end of line'; umask") == (0, b"no end of line0022\n", b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kept_characters", [0, 9_000])
def test_an_answer_that_was_cut_or_lost_is_refused_and_never_read(kept_characters: int) -> None:
    with pytest.raises(AnsibleError, match=f"did not come whole.*{kept_characters} characters without an end.*cure: "):
        connection(kept_characters).exec_command("head -c 9500 /dev/zero | tr '\\0' x")


@pytest.mark.parametrize("region", ["us-east-1", "us-west-2", "eu-south-2"])
def test_a_builder_fetches_and_brings_by_the_endpoint_of_its_own_region(
    monkeypatch: pytest.MonkeyPatch, region: str
) -> None:
    """The state bucket is minutes old at the first bake: the global endpoint redirects then, or refuses for ever."""
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    made = connection(24_000)
    made.set_options(direct={"instance": "i-1", "region": region, "bucket": "state", "prefix": "p/", "timeout": 60})
    made._connected = False
    made._connect()
    made._ssm = Ssm(24_000)
    for operation in ("put_object", "get_object"):
        made._on_instance("pass", operation, "k", "/a")
        assert f" https://state.s3.{region}.amazonaws.com/k?" in made._ssm.done.args[-1].replace("'", "")
