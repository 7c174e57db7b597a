"""Injects a fault into one of two ranks, and checks the errors of both:

    fault.py PROGRAM cpu|cuda hang|death|mismatch|memory|capture

PROGRAM is tests/gpu/fault_rank_main.cc. The script uses no launcher, because a
launcher would end the rank whose error it reads.
"""
import json
import os
import re
import signal
import subprocess
import sys
import time

import judge
import torch_pair

RANKS, SECONDS = 2, 90
KILLED = -9
# By rank: the status, and regexes that must be in what it printed.
EXPECTED = {
    "hang": [(0, [r"^after \d+: Timeout ", r"rank 1\b", r"^left$"]),
             (0, [r"^no error$", r"^left$"])],
    "death": [(0, [r"^after \d+: PeerFailure ", r"rank 1\b", r"^left$"]),
              (KILLED, [])],
    "mismatch": [(0, [r"^after \d+: Mismatch ", r"^left$"])] * RANKS,
    "memory": [(0, [r"^after \d+: PeerFailure ", r"rank 1\b", r"^left$"]),
               (0, [r"^after \d+: SystemError .*ran out of memory on rank 1",
                    r"^left$"])],
    "capture": [(0, [r"^reduced after it$", r"^after \d+: \w+ .*captured",
                     r"^left$"])] * RANKS,
}


def start(command):
    port = torch_pair.free_port()
    ours = {name: value for name, value in os.environ.items()
            if name != "NCCL_HOSTID"}
    processes = []
    for rank in range(RANKS):
        variables = torch_pair.rank_environment(rank, RANKS, port)
        # Lockstep itself must set this for NCCL.
        del variables["NCCL_HOSTID"]
        processes.append(subprocess.Popen(
            command, env={**ours, **variables}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True))
    return processes


def finish(processes):
    """The status and output of each; the status is None where the test ended it."""
    end = time.monotonic() + float(os.environ.get("LOCKSTEP_FAULT_SECONDS",
                                                  SECONDS))
    found = []
    for process in processes:
        try:
            said, _ = process.communicate(
                timeout=max(end - time.monotonic(), 0.1))
            found.append((process.returncode, said))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            found.append((None, process.communicate()[0]))
    return found


def complaints(rank, status, said, expected):
    if status is None:
        yield f"rank {rank} did not end"
    elif status != expected[0]:
        yield f"rank {rank} ended with {status}, not {expected[0]}"
    for pattern in expected[1]:
        if not re.search(pattern, said, re.M):
            yield f'rank {rank} printed nothing like "{pattern}"'


def main(program, device, kind):
    # Rank 0 first: its end closes the input of a rank that hangs.
    found = finish(start([program, device, kind]))
    wrong, skipped = [], []
    for rank, (status, said) in enumerate(found):
        print(f"rank {rank}, status {status}:\n{said.rstrip()}\n")
        skipped += re.findall(r"^skipped: .*", said, re.M)
        wrong += complaints(rank, status, said, EXPECTED[kind][rank])
        took = re.search(r"^after (\d+): (\w+)", said, re.M)
        if took:
            print("RESULT", json.dumps(
                {"what": f"{kind}: rank {rank} gets {took[2]}", "unit": "ms",
                 "ours": int(took[1])}))
    if skipped and not any(status for status, _ in found):
        print(skipped[0])
        return judge.SKIP_STATUS
    for complaint in wrong:
        print(f"fault: {complaint}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
