"""Build arguments of images/trainer.Dockerfile, from images/versions.yaml; see the head of that file."""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


CONTAINERS = {"base": "trainer_container", "slim": "slim_container"}
"""Target of the Dockerfile -> part of versions.yaml."""


def build_args(root: Path, base_digest: str | None, target: str = "base") -> dict[str, str]:
    """Return argument -> value. Raises `ValueError` when the target's base has no digest."""
    versions = yaml.safe_load((root / "images/versions.yaml").read_text())["versions"]
    container = versions[CONTAINERS[target]]
    digest = base_digest or container.get("base_digest")
    if digest is None or not DIGEST.fullmatch(digest):
        raise ValueError(
            f"the base is not pinned; seen: {digest}; cure: give --base-digest sha256:..., which "
            f"`docker buildx imagetools inspect {container['base']} --format '{{{{.Manifest.Digest}}}}'` prints"
        )
    stands_on = {
        "BASE": f"{container['base'].partition(':')[0]}@{digest}",
        "PYTHON_VERSION": container["python_series"],
    }
    if target == "slim":
        return {**stands_on, "MOST_MB": str(container["most_mb"])}
    dcgm = versions["dcgm_container"]
    code = hashlib.sha256()
    for part in ("infra", "trainer"):
        for path in sorted((root / part).rglob("*.py")):
            code.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return {
        **stands_on,
        "EFA_URL": versions["efa"]["url"],
        "EFA_SHA256": versions["efa"]["sha256"],
        "OFI_NCCL": versions["efa"]["ofi_nccl"],
        "GDRCOPY_URL": versions["gdrcopy"]["url"],
        "GDRCOPY_SHA256": versions["gdrcopy"]["sha256"],
        "DCGM_KEYRING_URL": dcgm["keyring"],
        "DCGM_KEYRING_SHA256": dcgm["sha256"],
        "DCGM_PACKAGES": ",".join(f"{name}={dcgm['version']}" for name in dcgm["parts"]),
        "CODE_DIGEST": code.hexdigest(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", choices=sorted(CONTAINERS), default="base", help="of the Dockerfile")
    parser.add_argument("--base-digest", help="of the target's base, where versions.yaml has none")
    given = parser.parse_args()
    try:
        found = build_args(ROOT, given.base_digest, given.target)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 64
    print(" ".join(f"--build-arg {name}={value}" for name, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
