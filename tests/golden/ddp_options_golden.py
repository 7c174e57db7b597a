"""Compares the options of our DistributedDataParallel with PyTorch's.

usage: ddp_options_golden.py PROGRAM RANKS

PROGRAM is ddp_options_golden_main.cc. PyTorch's ranks are processes on Gloo.
Both sides run every job of JOBS from the same weights on the same data; then
rank 0's parameters and running statistics differ by at most 1e-5.
"""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

import warnings

import torch
from torch import nn
from torch.nn.functional import mse_loss

# The same numbers and jobs stand in ddp_options_golden_main.cc.
STEPS = 12
RANKS = 4
PARTS = 3
SAMPLES = 5
LEARNING_RATE = 0.1
MOMENTUM = 0.9
SMALL = {"bucket_cap_mb": 200 / 2**20}
JOBS = {
    "plain": {"gradient_as_bucket_view": True, **SMALL},
    "own_gradients": SMALL,
    "no_broadcast": {"broadcast_buffers": False},
    "accumulate": SMALL,
    "forward_inside": {},
    "two_forwards": {},
    "frozen": {},
    "unused": {"find_unused_parameters": True, **SMALL},
    "unused_accumulate": {"find_unused_parameters": True},
    "static": {"static_graph": True, **SMALL},
    "join": {},
    "join_by_active": {},
    "join_unused": {"find_unused_parameters": True},
}

TOLERANCE = 1e-5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.left = nn.Linear(8, 8)
        self.right = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x, path):
        """`path` names the layers between trunk and head."""
        x = self.norm(self.trunk(x)).tanh()
        for letter in path:
            x = {"l": self.left, "r": self.right}[letter](x).tanh()
        return self.head(x)


def flat(tensors):
    return torch.cat([t.detach().flatten().float() for t in tensors])


def state_of(net):
    return flat([*net.parameters(), net.norm.running_mean, net.norm.running_var])


def make_data():
    """The network, and inputs and targets by step, rank and part."""
    torch.manual_seed(1)
    net = Net()
    inputs = torch.randn(STEPS, RANKS, PARTS, SAMPLES, 6)
    targets = torch.randn(STEPS, RANKS, PARTS, SAMPLES, 3)
    return net, inputs, targets


class Job:
    """One rank's training by one job."""

    def __init__(self, name, rank):
        self.name = name
        self.rank = rank
        self.net, self.inputs, self.targets = make_data()
        if name == "frozen":
            self.net.left.requires_grad_(False)
        self.model = nn.parallel.DistributedDataParallel(self.net, **JOBS[name])
        self.optimizer = torch.optim.SGD(
            [p for p in self.net.parameters() if p.requires_grad],
            lr=LEARNING_RATE, momentum=self.momentum(),
        )

    def momentum(self):
        # A rank of PyTorch's that is out of data counts what the others used in
        # the step before as used still; without momentum nothing comes of it.
        return 0 if self.name == "join_unused" else MOMENTUM

    def loss(self, step, part, path="lr"):
        output = self.model(self.inputs[step, self.rank, part], path)
        return mse_loss(output, self.targets[step, self.rank, part])

    def path(self, step):
        return ("l", "r", "lr", "")[step * (self.rank + 1) % 4]

    def backward(self, step):
        name = self.name
        if name == "accumulate":
            with self.model.no_sync():
                self.loss(step, 0).backward()
                self.loss(step, 1).backward()
            self.loss(step, 2).backward()
        elif name == "forward_inside":
            with self.model.no_sync():
                inside = self.loss(step, 0)
            inside.backward()
            self.loss(step, 1).backward()
        elif name == "two_forwards":
            (self.loss(step, 0) + self.loss(step, 1)).backward()
        elif name == "unused_accumulate":
            with self.model.no_sync():
                self.loss(step, 0, self.path(step + 1)).backward()
            self.loss(step, 1, self.path(step)).backward()
        elif name in ("unused", "join_unused"):
            self.loss(step, 0, self.path(step)).backward()
        elif name == "static":
            self.loss(step, 0, "ll").backward()
        else:
            self.loss(step, 0).backward()

    def run(self):
        steps = STEPS
        scope = contextlib.nullcontext()
        if self.name.startswith("join"):
            steps = 5 + 2 * self.rank
            scope = self.model.join(
                divide_by_initial_world_size=self.name != "join_by_active"
            )
        with scope:
            for step in range(steps):
                self.optimizer.zero_grad()
                self.backward(step)
                self.optimizer.step()
        return state_of(self.net)


def run_rank(rank, ranks, directory):
    """One rank of PyTorch's. Rank 0 leaves its results in `directory`."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{directory}/init", rank=rank, world_size=ranks
    )
    results = {name: Job(name, rank).run() for name in JOBS}
    if rank == 0:
        torch.save(results, directory / "theirs.pt")
    # Taking PyTorch's group down while other ranks end aborts a process now and
    # then, in a thread of Gloo's; its results are written by then.
    torch.distributed.barrier()
    os._exit(0)


def compare(directory):
    """The names of the jobs that came out differently."""
    theirs = torch.load(directory / "theirs.pt")
    wrong = []
    for name, expected in theirs.items():
        mine = torch.from_file(str(directory / f"{name}.f32"), size=len(expected))
        difference = (mine - expected).abs().max().item()
        print(f"{name}: differs from PyTorch's by at most {difference:.2g}")
        if not difference <= TOLERANCE:
            wrong.append(name)
    return wrong


def main(program, ranks):
    with tempfile.TemporaryDirectory() as folder:
        directory = pathlib.Path(folder)
        net, inputs, targets = make_data()
        flat(net.parameters()).numpy().tofile(directory / "weights.f32")
        inputs.numpy().tofile(directory / "inputs.f32")
        targets.numpy().tofile(directory / "targets.f32")
        # Loopback is all that one host needs, and all that a sandbox may have.
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        workers = [
            subprocess.Popen(
                [sys.executable, __file__, "rank", str(rank), str(ranks), folder]
            )
            for rank in range(ranks)
        ]
        ours = subprocess.run([program, str(ranks), folder, *JOBS], check=False)
        codes = [worker.wait() for worker in workers]
        if ours.returncode != 0 or any(codes):
            return f"failed: ours {ours.returncode}, PyTorch's ranks {codes}"
        wrong = compare(directory)
    return f"more than {TOLERANCE}: {', '.join(wrong)}" if wrong else 0


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        run_rank(int(sys.argv[2]), int(sys.argv[3]), pathlib.Path(sys.argv[4]))
    else:
        sys.exit(main(sys.argv[1], int(sys.argv[2])))
