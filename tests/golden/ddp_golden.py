"""Compares training under our DistributedDataParallel with PyTorch's.

usage: ddp_golden.py PROGRAM MODEL RANKS OPTIMIZER

PROGRAM is ddp_golden_main.cc. OPTIMIZER is sgd, or zero: each side's
ZeroRedundancyOptimizer of AdamW, with clipped gradients. PyTorch's ranks are processes on Gloo. Both sides
start from the same weights and take equal shares of the same batches; after 50
steps their weights differ by at most 1e-4.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

import torch
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

TOLERANCE = 1e-4


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


def flat_weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def make_job(name):
    """A model and all its batches; the same in every process."""
    torch.manual_seed(1)
    model = MODELS[name]()
    images = torch.randn(STEPS * BATCH, 1, 28, 28)
    labels = torch.randint(10, (STEPS * BATCH,))
    return model, images, labels


def make_optimizer(name, parameters):
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM)
    return ZeroRedundancyOptimizer(
        parameters, torch.optim.AdamW, lr=ZERO_LEARNING_RATE, eps=ZERO_EPS
    )


def train(name, rank, ranks, optimizer_name, directory):
    """One rank of PyTorch's. Rank 0 leaves its weights in `directory`."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{directory}/init", rank=rank, world_size=ranks
    )
    model, images, labels = make_job(name)
    replica = nn.parallel.DistributedDataParallel(model)
    optimizer = make_optimizer(optimizer_name, replica.parameters())
    share = BATCH // ranks
    for step in range(STEPS):
        first = step * BATCH + rank * share
        optimizer.zero_grad()
        output = replica(images[first : first + share])
        cross_entropy(output, labels[first : first + share]).backward()
        if optimizer_name == "zero":
            nn.utils.clip_grad_norm_(replica.parameters(), MAX_NORM)
        optimizer.step()
    if rank == 0:
        torch.save(flat_weights(model), directory / "theirs.pt")
    # Taking PyTorch's group down while other ranks end aborts a process now and
    # then, in a thread of Gloo's; its weights are written by then.
    torch.distributed.barrier()
    os._exit(0)


def write_job(name, directory):
    model, images, labels = make_job(name)
    flat_weights(model).numpy().tofile(directory / "weights.f32")
    images.numpy().tofile(directory / "images.f32")
    labels.numpy().tofile(directory / "labels.i64")


def main(program, name, ranks, optimizer):
    with tempfile.TemporaryDirectory() as folder:
        directory = pathlib.Path(folder)
        write_job(name, directory)
        # Loopback is all that one host needs, and all that a sandbox may have.
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        workers = [
            subprocess.Popen([sys.executable, __file__, "rank", name, str(rank),
                              str(ranks), optimizer, folder])
            for rank in range(ranks)
        ]
        ours = subprocess.run(
            [program, name, str(ranks), optimizer, folder], check=False
        )
        codes = [worker.wait() for worker in workers]
        if ours.returncode != 0 or any(codes):
            return f"failed: ours {ours.returncode}, PyTorch's ranks {codes}"
        mine = torch.from_file(
            str(directory / f"weights_of_{ranks}_ranks.f32"),
            size=flat_weights(MODELS[name]()).numel(),
        )
        theirs = torch.load(directory / "theirs.pt")
        difference = (mine - theirs).abs().max().item()
    print(f"{name}, {optimizer}: {ranks} ranks differ from PyTorch's by at most {difference:.2g}")
    if not difference <= TOLERANCE:
        return f"more than the tolerance of {TOLERANCE}"
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        _, _, model, own_rank, count, rule, path = sys.argv
        train(model, int(own_rank), int(count), rule, pathlib.Path(path))
    else:
        sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
