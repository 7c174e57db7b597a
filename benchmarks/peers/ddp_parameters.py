"""One rank of a step over many small parameters in PyTorch, on Gloo.

    ddp_parameters.py COUNT apart|tutorial|best REQUESTS

The same job and questions as ../parameters_main.cc; "apart" is without
DistributedDataParallel, "best" turns on what makes it faster.
"""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn


class Affine(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))
        self.bias = nn.Parameter(torch.zeros(16))

    def forward(self, x):
        return x * self.weight + self.bias


class Step:
    def __init__(self, count, mode):
        self.rank = int(os.environ["RANK"])
        ranks = 1 if mode == "apart" else int(os.environ["WORLD_SIZE"])
        self.model = nn.Sequential(*(Affine() for _ in range(count // 2)))
        self.parameters = list(self.model.parameters())
        self.input = torch.full((16,), 1.0 + self.rank)
        # Of a weight: the average of the inputs.
        self.expected = (ranks + 1) / 2 if ranks > 1 else 1.0 + self.rank
        if ranks > 1:
            dist.init_process_group("gloo")
            best = mode == "best"
            self.model = nn.parallel.DistributedDataParallel(
                self.model, gradient_as_bucket_view=best, static_graph=best
            )

    def run(self):
        """Microseconds."""
        begin = time.perf_counter()
        for parameter in self.parameters:
            parameter.grad = None
        self.model(self.input).sum().backward()
        return (time.perf_counter() - begin) * 1e6

    def as_expected(self):
        values = [self.expected, 1.0] * (len(self.parameters) // 2)
        return all(bool((parameter.grad == value).all())
                   for parameter, value in zip(self.parameters, values))

    def answer(self, request):
        words = request.split()
        if words[0] == "steps":
            times = [self.run() for _ in range(int(words[1]))]
            return {"step_us": statistics.median(times)}
        return {"as_expected": self.as_expected()}


def main():
    count, mode, prefix = sys.argv[1:]
    torch.set_num_threads(1)
    step = Step(int(count), mode)
    with open(f"{prefix}.{step.rank}") as requests:
        for request in iter(requests.readline, ""):
            answer = step.answer(request)
            if step.rank == 0:
                print(json.dumps(answer), flush=True)


main()
