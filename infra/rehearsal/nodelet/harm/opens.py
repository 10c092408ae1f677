"""Lets each file of a folder be opened late, one after the other, in one running container: a slow file system.

Run as `python -I -S opens.py PID FOLDER EACH_S SECONDS`, outside of the container; PID is one of its processes. Only
the standard library. It needs CAP_SYS_ADMIN in the first user namespace (fanotify(7)), and ends with this process.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
import time

_CONTENT, _CLOSE_ON_EXEC = 0x4, 0x1
_ADD, _OF_MOUNT = 0x1, 0x10
_OPENS = 0x10000
_ALLOW = 1
_EVENT = struct.Struct("=IBBHQii")
"""`struct fanotify_event_metadata`: length, version, reserved, metadata's length, mask, descriptor, process."""
libc = ctypes.CDLL(None, use_errno=True)


def check_result(result: int, action: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{action}: {os.strerror(code)}")
    return result


def main(pid: str, folder: str, each_s: float, seconds: float) -> None:
    root, namespace = (os.open(f"/proc/{pid}/{name}", os.O_RDONLY) for name in ("root", "ns/mnt"))
    check_result(libc.setns(namespace, 0), "setns")
    os.fchdir(root)
    os.chroot(".")
    group = check_result(libc.fanotify_init(_CONTENT | _CLOSE_ON_EXEC, os.O_RDONLY), "fanotify_init")
    mask = ctypes.c_uint64(_OPENS)
    check_result(libc.fanotify_mark(group, _ADD | _OF_MOUNT, mask, -100, os.fsencode(folder)), "fanotify_mark")
    print("slow", flush=True)
    deadline = time.monotonic() + seconds
    while (left_s := deadline - time.monotonic()) > 0:
        if select.select([group], [], [], left_s)[0]:
            answer(group, os.read(group, 4096), each_s)


def answer(group: int, events: bytes, each_s: float) -> None:
    """Allow each open of these events, after its time."""
    while events:
        length, _, _, _, _, descriptor, _ = _EVENT.unpack_from(events)
        time.sleep(each_s)
        os.write(group, struct.pack("=iI", descriptor, _ALLOW))
        os.close(descriptor)
        events = events[length:]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
