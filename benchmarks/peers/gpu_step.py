"""A training step on a GPU in PyTorch, alone or under DistributedDataParallel
on NCCL as the only rank:

    gpu_step.py resnet18|resnet50|cnn|mlp BATCH eager|ddp float32|bfloat16
                REQUESTS

The same job and questions as ../gpu_main.cc.
"""
import contextlib
import json
import sys
import time

import torch
import torch.distributed as dist
import torchvision
from torch.nn import functional as F

from models import make_model

SEED = 1234


class Training:
    def __init__(self, name, batch, way, precision):
        large = name.startswith("resnet")
        channels, side, classes = (3, 224, 1000) if large else (1, 28, 10)
        if large:
            torch.manual_seed(SEED)
            model = torchvision.models.get_model(name)
        else:
            model = make_model(name, SEED, dropout=0.0)
        model = model.cuda().to(memory_format=torch.channels_last)
        self.model = model
        if way == "ddp":
            dist.init_process_group("nccl")
            self.model = torch.nn.parallel.DistributedDataParallel(
                model, device_ids=[0], gradient_as_bucket_view=True, static_graph=True
            )
        torch.manual_seed(SEED)
        images = torch.randn(batch, channels, side, side)
        self.images = images.cuda().contiguous(memory_format=torch.channels_last)
        self.labels = torch.randint(0, classes, (batch,)).cuda()
        self.optimizer = torch.optim.SGD(
            model.parameters(), lr=0.01, momentum=0.9, fused=True
        )
        self.mixed = (
            torch.autocast("cuda", torch.bfloat16)
            if precision == "bfloat16"
            else contextlib.nullcontext()
        )
        self.loss = None

    def step(self):
        self.optimizer.zero_grad()
        with self.mixed:
            self.loss = F.cross_entropy(self.model(self.images), self.labels)
        self.loss.backward()
        self.optimizer.step()

    def answer(self, request):
        words = request.split()
        if words[0] == "loss":
            return {"loss": self.loss.item()}
        steps = int(words[1])
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
        host = time.perf_counter()
        torch.cuda.synchronize()
        end = time.perf_counter()
        return {
            "step_ms": (end - begin) / steps * 1e3,
            "host_ms": (host - begin) / steps * 1e3,
        }


def main():
    name, batch, way, precision, prefix = sys.argv[1:]
    training = Training(name, int(batch), way, precision)
    with open(f"{prefix}.0", encoding="utf-8") as requests:
        for request in requests:
            print(json.dumps(training.answer(request)), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


main()
