"""Compares our GradientScaler with torch.amp.GradScaler.

usage: scaler_golden.py PROGRAM RANKS

PROGRAM is scaler_golden_main.cc. Losses are computed in float16, so that scales
that are too large overflow; some gradients of one rank are also infinite or NaN.
PyTorch sees all ranks' gradients in one process. Scales and skipped steps must be
equal in every step; weights may differ by at most 1e-5.
"""

import itertools
import pathlib
import subprocess
import sys
import tempfile

import torch

# The same numbers stand in scaler_golden_main.cc.
STEPS = 80
RANKS = 3
SIZE = 20
MAX_NORM = 0.5
LEARNING_RATE = 0.1
MOMENTUM = 0.9
SCALERS = {
    "usual": {"growth_interval": 5},
    "odd": {"init_scale": 3000.0, "growth_factor": 1.7, "backoff_factor": 0.3,
            "growth_interval": 2},
}
OPTIMIZERS = ("libtorch", "fused", "sharded")
JOBS = [".".join(job) for job in
        itertools.product(SCALERS, OPTIMIZERS, ("plain", "clipped"))]

SEED = 3
TOLERANCE = 1e-5


def make_factors():
    """The gradient of each step's loss, by step and rank."""
    torch.manual_seed(SEED)
    factors = torch.randn(STEPS, RANKS, SIZE)
    for bad in (float("inf"), -float("inf"), float("nan")):
        for _ in range(4):
            step, rank, place = (int(torch.randint(high, ()))
                                 for high in (STEPS, RANKS, SIZE))
            factors[step, rank, place] = bad
    return factors


def train(job, factors):
    """Per step its scale, its growth tracker, and whether it was made; weights."""
    scaler_name, _, clipping = job.split(".")
    weights = torch.ones(SIZE, requires_grad=True)
    optimizer = torch.optim.SGD([weights], LEARNING_RATE, MOMENTUM)
    scaler = torch.amp.GradScaler("cpu", **SCALERS[scaler_name])
    record = []
    for of_ranks in factors:
        optimizer.zero_grad()
        for factor in of_ranks:
            loss = (weights.half() * factor.half()).sum()
            scaler.scale(loss).backward()
        weights.grad /= len(of_ranks)
        if clipping == "clipped":
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_([weights], MAX_NORM)
        before = weights.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        state = scaler.state_dict()
        record += [state["scale"], state["_growth_tracker"],
                   not torch.equal(before, weights.detach())]
    return torch.cat([torch.tensor(record, dtype=torch.float),
                      weights.detach()])


def compare(job, expected, ours):
    """Whether our results of a job equal PyTorch's."""
    scales, weights = ours[:-SIZE], ours[-SIZE:]
    same = torch.equal(scales, expected[:-SIZE])
    difference = (weights - expected[-SIZE:]).abs().max().item()
    made = int(scales[2::3].sum())
    print(f"{job}: {made} of {STEPS} steps made; scales "
          f"{'equal' if same else 'DIFFER'}, weights by {difference:.2g}")
    return same and difference <= TOLERANCE and 0 < made < STEPS


def main(program, ranks):
    factors = make_factors()
    with tempfile.TemporaryDirectory() as folder:
        directory = pathlib.Path(folder)
        factors.numpy().tofile(directory / "factors.f32")
        ours = subprocess.run([program, str(ranks), folder, *JOBS], check=False)
        if ours.returncode != 0:
            return f"failed: {ours.returncode}"
        wrong = []
        for job in JOBS:
            expected = train(job, factors[:, :ranks])
            result = torch.from_file(str(directory / f"{job}.f32"),
                                     size=len(expected))
            if not compare(job, expected, result):
                wrong.append(job)
    return f"other than PyTorch's (seed {SEED}): {', '.join(wrong)}" if wrong else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
