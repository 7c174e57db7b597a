#!/usr/bin/env python3
"""A rank that the kernel kills because its control group has no memory left.

The environment names the built command: LOCKSTEP_COMMAND.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

COMMAND = os.environ["LOCKSTEP_COMMAND"]
# Bytes; the kernel kills the largest process, and under the address sanitizer the
# launcher takes 50 MiB.
LIMIT = 256 << 20
TIMEOUT = 120
GROUPS = pathlib.Path("/sys/fs/cgroup")
CANNOT = 77
# The rank touches four times the limit; a rank that waits is no candidate.
HUNGRY = f"bytes = b'x' * {4 * LIMIT}"


def put(file, value):
    """Never creates the file: its folder may be no control group."""
    with open(file, "r+", encoding="utf-8") as stream:
        stream.write(f"{value}\n")


def limit(group):
    """Limits the memory and swap of `group`; OSError where it cannot be."""
    if (group / "memory.max").exists():
        put(group / "memory.max", LIMIT)
        swap, most = group / "memory.swap.max", 0
    else:
        put(group / "memory.limit_in_bytes", LIMIT)
        swap, most = group / "memory.memsw.limit_in_bytes", LIMIT
    if swap.exists():
        put(swap, most)


def make_group():
    """A control group with little memory, below the root of either version."""
    for root in (GROUPS, GROUPS / "memory"):
        try:
            group = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-oom-test-", dir=root))
        except OSError:
            continue
        try:
            limit(group)
            return group
        except OSError:
            group.rmdir()
    return None


def main():
    group = make_group()
    if group is None:
        print("skipped: a control group for memory cannot be made here")
        return CANNOT
    try:
        result = subprocess.run(
            [COMMAND, "run", "--", sys.executable, "-c", HUNGRY], capture_output=True,
            text=True, check=False, timeout=TIMEOUT, stdin=subprocess.DEVNULL,
            preexec_fn=lambda: put(group / "cgroup.procs", os.getpid()))
    finally:
        group.rmdir()
    print(result.stderr)
    said = ("rank 0 of 1 was killed by signal 9 (SIGKILL)" in result.stderr and
            "the kernel killed it because memory ran out (1 process of this control group"
            in result.stderr)
    return 0 if result.returncode == 137 and said else 1


sys.exit(main())
