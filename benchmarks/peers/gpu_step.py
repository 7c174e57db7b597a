"""A training step of a residual network on a GPU in PyTorch, under
DistributedDataParallel on NCCL as the only rank:

    gpu_step.py resnet18|resnet50 BATCH float32|bfloat16 REQUESTS

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

SEED, SIDE, CLASSES = 1234, 224, 1000


class Training:
    def __init__(self, name, batch, precision):
        torch.manual_seed(SEED)
        model = torchvision.models.get_model(name)
        model = model.cuda().to(memory_format=torch.channels_last)
        dist.init_process_group("nccl")
        self.model = torch.nn.parallel.DistributedDataParallel(
            model, device_ids=[0], gradient_as_bucket_view=True, static_graph=True
        )
        torch.manual_seed(SEED)
        images = torch.randn(batch, 3, SIDE, SIDE)
        self.images = images.cuda().contiguous(memory_format=torch.channels_last)
        self.labels = torch.randint(0, CLASSES, (batch,)).cuda()
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
    name, batch, precision, prefix = sys.argv[1:]
    training = Training(name, int(batch), precision)
    with open(f"{prefix}.0", encoding="utf-8") as requests:
        for request in requests:
            print(json.dumps(training.answer(request)), flush=True)
    dist.destroy_process_group()


main()
