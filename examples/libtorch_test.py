#!/usr/bin/env python3
"""Runs a program of LibTorch alone and the same program with Lockstep, and
compares their output: the mean losses of every epoch, and the weights.

    libtorch_test.py PLAIN PARALLEL LOCKSTEP

One rank prints what PLAIN prints, to the last digit. On two ranks, each with
half of every batch, the replicas end with the same weights, and the losses are
PLAIN's within TOLERANCE: a mean over the batch is the mean of the halves' means,
but sums of floats depend on their order.
"""
import gzip
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

PLAIN, PARALLEL, LOCKSTEP = sys.argv[1:]
FOLDER = pathlib.Path("/usr/share/datasets/fashion-mnist")  # of Debian's package
TOLERANCE = 1e-4  # relative, of a mean loss


def unpack(folder):
    """LibTorch's MNIST reads no compressed files."""
    for packed in FOLDER.glob("t10k-*.gz"):
        with gzip.open(packed) as source, open(folder / packed.stem, "wb") as target:
            shutil.copyfileobj(source, target)


def run(*command):
    """The program's lines about epochs, and those about weights, sorted."""
    result = subprocess.run(command, capture_output=True, text=True, check=False,
                            stdin=subprocess.DEVNULL)
    print(f"{' '.join(command)}:\n{result.stdout}{result.stderr}")
    result.check_returncode()
    epochs = re.findall(r"epoch \d+: mean loss .*", result.stdout)
    return epochs, sorted(re.findall(r"weights of the .*", result.stdout))


def numbers_of(epochs):
    return [float(number) for line in epochs for number in re.findall(r"\d+\.\d+", line)]


def are_close(ones, others):
    return len(ones) == len(others) and all(
        abs(one - other) <= TOLERANCE * abs(one) for one, other in zip(ones, others))


def main():
    with tempfile.TemporaryDirectory() as folder:
        unpack(pathlib.Path(folder))
        epochs, weights = run(PLAIN, folder)
        one_rank = run(PARALLEL, folder)
        two_epochs, two_weights = run(LOCKSTEP, "run", "-n", "2", PARALLEL, folder)
    names = {line.split(":")[0] for line in weights}
    checks = {
        "the plain program prints its losses and weights":
            len(epochs) == 2 and bool(weights),
        "one rank prints what the plain program prints": one_rank == (epochs, weights),
        "two ranks end with the same weights": len(two_weights) == 2 * len(names)
        and len(set(two_weights)) == len(names),
        "the losses of two ranks are the plain program's":
            are_close(numbers_of(epochs), numbers_of(two_epochs)),
    }
    for check, holds in checks.items():
        print(f"{'yes' if holds else 'NO '} {check}")
    return 0 if all(checks.values()) else 1


sys.exit(main())
