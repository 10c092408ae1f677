"""Leaves a folder of a running container readable and without room, or lets each file of it be opened late.

Run as `python -I -S folders.py PID FOLDER`, or with `EACH_S SECONDS` behind, outside of the container; PID is one of
its processes. Standard library only, and all of it imported before it enters the container's mounts. Without room, what
is written from now on goes to a tmpfs of 64 KiB, by an overlay that only this container sees; files that are open keep
their room. Late, opens wait in a queue (fanotify(7), with CAP_SYS_ADMIN of the first user namespace) for SECONDS.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
import time

_CONTENT, _ADD, _OF_MOUNT, _OPENS, _ALLOW = 0x4, 0x1, 0x10, 0x10000, 1
_EVENT = struct.Struct("=IBBHQii")
"""`struct fanotify_event_metadata`: length, version, reserved, metadata's length, mask, descriptor, process."""
libc = ctypes.CDLL(None, use_errno=True)


def check_result(result: int, action: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{action}: {os.strerror(code)}")
    return result


def mount(kind: str, target: str, options: str) -> None:
    arguments = [os.fsencode(text) for text in (kind, target, kind)]
    check_result(libc.mount(*arguments, ctypes.c_ulong(0), options.encode()), f"mount of {kind} on {target}")


def main(pid: str, folder: str, *delay: str) -> None:
    root, namespace = (os.open(f"/proc/{pid}/{name}", os.O_RDONLY) for name in ("root", "ns/mnt"))
    check_result(libc.setns(namespace, 0), "setns")
    os.fchdir(root)
    os.chroot(".")
    if delay:
        delay_opens(folder, *map(float, delay))
    else:
        fill(folder)


def fill(folder: str) -> None:
    os.chdir(folder)  # the overlay's lower folder: a name would mean the tmpfs above it
    owner = os.stat(".")
    mount("tmpfs", folder, "size=64k,mode=755")
    for name in ("upper", "work"):
        os.mkdir(f"{folder}/{name}")
        os.chown(f"{folder}/{name}", owner.st_uid, owner.st_gid)
        os.chmod(f"{folder}/{name}", owner.st_mode & 0o7777)
    mount("overlay", folder, f"lowerdir=.,upperdir={folder}/upper,workdir={folder}/work")
    print("full", flush=True)


def delay_opens(folder: str, each_s: float, seconds: float) -> None:
    group = check_result(libc.fanotify_init(_CONTENT, os.O_RDONLY), "fanotify_init")
    mask = ctypes.c_uint64(_OPENS)
    check_result(libc.fanotify_mark(group, _ADD | _OF_MOUNT, mask, -100, os.fsencode(folder)), "fanotify_mark")
    print("slow", flush=True)
    deadline = time.monotonic() + seconds
    while (left_s := deadline - time.monotonic()) > 0:
        events = os.read(group, 4096) if select.select([group], [], [], left_s)[0] else b""
        while events:
            length, _, _, _, _, descriptor, _ = _EVENT.unpack_from(events)
            time.sleep(each_s)
            os.write(group, struct.pack("=iI", descriptor, _ALLOW))
            os.close(descriptor)
            events = events[length:]


if __name__ == "__main__":
    main(*sys.argv[1:])
