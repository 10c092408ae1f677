"""Ansible module: write several small files, links and their folders at once; only those that differ, by rename.

Over Systems Manager every module call costs a second or more, and a module for a single file needs three calls. This
needs one for all settings of a role.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: files
short_description: several small files and links at once
options:
  files:
    description: Each with `path`, and either `content` with an optional `mode`, or `link`, the target of a link.
    type: list
    elements: dict
    required: true
  root:
    description: Folder that stands for the machine's root.
    type: str
    default: ""
"""


def same(path: Path, entry: dict[str, Any]) -> bool:
    if entry["link"] is not None:
        return path.is_symlink() and os.readlink(path) == entry["link"]
    if path.is_symlink() or not path.is_file():
        return False
    return path.read_text() == entry["content"] and path.stat().st_mode & 0o7777 == int(entry["mode"], 8)


def write(path: Path, entry: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        fresh = Path(folder) / "fresh"
        if entry["link"] is not None:
            fresh.symlink_to(entry["link"])
        else:
            fresh.write_text(entry["content"])
            fresh.chmod(int(entry["mode"], 8))
        fresh.replace(path)


def main() -> None:
    entry = {
        "path": {"type": "str", "required": True},
        "content": {"type": "str"},
        "mode": {"type": "str", "default": "0644"},
        "link": {"type": "str"},
    }
    rules = {"mutually_exclusive": [["content", "link"]], "required_one_of": [["content", "link"]]}
    module = AnsibleModule(
        {
            "files": {"type": "list", "elements": "dict", "required": True, "options": entry, **rules},
            "root": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    differing = []
    for one in module.params["files"]:
        path = Path(module.params["root"] + one["path"])
        if not same(path, one):
            differing.append(one["path"])
            if not module.check_mode:
                write(path, one)
    module.exit_json(changed=bool(differing), files=differing)


if __name__ == "__main__":
    main()
