"""Compares the options of our DistributedDataParallel with PyTorch's.

usage: ddp_options_golden.py PROGRAM RANKS

PROGRAM is ddp_options_golden_main.cc. PyTorch's ranks are processes on Gloo.
Both sides run every job of JOBS from the same weights on the same data; then
rank 0's parameters and running statistics differ by at most 1e-5, or by the value
in TOLERANCES.
"""

import collections
import contextlib
import pathlib
import sys
import tempfile
import warnings

import pytorch_ranks
import torch
from pytorch_ranks import flat
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.distributed.algorithms.model_averaging import averagers
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import (
    HierarchicalModelAverager,
)
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
    # PyTorch calls hooks also in a group of one rank; ours run only in larger
    # groups. So these jobs are for several ranks.
    "fp16_hook": SMALL,
    "bf16_hook": SMALL,
    "power_sgd": {},
    "power_sgd_cold": {},
    "fp16_power_sgd": {},
    "post_local": {},
    "hierarchical": {},
}
HOOK_JOBS = list(JOBS)[-7:]

TOLERANCE = 1e-5
# PyTorch divides by the number of ranks before it adds, in 16 bits; ours adds in
# float32 and rounds once.
TOLERANCES = {"fp16_hook": 1e-3, "bf16_hook": 1e-2, "fp16_power_sgd": 1e-2}


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
    """Trains one job on one rank."""

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
        self.averager = None
        if name in HOOK_JOBS:
            self.register_hook()

    def register_hook(self):
        if self.name == "fp16_hook":
            hook, state = default_hooks.fp16_compress_hook, None
        elif self.name == "bf16_hook":
            # Under its own name PyTorch refuses it without a GPU.
            def hook(state, bucket):
                return default_hooks.bf16_compress_hook(state, bucket)

            state = None
        elif self.name == "power_sgd":
            hook = powerSGD_hook.powerSGD_hook
            state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2)
        elif self.name == "power_sgd_cold":
            hook = powerSGD_hook.powerSGD_hook
            state = powerSGD_hook.PowerSGDState(
                None, 2, start_powerSGD_iter=3, min_compression_rate=1,
                use_error_feedback=False, warm_start=False, random_seed=7,
            )
        elif self.name == "fp16_power_sgd":
            hook = default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook)
            state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2)
        else:
            hook, state = self.make_local()
        self.model.register_comm_hook(state, hook)

    def make_local(self):
        """Post-local SGD: in pairs of ranks after four steps."""
        ranks = torch.distributed.get_world_size()
        pairs = [list(range(ranks))[i:i + 2] for i in range(0, ranks, 2)]
        pair, _ = torch.distributed.new_subgroups_by_enumeration(pairs)
        state = post_localSGD_hook.PostLocalSGDState(None, pair, 4)
        if self.name == "post_local":
            self.averager = averagers.PeriodicModelAverager(3, warmup_steps=4)
        else:
            sizes = {2: 2, 4: 4} if ranks == 4 else {2: ranks}
            self.averager = HierarchicalModelAverager(
                collections.OrderedDict(sizes), warmup_steps=3
            )
        return post_localSGD_hook.post_localSGD_hook, state

    def momentum(self):
        # A PyTorch rank that is out of data assumes that the others use the same
        # parameters as in the previous step; without momentum that has no effect.
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
                if self.averager:
                    self.averager.average_parameters(self.net.parameters())
        return state_of(self.net)


def jobs_of(ranks):
    return [name for name in JOBS if ranks > 1 or name not in HOOK_JOBS]


def run_rank(rank, ranks, directory):
    """One of PyTorch's ranks. Rank 0 writes its results to `directory`."""
    warnings.simplefilter("ignore")
    pytorch_ranks.join(rank, ranks, directory)
    results = {name: Job(name, rank).run() for name in jobs_of(ranks)}
    if rank == 0:
        torch.save(results, directory / "theirs.pt")
    pytorch_ranks.leave()


def compare(directory):
    """The names of the jobs with different results."""
    theirs = torch.load(directory / "theirs.pt")
    wrong = []
    for name, expected in theirs.items():
        mine = torch.from_file(str(directory / f"{name}.f32"), size=len(expected))
        difference = (mine - expected).abs().max().item()
        print(f"{name}: differs from PyTorch's by at most {difference:.2g}")
        if not difference <= TOLERANCES.get(name, TOLERANCE):
            wrong.append(name)
    return wrong


def main(program, ranks):
    with tempfile.TemporaryDirectory() as folder:
        directory = pathlib.Path(folder)
        net, inputs, targets = make_data()
        flat(net.parameters()).numpy().tofile(directory / "weights.f32")
        inputs.numpy().tofile(directory / "inputs.f32")
        targets.numpy().tofile(directory / "targets.f32")
        ours = [program, str(ranks), folder, *jobs_of(ranks)]
        failure = pytorch_ranks.run_beside([ours], ranks, folder)
        if failure:
            return failure
        wrong = compare(directory)
    return f"more than allowed: {', '.join(wrong)}" if wrong else 0


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        run_rank(int(sys.argv[2]), int(sys.argv[3]), pathlib.Path(sys.argv[4]))
    else:
        sys.exit(main(sys.argv[1], int(sys.argv[2])))
