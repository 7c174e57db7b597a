"""Compares our SyncBatchNorm with PyTorch's BatchNorm2d in one process.

usage: sync_batch_norm_golden.py PROGRAM RANKS

PROGRAM is sync_batch_norm_golden_main.cc. PyTorch trains on the whole batch;
our ranks have parts of it, uneven ones in one job. (PyTorch's own SyncBatchNorm
refuses the CPU.) Weights and running statistics differ by at most 1e-5.
"""

import pathlib
import subprocess
import sys
import tempfile

import torch

# The same numbers stand in sync_batch_norm_golden_main.cc.
STEPS = 20
BATCH = 12
SIDE = 6
FEATURES = 4
OUTPUTS = 5
LEARNING_RATE = 0.05
MOMENTUM = 0.9
JOBS = ("even", "uneven", "cumulative")

SEED = 11
TOLERANCE = 1e-5


def make_model(job):
    torch.manual_seed(SEED)
    momentum = None if job == "cumulative" else 0.1
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, FEATURES, 3),
        torch.nn.BatchNorm2d(FEATURES, momentum=momentum),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(FEATURES * (SIDE - 2) ** 2, OUTPUTS))


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def train(job, inputs, targets):
    model = make_model(job)
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, MOMENTUM)
    for step in range(STEPS):
        optimizer.zero_grad()
        (model(inputs[step]) - targets[step]).square().mean().backward()
        optimizer.step()
    return torch.cat([flat(model), model[1].running_mean, model[1].running_var])


def main(program, ranks):
    torch.manual_seed(SEED + 1)
    # Far from zero and with different widths by channel, so that statistics matter.
    inputs = torch.randn(STEPS, BATCH, 3, SIDE, SIDE) * 2 + 1
    inputs += torch.randn(1, BATCH, 1, 1, 1)
    targets = torch.randn(STEPS, BATCH, OUTPUTS)
    with tempfile.TemporaryDirectory() as folder:
        directory = pathlib.Path(folder)
        inputs.numpy().tofile(directory / "inputs.f32")
        targets.numpy().tofile(directory / "targets.f32")
        flat(make_model("even")).numpy().tofile(directory / "weights.f32")
        ours = subprocess.run([program, str(ranks), folder, *JOBS], check=False)
        if ours.returncode != 0:
            return f"failed: {ours.returncode}"
        wrong = []
        for job in JOBS:
            expected = train(job, inputs, targets)
            result = torch.from_file(str(directory / f"{job}.f32"),
                                     size=len(expected))
            difference = (result - expected).abs().max().item()
            moved = (expected[:len(flat(make_model(job)))]
                     - flat(make_model(job))).abs().max().item()
            print(f"{job}: differs by {difference:.2g}; weights moved by "
                  f"{moved:.2g}")
            if not difference <= TOLERANCE or not moved > 0.05:
                wrong.append(job)
    return f"other than PyTorch's (seed {SEED}): {', '.join(wrong)}" if wrong else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
