"""A model that was trained with adapters, in the archive."""

from __future__ import annotations

from pathlib import Path

from infra.archive import archive
from tests.unit.archive.archive_story import BODY, CAMPAIGN, PREFIX, archiver, commit, site_at


def test_adapters_lie_below_the_merged_model_and_the_card_tells_of_both(tmp_path: Path) -> None:
    site = site_at(tmp_path)
    commit(site, 30)
    site.s3.held[f"campaigns/{CAMPAIGN}/spec.json"] = (b'{"training": {"model": {"lora": {"rank": 16}}}}', {})

    one = archiver(site)
    evaluate = one.model.evaluate

    def evaluate_and_export(folder: Path, out: Path | None) -> float:
        assert out is not None
        (out / "adapter").mkdir(parents=True)
        (out / "adapter/adapter_model.safetensors").write_bytes(BODY)
        return float(evaluate(folder, None))

    one.model = archive.Model(evaluate_and_export)
    manifest = one.run()
    name = f"{PREFIX}/huggingface/adapter/adapter_model.safetensors"
    assert site.s3.held[name][0] == BODY and name in {item.key for item in manifest.objects}
    card = site.s3.held[f"{PREFIX}/huggingface/README.md"][0].decode()
    assert "Adapters of rank 16 were trained" in card and "bit for bit" not in card
