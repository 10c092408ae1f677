"""How long a lease lives is a person's to say, within what a lease can do."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta

import pytest

from infra.errors import UserError
from infra.record.lease import lease_ttl


@pytest.mark.parametrize("typed", ["abc", "", "nan", "inf", "-inf", "0", "-5", "7.9", "1e9", "30s"])
def test_a_life_that_no_lease_can_have_is_refused_with_what_was_typed(typed: str) -> None:
    with pytest.raises(UserError) as caught:
        lease_ttl(typed)
    assert caught.value.seen == repr(typed) and "from 8 to 3600" in str(caught.value.cure)


def test_a_life_from_eight_seconds_on_is_taken() -> None:
    assert lease_ttl("8") == timedelta(seconds=8) and lease_ttl(" 300.5 ") == timedelta(seconds=300.5)


def test_a_command_says_so_without_a_traceback() -> None:
    environment = os.environ | {"BIVOUAC_LEASE_SECONDS": "abc", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-m", "infra.cli.main", "status", "example"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 64, done.stderr
    assert "BIVOUAC_LEASE_SECONDS" in done.stderr and "'abc'" in done.stderr and "Traceback" not in done.stderr
