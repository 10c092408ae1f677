"""What a shell has for AWS, clusters, proxies and Python does not reach a site; who and where a person is does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.folders import own_module
from infra.rehearsal.site import handle
from infra.rehearsal.site.environment import bare
from infra.rehearsal.site.handle import Site
from infra.target import command_line
from tests.root import ROOT

HOSTILE = {
    "AWS_PROFILE": "prod", "AWS_ENDPOINT_URL": "https://aws.invalid", "AWS_ENDPOINT_URL_S3": "https://s3.invalid",
    "AWS_SESSION_TOKEN": "stale", "AWS_CA_BUNDLE": "/nowhere", "AWS_CONFIG_FILE": "/nowhere", "AWS_ROLE_ARN": "arn:x",
    "AWS_USE_FIPS_ENDPOINT": "true", "AWS_MAX_ATTEMPTS": "1", "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://x.invalid",
    "HTTP_PROXY": "http://proxy.invalid:3128", "https_proxy": "http://proxy.invalid:3128", "ALL_PROXY": "socks5://x",
    "NO_PROXY": "*", "SSL_CERT_FILE": "/nowhere", "REQUESTS_CA_BUNDLE": "/nowhere", "CURL_CA_BUNDLE": "/nowhere",
    "KUBECONFIG": "/nowhere", "PULUMI_BACKEND_URL": "s3://theirs", "PULUMI_ACCESS_TOKEN": "t", "PULUMI_HOME": "/x",
    "PULUMI_CONFIG_PASSPHRASE": "theirs", "PYTHONPATH": "/theirs", "PYTHONHOME": "/theirs", "PYTHONSTARTUP": "/x.py",
    "PYTHONWARNINGS": "error", "MOTO_ACCOUNT_ID": "999999999999", "GRPC_PROXY": "x", "GOPROXY": "off",
    "LD_PRELOAD": "x.so",    "ANSIBLE_CONFIG": "/nowhere", "KUBERNETES_SERVICE_HOST": "10.0.0.1", "BASH_ENV": "/x.sh",
}  # fmt: skip
OWN = {
    "HOME": "/home/ada", "USER": "ada", "LANG": "de_DE.UTF-8", "LC_ALL": "C.UTF-8", "TERM": "xterm",
    "TMPDIR": "/scratch",
    "BIVOUAC_CACHE": "/c", "BIVOUAC_SITE_NAME": "two", "BIVOUAC_RESULTS": "/r", "XDG_CACHE_HOME": "/x", "PATH": "/bin",
    "BIVOUAC_LEASE_SECONDS": "30", "NO_COLOR": "1",
}  # fmt: skip


def test_only_what_a_site_needs_passes() -> None:
    passed = bare(HOSTILE | OWN)
    assert {name: passed[name] for name in OWN} == OWN
    ours = {"PYTHONPATH": str(ROOT), "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
    assert passed == OWN | ours


def test_a_process_that_enters_has_the_sites_environment_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in HOSTILE.items():
        monkeypatch.setenv(name, value)
    entered: list[dict[str, str]] = []
    monkeypatch.setattr(handle.os, "execvpe", lambda program, words, environment: entered.append(environment))
    own = {"AWS_ENDPOINT_URL": "http://10.77.0.2:5000", "PATH": "/site/bin", "PULUMI_HOME": "/site/pulumi"}
    site = Site("two", str(Path("/site")), 1, 1, 1, user_namespace=False, environment=own)
    handle.enter(site, ["bivouac", "status"])
    (environment,) = entered
    assert {name: value for name, value in environment.items() if HOSTILE.get(name) == value} == {}
    assert environment.items() >= (own | {"BIVOUAC_SITE": "two", "PYTHONPATH": str(ROOT)}).items()
    assert environment.keys().isdisjoint(HOSTILE.keys() - own.keys() - {"PYTHONPATH", "AWS_CONFIG_FILE"})


@pytest.mark.parametrize("environment", [bare({}), {}], ids=["inside a site", "outside"])
def test_no_process_of_ours_imports_a_module_of_the_folder_where_a_person_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    for foreign in ("infra", "trainer"):
        (tmp_path / foreign).mkdir()
        (tmp_path / foreign / "__init__.py").write_text("raise SystemExit('of another project')")
    monkeypatch.setattr(sys, "argv", ["bivouac", "--version"])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    own = command_line() if environment else own_module("infra.cli.main", "--version")
    around = {"PATH": os.environ["PATH"], **environment}
    done = subprocess.run(own, cwd=tmp_path, env=around, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("bivouac "), done.stderr
