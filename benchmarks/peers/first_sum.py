"""The same as ../first_sum_main.cc, with torch.distributed:

    first_sum.py end|crash|restart
"""
import os
import signal
import sys
import time

import torch
import torch.distributed as dist


def say(what):
    print(what, time.clock_gettime(time.CLOCK_MONOTONIC), flush=True)


def reduce():
    ones = torch.ones(1024)
    dist.all_reduce(ones)
    assert bool((ones == dist.get_world_size()).all())


def main():
    mode = sys.argv[1]
    dist.init_process_group("gloo")
    reduce()
    if dist.get_rank() == 0:
        say("reduced")
    again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
    if mode == "end" or (mode == "restart" and again):
        dist.destroy_process_group()
        return
    reduce()  # rank 0 has spoken
    if dist.get_rank() == dist.get_world_size() - 1:
        say("crash")
        os.kill(os.getpid(), signal.SIGKILL)
    reduce()


main()
