"""Leaves a folder of a running container readable and without room: what is written from now on goes to a tmpfs of 64
KiB, by an overlay that only this container sees.

Run as `python -I -S fill.py PID FOLDER`, outside of the container; PID is one of its processes. Standard library only,
and all of it imported before it enters the container's mounts. Files that are open already keep their room.
"""

from __future__ import annotations

import ctypes
import os
import sys

libc = ctypes.CDLL(None, use_errno=True)


def check_result(result: int, action: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{action}: {os.strerror(code)}")


def mount(kind: str, target: str, options: str) -> None:
    arguments = [os.fsencode(text) for text in (kind, target, kind)]
    check_result(libc.mount(*arguments, ctypes.c_ulong(0), options.encode()), f"mount of {kind} on {target}")


def main(pid: str, folder: str) -> None:
    root, namespace = (os.open(f"/proc/{pid}/{name}", os.O_RDONLY) for name in ("root", "ns/mnt"))
    check_result(libc.setns(namespace, 0), "setns")
    os.fchdir(root)
    os.chroot(".")
    os.chdir(folder)  # the overlay's lower folder: a name would mean the tmpfs above it
    owner = os.stat(".")
    mount("tmpfs", folder, "size=64k,mode=755")
    for name in ("upper", "work"):
        os.mkdir(f"{folder}/{name}")
        os.chown(f"{folder}/{name}", owner.st_uid, owner.st_gid)
        os.chmod(f"{folder}/{name}", owner.st_mode & 0o7777)
    mount("overlay", folder, f"lowerdir=.,upperdir={folder}/upper,workdir={folder}/work")


if __name__ == "__main__":
    main(*sys.argv[1:])
