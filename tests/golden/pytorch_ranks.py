"""PyTorch's ranks, as processes on Gloo beside a program of ours: what the
golden tests of training have in common.

A test starts itself once a rank, as `TEST.py rank RANK RANKS ARGUMENT...`.
"""

import os
import subprocess
import sys

import torch


def flat(tensors):
    return torch.cat([t.detach().flatten().float() for t in tensors])


def join(rank, ranks, directory):
    """Makes this process a rank, whose files lie in `directory`."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{directory}/init", rank=rank, world_size=ranks
    )


def leave():
    """Ends this process, whose results are written by now: taking PyTorch's
    group down while other ranks end aborts one now and then, in a thread of
    Gloo's."""
    torch.distributed.barrier()
    os._exit(0)


def run_beside(ours, ranks, *arguments):
    """Runs our commands, and this script as each of PyTorch's ranks. Returns
    what went wrong, or None."""
    # Loopback is all that one host needs, and all that a sandbox may have.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    theirs = [
        [sys.executable, sys.argv[0], "rank", str(rank), str(ranks), *arguments]
        for rank in range(ranks)
    ]
    processes = [subprocess.Popen(command) for command in [*theirs, *ours]]
    codes = [process.wait() for process in processes]
    if any(codes):
        return f"failed: PyTorch's ranks {codes[:ranks]}, ours {codes[ranks:]}"
    return None
