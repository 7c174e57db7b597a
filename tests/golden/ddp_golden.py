"""Compares training on several ranks with PyTorch's DistributedDataParallel.

usage: ddp_golden.py PROGRAM MODEL RANKS WAY...

PROGRAM is ddp_golden_main.cc, which lists the values of WAY: our frontends, or
zero alone for each side's ZeroRedundancyOptimizer of AdamW, with clipped
gradients. PyTorch's ranks are processes on Gloo. Both sides start from the same
weights and take equal shares of the same batches; after 50 steps their weights
differ by at most 1e-5.
"""

import pathlib
import sys
import tempfile

import pytorch_ranks
import torch
from pytorch_ranks import flat
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy, max_pool2d, relu

# The same numbers stand in ddp_golden_main.cc.
STEPS = 50
BATCH = 32
LEARNING_RATE = 0.05
MOMENTUM = 0.5
ZERO_LEARNING_RATE = 0.001
ZERO_EPS = 1e-4
MAX_NORM = 1

TOLERANCE = 1e-5


class Cnn(nn.Module):
    """The network of PyTorch's MNIST tutorial, without its dropout."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x):
        x = relu(max_pool2d(self.conv1(x), 2))
        x = relu(max_pool2d(self.conv2(x), 2))
        return self.fc2(relu(self.fc1(x.flatten(1))))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(784, 512)
        self.fc2 = nn.Linear(512, 256)
        self.fc3 = nn.Linear(256, 10)

    def forward(self, x):
        return self.fc3(relu(self.fc2(relu(self.fc1(x.flatten(1))))))


MODELS = {"cnn": Cnn, "mlp": Mlp}


def make_job(name):
    """A model and all its batches; the same in every process."""
    torch.manual_seed(1)
    model = MODELS[name]()
    images = torch.randn(STEPS * BATCH, 1, 28, 28)
    labels = torch.randint(10, (STEPS * BATCH,))
    return model, images, labels


def make_optimizer(way, parameters):
    if way != "zero":
        return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM)
    return ZeroRedundancyOptimizer(
        parameters, torch.optim.AdamW, lr=ZERO_LEARNING_RATE, eps=ZERO_EPS
    )


def train(rank, ranks, name, way, directory):
    """One of PyTorch's ranks. Rank 0 writes its weights to `directory`."""
    pytorch_ranks.join(rank, ranks, directory)
    model, images, labels = make_job(name)
    replica = nn.parallel.DistributedDataParallel(model)
    optimizer = make_optimizer(way, replica.parameters())
    share = BATCH // ranks
    for step in range(STEPS):
        first = step * BATCH + rank * share
        optimizer.zero_grad()
        output = replica(images[first : first + share])
        cross_entropy(output, labels[first : first + share]).backward()
        if way == "zero":
            nn.utils.clip_grad_norm_(replica.parameters(), MAX_NORM)
        optimizer.step()
    if rank == 0:
        torch.save(flat(model.parameters()), directory / "theirs.pt")
    pytorch_ranks.leave()


def write_job(name, directory):
    model, images, labels = make_job(name)
    flat(model.parameters()).numpy().tofile(directory / "weights.f32")
    images.numpy().tofile(directory / "images.f32")
    labels.numpy().tofile(directory / "labels.i64")


def main(program, name, ranks, ways):
    with tempfile.TemporaryDirectory() as folder:
        directory = pathlib.Path(folder)
        write_job(name, directory)
        ours = [program, folder, name, str(ranks), *ways]
        failure = pytorch_ranks.run_beside([ours], ranks, name, ways[0], folder)
        if failure:
            return failure
        theirs = torch.load(directory / "theirs.pt")
        differences = {
            way: (read(directory / f"{way}.f32", len(theirs)) - theirs).abs().max()
            for way in ways
        }
    for way, difference in differences.items():
        print(f"{name}, {way}: {ranks} ranks differ from PyTorch's by at most {difference:.2g}")
    if not all(difference <= TOLERANCE for difference in differences.values()):
        return f"more than the tolerance of {TOLERANCE}"
    return 0


def read(path, size):
    return torch.from_file(str(path), size=size).clone()


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        _, _, own_rank, count, model, way, path = sys.argv
        train(int(own_rank), int(count), model, way, pathlib.Path(path))
    else:
        sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
