"""Kills one of the ranks of `lockstep train` during training, and checks the
launcher's report and the remaining processes:

    kill_rank.py RANKS TRAIN_ARGUMENTS…
"""
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import parts

START_SECONDS = 70
END_SECONDS = float(os.environ.get("LOCKSTEP_FAULT_SECONDS", 70))
VICTIM = 1


def environment_of(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(
            errors="replace").split("\0")
    except OSError:
        return []


def rank_among_descendants(rank):
    """The process that the launcher started, not one of its children."""
    for pid in parts.descendants():
        if f"RANK={rank}" in environment_of(pid):
            return pid
    return None


def wait_for_training(process, log):
    """Whether the log has a loss before the deadline."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        if re.search(r"loss +\d", log.read_text(errors="replace")):
            return True
        time.sleep(0.05)
    return False


def kill_one(process, log):
    if not wait_for_training(process, log):
        return "the ranks did not begin to train"
    pid = rank_among_descendants(VICTIM)
    if pid is None:
        return f"found no process of rank {VICTIM}"
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    try:
        status = process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        return f"the launcher did not end within {END_SECONDS:.0f} s"
    print(f'RESULT {{"what": "kill -9 to the launcher\'s end", "unit": "ms", '
          f'"ours": {(time.monotonic() - killed) * 1e3:.0f}}}')
    if status != 128 + signal.SIGKILL:
        return f"the launcher ended with {status}, not {128 + signal.SIGKILL}"
    said = log.read_text(errors="replace")
    if not re.search(rf"rank {VICTIM} of \d+ was killed by signal 9", said):
        return "the launcher does not say which rank was killed"
    left = parts.await_end_of_descendants(min(5, END_SECONDS))
    return f"processes were left: {left}" if left else 0


def main(ranks, arguments):
    log = Path(os.environ.get("TMPDIR", "/tmp")) / f"kill_rank.{os.getpid()}.log"
    parts.adopt_orphans()
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["lockstep", "train", "-n", ranks, "--log-interval", "1", "--epochs",
             "1000", *arguments], stdin=subprocess.DEVNULL, stdout=out,
            stderr=subprocess.STDOUT)
    try:
        found = kill_one(process, log)
    finally:
        process.kill()
        print(log.read_text(errors="replace"), flush=True)
        log.unlink()
    return f"kill_rank: {found}" if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
