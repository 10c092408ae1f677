"""The largest shard is one object of S3's: what S3 puts and copies in one call, and knows by one SHA-256."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from trainer.contract.data import Parameters

ONE_CALL = 5 * 10**9


@pytest.mark.parametrize(("tokens", "taken"), [(2**25, True), (2**30, True), (ONE_CALL // 4 + 1, False)])
def test_a_shard_fits_into_one_call(tokens: int, taken: bool) -> None:
    def made() -> int:
        return Parameters(held_out=0.1, seed=1, shard_tokens=tokens).shard_tokens

    if taken:
        assert made() * 4 <= ONE_CALL
        return
    with pytest.raises(ValidationError, match="shard_tokens"):
        made()
