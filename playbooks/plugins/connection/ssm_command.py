"""Ansible connection by SSM SendCommand: no open port, no key pair, nothing to install on the controlling side.

Files and piped modules go through the state bucket by presigned URL, since a command's text is limited to about 100 kB.
So does long output: SSM keeps its first 24,000 characters (API reference of GetCommandInvocation), and a cut answer of
a module is useless.
"""

from __future__ import annotations

import shlex
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import boto3
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.connection import ConnectionBase

from infra.aws.account import s3_config

DOCUMENTATION = """
name: ssm_command
short_description: run tasks through SSM SendCommand
description: Runs each command with the document AWS-RunShellScript; files go through S3.
author: Bivouac
options:
  instance:
    description: Instance id.
    required: true
    vars: [{name: ssm_instance}]
  region:
    description: AWS region.
    required: true
    vars: [{name: ssm_region}]
  bucket:
    description: Bucket that files travel through.
    required: true
    vars: [{name: ssm_bucket}]
  prefix:
    description: Key prefix in that bucket; ends in a slash.
    required: true
    vars: [{name: ssm_prefix}]
  timeout:
    description: Seconds one command may take.
    type: int
    default: 1800
    vars: [{name: ssm_timeout}]
"""

_PATIENT = """
import http.client, sys, time, urllib.request
url, path = sys.argv[1:]
def patiently(given):
    pause = 0.25
    for left in range(6, -1, -1):
        try:
            return urllib.request.urlopen(given, timeout=60).read()
        except (OSError, http.client.HTTPException) as error:
            if not left or getattr(error, "code", 503) < 500:
                raise
        time.sleep(pause)
        pause *= 2
"""
"""Runs on the instance, which has no SDK. S3 may answer 503 SlowDown for a new prefix and then expects a repetition."""
_FETCH = _PATIENT + "open(path, 'wb').write(patiently(url))"
_SEND = (
    _PATIENT + "body = open(path, 'rb').read()\n"
    # urllib's default type is a form.
    "headers = {'Content-Type': 'application/octet-stream'}\n"
    "patiently(urllib.request.Request(url, data=body, headers=headers, method='PUT'))"
)
_SAID = "\nbivouac-stdout "
"""Ends every answer; `whole` follows, or the file on the instance with output that is too long for SSM."""
_WHOLE = "whole"
_SHORT_BYTES = 20_000
_ANSWERING = """out=$(mktemp) || exit 1
(
%s
) > "$out"
code=$?
kept=$out
if [ "$(wc -c < "$out")" -le %d ]; then cat "$out"; rm -f "$out"; kept=whole; fi
printf '\\nbivouac-stdout %%s\\n' "$kept"
exit $code
"""
"""Runs a command and appends whether its output is whole."""
_PENDING = ("Pending", "InProgress", "Delayed", "Cancelling")


class Connection(ConnectionBase):
    transport = "ssm_command"
    has_pipelining = True

    def _connect(self) -> Connection:
        if not self._connected:
            session = boto3.Session(region_name=self.get_option("region"))
            self._ssm = session.client("ssm")
            self._s3 = session.client("s3", config=s3_config())
            self._connected = True
        return self

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        if in_data:
            return self._with_input(cmd, in_data)
        return self._run(cmd)

    def _with_input(self, cmd: str, in_data: bytes) -> tuple[int, bytes, bytes]:
        """Run a command that fetches its standard input itself: a module costs one call instead of four."""
        bucket, key = self.get_option("bucket"), self._key("stdin")
        self._s3.put_object(Bucket=bucket, Key=key, Body=in_data)
        try:
            url = self._s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=600)
            fetch = shlex.join(["python3", "-c", _FETCH, url])
            return self._run(
                f'given=$(mktemp) && {fetch} "$given" && {{ {cmd} ; }} < "$given"; code=$?; rm -f "$given"; exit $code'
            )
        finally:
            self._s3.delete_object(Bucket=bucket, Key=key)

    def _run(self, cmd: str) -> tuple[int, bytes, bytes]:
        """Return exit code, whole output, and errors, of which SSM keeps 8,000 characters.

        Raises `AnsibleError` when the answer is cut or lost.
        """
        answer = self._invoke(_ANSWERING % (cmd, _SHORT_BYTES))
        code, error = answer["ResponseCode"], answer["StandardErrorContent"]
        out, _, kept = answer["StandardOutputContent"].rpartition(_SAID)
        kept = kept.strip()
        if kept == _WHOLE:
            return code, out.encode(), error.encode()
        if not kept.startswith("/"):
            raise AnsibleError(
                f"the answer of a command on {self.get_option('instance')} did not come whole (seen: exit code {code}, "
                f"{len(answer['StandardOutputContent'])} characters without an end; {error.strip()[-500:]}; "
                "cure: the same command bakes again, on a new builder; if it stays, see the disk of the builder)"
            )
        with tempfile.TemporaryDirectory() as folder:
            fetched = Path(folder) / "stdout"
            self.fetch_file(kept, str(fetched))
            self._run(shlex.join(["rm", "-f", kept]))
            return code, fetched.read_bytes(), error.encode()

    def _invoke(self, script: str) -> dict[str, Any]:
        instance = self.get_option("instance")
        sent = self._ssm.send_command(
            InstanceIds=[instance],
            DocumentName="AWS-RunShellScript",
            Parameters={"commands": [script], "executionTimeout": [str(self.get_option("timeout"))]},
        )
        command, pause = sent["Command"]["CommandId"], 0.02
        while True:
            time.sleep(pause)
            pause = min(pause * 1.5, 2.0)
            try:
                answer = self._ssm.get_command_invocation(CommandId=command, InstanceId=instance)
            except self._ssm.exceptions.InvocationDoesNotExist:
                continue
            if answer["Status"] not in _PENDING:
                break
        if answer["Status"] in ("TimedOut", "Cancelled", "Undeliverable"):
            raise AnsibleConnectionFailure(f"command on {instance}: {answer['Status']}")
        return dict(answer)

    def put_file(self, in_path: str, out_path: str) -> None:
        super().put_file(in_path, out_path)
        key = self._key(in_path)
        self._s3.upload_file(in_path, self.get_option("bucket"), key)
        self._on_instance(_FETCH, "get_object", key, out_path)
        self._s3.delete_object(Bucket=self.get_option("bucket"), Key=key)

    def fetch_file(self, in_path: str, out_path: str) -> None:
        super().fetch_file(in_path, out_path)
        key = self._key(in_path)
        self._on_instance(_SEND, "put_object", key, in_path)
        self._s3.download_file(self.get_option("bucket"), key, out_path)
        self._s3.delete_object(Bucket=self.get_option("bucket"), Key=key)

    def close(self) -> None:
        self._connected = False

    def _key(self, path: str) -> str:
        return f"{self.get_option('prefix')}{uuid.uuid4().hex}/{Path(path).name}"

    def _on_instance(self, program: str, operation: str, key: str, path: str) -> None:
        bucket = self.get_option("bucket")
        url = self._s3.generate_presigned_url(operation, Params={"Bucket": bucket, "Key": key}, ExpiresIn=600)
        code, _, error = self.exec_command(shlex.join(["python3", "-c", program, url, path]))
        if code != 0:
            raise AnsibleError(f"{operation} of {path}: exit code {code}: {error.decode()[-500:]}")
