"""One rank of a training step in PyTorch, under DistributedDataParallel on Gloo
where there are several.

    ddp_step.py cnn|mlp tutorial|best [deterministic] REQUESTS
    ddp_step.py cnn|mlp tutorial|best first

The same job and questions as ../step_main.cc. "best" turns on what PyTorch has
for speed: bucket views, a static graph, a fused optimizer.
"""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from models import make_model

BATCH, SEED = 64, 1234


class Training:
    def __init__(self, name, best, deterministic):
        self.ranks = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.model = make_model(name, SEED, 0.0 if deterministic else 0.5)
        if self.ranks > 1:
            dist.init_process_group("gloo")
            self.model = nn.parallel.DistributedDataParallel(
                self.model, gradient_as_bucket_view=best, static_graph=best
            )
        torch.manual_seed(SEED + self.rank)
        self.images = torch.randn(BATCH, 1, 28, 28)
        self.labels = torch.randint(0, 10, (BATCH,))
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=0.01, momentum=0.5, fused=best
        )
        self.loss = None

    def step(self):
        """Milliseconds."""
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        self.loss = F.cross_entropy(self.model(self.images), self.labels)
        self.loss.backward()
        self.optimizer.step()
        return (time.perf_counter() - begin) * 1e3

    def sum(self, value):
        result = torch.tensor([value], dtype=torch.float64)
        if self.ranks > 1:
            dist.all_reduce(result)
        return result.item()

    def answer(self, request):
        words = request.split()
        if words[0] == "steps":
            times = [self.step() for _ in range(int(words[1]))]
            return {"step_ms": statistics.median(times)}
        return {"peak_mib": self.sum(peak_mib()), "loss": self.loss.item()}


def proc_mib(path, name):
    with open(path) as lines:
        for line in lines:
            if line.startswith(name + ":"):
                return int(line.split()[1]) / 1024
    return 0.0


def peak_mib():
    """As in ../step_main.cc."""
    peak = proc_mib("/proc/self/status", "VmHWM")
    now = proc_mib("/proc/self/status", "VmRSS")
    return peak - now + proc_mib("/proc/self/smaps_rollup", "Pss")


def main():
    name, settings, *options, last = sys.argv[1:]
    torch.set_num_threads(1)
    training = Training(name, settings == "best", "deterministic" in options)
    if last == "first":
        training.step()
        print("first step", flush=True)
        return
    with open(f"{last}.{training.rank}") as requests:
        for request in iter(requests.readline, ""):
            answer = training.answer(request)
            if training.rank == 0:
                print(json.dumps(answer), flush=True)


main()
