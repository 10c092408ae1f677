"""Harms a folder of a running container: it has little room, or opens of it are late, or it shows further files.

Run outside of the container; PID is one of its processes. Standard library only, and all of it imported before it
enters the container's mounts.

`python -I -S folders.py PID FOLDER fill ROOM_BYTES`: what is written from now on goes to a tmpfs that is full but for
so many bytes, by an overlay that only this container sees; files that are open keep their room.
`python -I -S folders.py PID FOLDER delay EACH_S SECONDS`: opens of its files and folders wait in a queue (fanotify(7),
with CAP_SYS_ADMIN of the first user namespace) for SECONDS.
`python -I -S folders.py PID FOLDER show NAME=TEXT...`: such files are in it, by the same kind of overlay.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
import time

_CONTENT, _ADD, _OF_MOUNT, _OPENS, _OF_FOLDERS, _ALLOW = 0x4, 0x1, 0x10, 0x10000, 0x40000000, 1
_SIZE_PER_ROOM = 64
"""A tmpfs has so many times the room that is left: 1.6 %."""
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


def main(pid: str, folder: str, action: str, *arguments: str) -> None:
    root, namespace = (os.open(f"/proc/{pid}/{name}", os.O_RDONLY) for name in ("root", "ns/mnt"))
    check_result(libc.setns(namespace, 0), "setns")
    os.fchdir(root)
    os.chroot(".")
    if action == "delay":
        delay_opens(folder, *map(float, arguments))
    elif action == "fill":
        room_bytes = int(arguments[0])
        cover(folder, room_bytes, room_bytes * (_SIZE_PER_ROOM - 1))
    else:
        cover(folder, 2**20, 0)
        for path, _, text in (argument.partition("=") for argument in arguments):
            os.makedirs(os.path.dirname(f"{folder}/{path}"), exist_ok=True)
            with open(f"{folder}/{path}", "w") as file:
                file.write(text)
    print("done", flush=True)


def cover(folder: str, room_bytes: int, full_bytes: int) -> None:
    """Lay an overlay over the folder, on a tmpfs with so much room and so much that is taken."""
    os.chdir(folder)  # the overlay's lower folder: a name would mean the tmpfs above it
    owner = os.stat(".")
    mount("tmpfs", folder, f"size={room_bytes + full_bytes},mode=755")
    for name in ("upper", "work"):
        os.mkdir(f"{folder}/{name}")
        os.chown(f"{folder}/{name}", owner.st_uid, owner.st_gid)
        os.chmod(f"{folder}/{name}", owner.st_mode & 0o7777)
    if full_bytes:
        with open(f"{folder}/taken", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, full_bytes)
    mount("overlay", folder, f"lowerdir=.,upperdir={folder}/upper,workdir={folder}/work")


def delay_opens(folder: str, each_s: float, seconds: float) -> None:
    group = check_result(libc.fanotify_init(_CONTENT, os.O_RDONLY), "fanotify_init")
    mask = ctypes.c_uint64(_OPENS | _OF_FOLDERS)
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
