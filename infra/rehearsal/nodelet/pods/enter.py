"""The first program in a container's namespaces: it builds the root, moves into it and becomes the container's.

Run as `python -I -S enter.py SPEC STATUS_FD`, standard library only, so that it starts in a few milliseconds.
`unshare --pid` (without --fork) has made the namespaces: our child is their PID 1 and becomes the program. We stay
outside to pass on signals and to report its exit code (util-linux' --fork reports a SIGKILL as exit code 1).
As under a container runtime, the program is PID 1 itself: signals that it does not handle are not delivered to it,
and when it ends the kernel ends everything else in its namespace.
STATUS_FD closes silently when the program runs; otherwise it carries {"stage", "error"}.

With "join" in SPEC, the program is a further one in a container that runs: it enters the namespaces of the process with
that pid and builds nothing. As with `kubectl exec`, it outlives its caller, and ends with the container.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import stat
import sys
import termios
from typing import Any

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 8, 32, 4096, 16384
MNT_DETACH = 2
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
SYS_MOUNT_SETATTR = 442
AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = -100, 0x8000, 1
PR_SET_PDEATHSIG, PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 23, 24, 38
CLONE_NEWUSER = 0x10000000
JOINED = ("net", "ipc", "uts", "mnt")
ATTENDED = {
    signal.SIGCHLD,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
}
OLD = "/.old"

libc = ctypes.CDLL(None, use_errno=True)


class MountAttributes(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def check_result(result: int, action: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{action}: {os.strerror(code)}")


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    arguments = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    data = None if options is None else options.encode()
    check_result(libc.mount(*arguments, ctypes.c_ulong(flags), data), f"mount {source} on {target}")


def make_read_only(target: str) -> None:
    attributes = MountAttributes(MOUNT_ATTR_RDONLY, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    path = os.fsencode(target)
    if libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, path, AT_RECURSIVE, ctypes.byref(attributes), size) == 0:
        return
    # Before Linux 5.12: only the topmost mount, with the flags that a user namespace may not drop.
    flags_set = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | flags_set)


def bind(source: str, target: str, read_only: bool) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(source, target, None, MS_BIND | MS_REC)
    if read_only:
        make_read_only(target)


def change_root(spec: dict[str, Any]) -> None:
    """Call pivot_root before mounting: absolute links in an image or a volume then resolve inside the new root."""
    root = spec["root"]
    if spec["persistent"]:
        mount(root, root, None, MS_BIND)
    else:
        mount("root", root, "tmpfs", MS_NODEV, "mode=755")
    os.makedirs(root + OLD, exist_ok=True)
    pivot = SYS_PIVOT_ROOT[os.uname().machine]
    check_result(libc.syscall(pivot, os.fsencode(root), os.fsencode(root + OLD)), "pivot_root")
    os.chdir("/")


def furnish(spec: dict[str, Any]) -> None:
    for link, destination in spec["links"].items():
        os.makedirs(os.path.dirname(link), exist_ok=True)
        if not os.path.lexists(link):
            os.symlink(destination, link)
    for path, size in spec["tmpfs"].items():
        os.makedirs(path, exist_ok=True)
        mount("tmpfs", path, "tmpfs", MS_NODEV | MS_NOSUID, f"mode=1777,{size}")
    os.makedirs("/tmp", exist_ok=True)
    os.chmod("/tmp", 0o1777)
    for path, text in spec["files"].items():
        if not os.path.lexists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o755), "w") as file:
                file.write(text)
    make_devices()
    for entry in spec["binds"]:
        bind(OLD + entry["source"], entry["target"], entry["read_only"])


def make_devices() -> None:
    os.makedirs("/dev", exist_ok=True)
    mount("dev", "/dev", "tmpfs", MS_NOSUID, "mode=755")
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        if os.path.exists(f"{OLD}/dev/{name}"):
            bind(f"{OLD}/dev/{name}", f"/dev/{name}", False)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"/dev/{name}")
    os.mkdir("/dev/pts")
    mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    os.symlink("pts/ptmx", "/dev/ptmx")
    os.mkdir("/dev/shm")
    # containerd's default is 64 MiB; for more, mount an emptyDir with medium Memory, as on EKS.
    mount("shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=65536k")


def mount_kernel_views() -> None:
    os.makedirs("/proc", exist_ok=True)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    os.makedirs("/sys", exist_ok=True)
    try:
        mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY)
    except OSError:
        # Refused if the host's own /sys is partly hidden, as in some container runtimes.
        bind(f"{OLD}/sys", "/sys", True)


def build(spec: dict[str, Any]) -> None:
    for entry in spec["binds"]:
        entry["source"] = os.path.realpath(entry["source"])
    change_root(spec)
    mount_kernel_views()
    furnish(spec)
    check_result(libc.umount2(os.fsencode(OLD), MNT_DETACH), "umount of the old root")
    if not spec["persistent"]:
        # Another script may use the persistent root, with the same mount point.
        os.rmdir(OLD)
    os.makedirs(spec["cwd"], exist_ok=True)
    os.chdir(spec["cwd"])


def enter(namespace: str | int) -> None:
    file = namespace if isinstance(namespace, int) else os.open(namespace, os.O_RDONLY)
    check_result(libc.setns(file, 0), f"setns to {namespace}")
    os.close(file)


def join(places: list[int]) -> None:
    """Enter a container's namespaces, then its root; `places` are the descriptors that `places_of` has opened."""
    *namespaces, root = places
    for file in namespaces:
        enter(file)
    os.fchdir(root)
    os.chroot(".")
    os.close(root)


