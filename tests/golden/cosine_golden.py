"""Compares our CosineAnnealingLR with torch.optim.lr_scheduler's.

usage: cosine_golden.py PROGRAM RANKS

PROGRAM is cosine_golden_main.cc. Rates may differ by at most 1e-7, also beyond
T_max, where they rise again. With a warm-up they are those of a LinearLR and the
cosine in a SequentialLR.
"""

import subprocess
import sys
import tempfile

import torch

# The same numbers stand in cosine_golden_main.cc.
RATES = (0.3, 0.01)
LEAST = 0.002
# T_max, steps, and those of a warm-up before.
JOBS = ("10.11.0", "1.3.0", "7.20.0", "90.90.0", "10.16.5", "7.9.1", "3.4.9")
START_FACTOR = 0.1
TOLERANCE = 1e-7


def rates_of(job):
    t_max, steps, warmup = map(int, job.split("."))
    optimizer = torch.optim.SGD(
        [{"params": [torch.zeros(1)], "lr": rate} for rate in RATES]
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, t_max, LEAST)
    if warmup:
        rise = torch.optim.lr_scheduler.LinearLR(
            optimizer, START_FACTOR, total_iters=warmup
        )
        schedule = torch.optim.lr_scheduler.SequentialLR(
            optimizer, [rise, schedule], [warmup]
        )
    rates = []
    for _ in range(steps):
        rates += [group["lr"] for group in optimizer.param_groups]
        optimizer.step()
        schedule.step()
    return torch.tensor(rates)


def main(program, ranks):
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.run([program, ranks, folder, *JOBS], check=False).returncode:
            return "failed"
        wrong = []
        for job in JOBS:
            expected = rates_of(job)
            ours = torch.from_file(f"{folder}/{job}.f32", size=len(expected))
            difference = (ours - expected).abs().max().item()
            print(f"{job}: rates differ by {difference:.2g}")
            if not difference <= TOLERANCE:
                wrong.append(job)
    return f"other than PyTorch's: {', '.join(wrong)}" if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
