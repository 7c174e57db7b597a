"""PyTorch's ranks, as processes on Gloo beside one of our programs: the common part
of the golden tests of training.

A test starts itself once per rank, as `TEST.py rank RANK RANKS ARGUMENT...`.
"""

import os
import subprocess
import sys

import torch


def flat(tensors):
    return torch.cat([t.detach().flatten().float() for t in tensors])


def join(rank, ranks, directory):
    """Makes this process a rank, with its files in `directory`."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{directory}/init", rank=rank, world_size=ranks
    )


def leave():
    """Ends this process after it has written its results: destroying PyTorch's
    group while other ranks end sometimes aborts a rank, in a thread of Gloo."""
    torch.distributed.barrier()
    os._exit(0)


def run_beside(ours, ranks, *arguments):
    """Runs our commands, and this script as each of PyTorch's ranks. Returns
    the error, or None."""
    # One host needs only loopback, and a sandbox may have only that.
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
