"""One rank of Gloo in PyTorch, in the benchmark of collectives.

    gloo_collectives.py REQUESTS     with the environment of torchrun

Measures as ../measure_collectives.cc does; all_reduce only.
"""
import json
import statistics
import sys
import time

import torch
import torch.distributed as dist


def run_once(data):
    data.fill_(dist.get_rank() + 1)
    dist.barrier()
    begin = time.perf_counter()
    dist.all_reduce(data)
    return time.perf_counter() - begin


def over_ranks(value, op):
    result = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(result, op)
    return result.item()


def repetitions_in(seconds, data):
    run_once(data)
    begin = time.perf_counter()
    for _ in range(3):
        run_once(data)
    took = over_ranks((time.perf_counter() - begin) / 3, dist.ReduceOp.MAX)
    return int(min(max(seconds / took, 5), 5000))


def verify(data):
    ranks = dist.get_world_size()
    if not torch.all(data == ranks * (ranks + 1) / 2):
        raise RuntimeError(f"wrong sum of {data.numel()} elements")


def measure(request):
    collective, _, size, seconds = request.split()
    if collective != "all_reduce":
        raise ValueError(f"unknown collective {collective}")
    data = torch.empty(max(1, int(size) // 4))
    times = [run_once(data) for _ in range(repetitions_in(float(seconds), data))]
    verify(data)
    ranks, total = dist.get_world_size(), dist.ReduceOp.SUM
    return {
        "median_us": over_ranks(statistics.median(times), total) / ranks * 1e6,
        "mean_us": over_ranks(statistics.mean(times), total) / ranks * 1e6,
        "repetitions": len(times),
    }


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with open(f"{sys.argv[1]}.{dist.get_rank()}") as requests:
        for request in iter(requests.readline, ""):
            answer = measure(request)
            if dist.get_rank() == 0:
                print(json.dumps(answer), flush=True)
    dist.destroy_process_group()


main()
