"""The same as ../spawn_main.cc, with torch.multiprocessing, which executes Python
anew for each rank:

    spawn.py RANKS
"""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing


def say(what):
    line = f"{what} {time.clock_gettime(time.CLOCK_MONOTONIC)}\n"
    os.write(1, line.encode())  # whole, although ranks share the pipe


def compute(value):
    weights = torch.full((256, 256), float(value), requires_grad=True)
    weights.mm(torch.eye(256)).square().sum().backward()
    assert bool((weights.grad == 2 * value).all())
    return weights.grad


def rank_main(rank, ranks, store):
    say("begun")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank,
                            world_size=ranks)
    total = compute(rank + 1)
    dist.all_reduce(total)
    assert bool((total == ranks * (ranks + 1)).all())
    if rank == 0:
        say("reduced")
    dist.destroy_process_group()


def main():
    ranks, store = int(sys.argv[1]), sys.argv[2]
    assert not os.path.exists(store)
    torch.set_num_threads(2)
    compute(1)
    say("called")
    multiprocessing.spawn(rank_main, (ranks, store), ranks)


if __name__ == "__main__":
    main()
