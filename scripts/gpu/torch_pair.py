"""Tests whether two ranks of PyTorch can share a card, where each claims to be a
separate host: the machine, the driver and NCCL without Lockstep.

    torch_pair.py versions      what there is, and a product on the card
    torch_pair.py pair          two ranks reduce a tensor
"""
import os
import socket
import subprocess
import sys

RANKS, SECONDS = 2, 90


def versions():
    import torch
    print("Python", sys.version.split()[0], "PyTorch", torch.__version__, "CUDA",
          torch.version.cuda)
    if not torch.cuda.is_available():
        return "PyTorch sees no card"
    print("NCCL", torch.cuda.nccl.version(), "cuDNN",
          torch.backends.cudnn.version(), torch.cuda.get_device_name(0))
    ones = torch.ones(256, 256, device="cuda")
    if (ones @ ones).sum().item() != 256**3:
        return "a product of matrices is wrong"
    return 0


def rank_environment(rank, ranks, port):
    """The environment of a rank that shares the card, PyTorch's or ours."""
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
            "NCCL_HOSTID": str(rank), "NCCL_SOCKET_IFNAME": "lo",
            "GLOO_SOCKET_IFNAME": "lo"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_ranks(command, ranks):
    port = free_port()
    return [subprocess.Popen(command, env={**os.environ, **rank_environment(
        rank, ranks, port)}) for rank in range(ranks)]


def end_of(processes, seconds):
    """Their statuses; ends all when one has failed, or after the time limit."""
    import time
    end = time.monotonic() + seconds
    while any(process.poll() is None for process in processes):
        if time.monotonic() > end or any(p.poll() for p in processes):
            for process in processes:
                process.kill()
        time.sleep(0.05)
    return [process.wait() for process in processes]


def reduce():
    import torch
    import torch.distributed as dist
    device = sys.argv[2]
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    tensor = torch.ones(9, device=device)
    dist.all_reduce(tensor)
    found = tensor[0].item()
    print(f"rank {dist.get_rank()}: the sum is {found}", flush=True)
    dist.destroy_process_group()
    return 0 if found == RANKS else "the sum is wrong"


def pair():
    device = sys.argv[2] if len(sys.argv) > 2 else "cuda"
    statuses = end_of(
        start_ranks([sys.executable, __file__, "rank", device], RANKS), SECONDS)
    if any(statuses):
        return (f"PyTorch's ranks ended with {statuses}: two ranks cannot share "
                "this card; leave out the stage ranks")
    return 0


if __name__ == "__main__":
    sys.exit({"versions": versions, "pair": pair, "rank": reduce}[sys.argv[1]]())
