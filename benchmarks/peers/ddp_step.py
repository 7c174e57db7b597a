"""One rank of a training step in PyTorch, under DistributedDataParallel on Gloo
where there are several.

    ddp_step.py MODEL tutorial|best [deterministic] REQUESTS
    ddp_step.py MODEL tutorial|best first

MODEL is cnn, mlp, resnet18 or transformer. The same jobs and questions as
../step_job.h and ../step_main.cc. "best" turns on what PyTorch has for speed:
bucket views, a static graph, a fused optimizer.
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

from models import LENGTH, VOCABULARY, make_model

SEED, CLASSES, MAX_NORM = 1234, 10, 1.0


def make_batch(name):
    """Inputs and labels of a rank, from the generator as it is."""
    if name == "transformer":
        text = torch.randint(0, VOCABULARY, (16, LENGTH + 1))
        return text[:, :-1].contiguous(), text[:, 1:].flatten()
    shape = (3, 32, 32) if name == "resnet18" else (1, 28, 28)
    return torch.randn(64, *shape), torch.randint(0, CLASSES, (64,))


def make_optimizer(name, parameters, fused):
    if name == "transformer":
        return torch.optim.AdamW(
            parameters, lr=3e-4, weight_decay=0.1, fused=fused
        )
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.5, fused=fused)


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
        self.inputs, self.labels = make_batch(name)
        self.optimizer = make_optimizer(name, self.model.parameters(), best)
        self.clips = name == "transformer"
        self.grad_norm = torch.zeros(())
        self.loss = None

    def step(self):
        """Milliseconds."""
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        self.loss = F.cross_entropy(self.model(self.inputs), self.labels)
        self.loss.backward()
        if self.clips:
            self.grad_norm = nn.utils.clip_grad_norm_(
                self.model.parameters(), MAX_NORM
            )
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
        return {
            "peak_mib": self.sum(peak_mib()),
            "loss": self.loss.item(),
            "grad_norm": self.grad_norm.item(),
            "parameters": sum(p.numel() for p in self.model.parameters()),
        }


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