def places_of(process: int) -> list[int]:
    """Open a container's namespaces and its root, and send our later children into its PID namespace."""
    enter(f"/proc/{process}/ns/pid_for_children")
    paths = [*(f"/proc/{process}/ns/{kind}" for kind in JOINED), f"/proc/{process}/root"]
    return [os.open(path, os.O_RDONLY) for path in paths]


def confine(rules: dict[str, Any], joining: bool) -> None:
    """Restrict the program to come: the rights outside its bounding set end at its execve."""
    if rules["read_only_root"] and not joining:
        flags_set = os.statvfs("/").f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
        mount("none", "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | flags_set)
    user, group = rules["user"], rules["group"]
    real = owns_users(user, group)
    if joining and (user, group) != (0, 0) and not real:
        # The container's first program, as /proc of its own namespace shows it.
        enter("/proc/1/ns/user")
    elif (user, group) != (0, 0) and not real:
        # We own one user only: the pod's is another name for it, in a namespace where it has no root.
        outside = os.geteuid(), os.getegid()
        check_result(libc.unshare(CLONE_NEWUSER), "unshare of a user namespace")
        mappings = ("setgroups", "deny"), ("uid_map", f"{user} {outside[0]} 1"), ("gid_map", f"{group} {outside[1]} 1")
        for name, text in mappings:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    for number in range(64):
        if libc.prctl(PR_CAPBSET_READ, number, 0, 0, 0) == 1 and number not in rules["capabilities"]:
            check_result(libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0), "drop of a capability")
    if (user, group) != (0, 0) and real:
        change_user(user, group)
    if rules["no_new_privileges"]:
        check_result(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    # A change of user may have cleared it.
    check_result(libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL)), "prctl")


def owns_users(user: int, group: int) -> bool:
    """Return whether user and group are real ones here: where root has made the site, its pods' users are distinct."""
    for name, identity in (("uid_map", user), ("gid_map", group)):
        with open(f"/proc/self/{name}") as file:
            ranges = [[int(number) for number in line.split()] for line in file]
        if not any(start <= identity < start + count for start, _, count in ranges):
            return False
    return True


def change_user(user: int, group: int) -> None:
    """Become a pod's user. The standard streams become its own, as under a container runtime, so that it may open
    /dev/stdout."""
    for stream in range(3):
        with contextlib.suppress(OSError):  # a pipe end, or a device of others
            if stat.S_ISREG(os.fstat(stream).st_mode):
                os.fchown(stream, user, -1)
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


def reset_signals() -> None:
    # A program inherits the two signals that Python ignores, and those that a caller blocked.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not None:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def run_program(spec: dict[str, Any], places: list[int], status: int) -> None:
    """Become the program, or exit with code 128 and write the reason to `status`."""
    stage = "root"
    try:
        check_result(libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL)), "prctl")
        os.setsid()
        if spec.get("terminal"):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.umask(0o022)
        if places:
            join(places)
            os.chdir(spec["cwd"])
        else:
            socket.sethostname(spec["hostname"])
            build(spec)
        if spec["confined"] is not None:
            confine(spec["confined"], joining=bool(places))
        stage = "exec"
        reset_signals()
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
    except BaseException as error:
        reason = f"{spec['argv'][0]!r}: {os.strerror(getattr(error, 'errno', 0))}" if stage == "exec" else str(error)
        refuse(status, stage, reason)
    os._exit(128)


def refuse(status: int, stage: str, reason: str) -> None:
    os.write(status, json.dumps({"stage": stage, "error": reason}).encode())


def attend(program: int) -> int:
    """Pass on signals until the program ends. Return its exit code, 128 + n for signal n."""
    while True:
        number = signal.sigwait(ATTENDED)
        if number != signal.SIGCHLD:
            os.kill(program, number)
            continue
        exited_pid, status = os.waitpid(program, os.WNOHANG)
        if exited_pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def main() -> None:
    status = int(sys.argv[2])
    os.set_inheritable(status, False)
    signal.pthread_sigmask(signal.SIG_BLOCK, ATTENDED)
    try:
        with open(sys.argv[1]) as file:
            spec = json.load(file)
        places = places_of(spec["join"]) if spec.get("join") else []
        program = os.fork()  # refused in the PID namespace of a container that has ended
    except OSError as error:
        refuse(status, "spec", str(error))
        os._exit(128)
    if program == 0:
        run_program(spec, places, status)
    os.close(status)
    os.closerange(0, 3)
    # Not sys.exit: the interpreter needs no cleanup.
    os._exit(attend(program))


main()
