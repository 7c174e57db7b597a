"""Compares the indices of src/data with those of PyTorch and Python.

usage: sampler_golden.py PROGRAM [--long]

PROGRAM is sampler_golden_main.cc. --long adds permutations of more than 2^32/20
indices, for which PyTorch uses another algorithm: some minutes, 4 GB.
"""

import array
import itertools
import subprocess
import sys
import zlib
from random import Random

import torch
from torch.utils.data import DistributedSampler, WeightedRandomSampler


def summary(indices):
    """The program's output for `indices`."""
    data = array.array("q", indices)
    if sys.byteorder != "little":
        data.byteswap()
    return " ".join(map(str, [len(data), zlib.crc32(data.tobytes()), *data[:5]]))


def sampler_cases(lengths, world_sizes, seeds, epochs):
    """(question, expected) for every rank of every combination."""
    for length, world_size, shuffle, drop_last in itertools.product(
        lengths, world_sizes, (True, False), (True, False)
    ):
        for seed, epoch in itertools.product(seeds, epochs):
            for rank in range(world_size):
                sampler = DistributedSampler(
                    range(length), world_size, rank, shuffle, seed, drop_last
                )
                sampler.set_epoch(epoch)
                question = (
                    f"sampler {length} {world_size} {rank} {int(shuffle)} "
                    f"{seed} {epoch} {int(drop_last)}"
                )
                yield question, summary(sampler)


def permutation_cases(counts, seeds):
    for count, seed in itertools.product(counts, seeds):
        generator = torch.Generator().manual_seed(seed)
        indices = torch.randperm(count, generator=generator)
        yield f"permutation {count} {seed}", summary(indices.numpy())


def tutorial_partitions(length, sizes, seed):
    """DataPartitioner of "Writing Distributed Applications with PyTorch"."""
    rng = Random()
    rng.seed(seed)
    indices = list(range(length))
    rng.shuffle(indices)
    for size in sizes:
        count = int(size * length)
        yield indices[:count]
        indices = indices[count:]


def partition_cases():
    for length, seed, sizes in itertools.product(
        (0, 1, 2, 3, 10, 17, 1000, 60000),
        (0, 1, 1234, 2**32 - 1, 2**32, 2**63 + 11),
        ([0.7, 0.2, 0.1], [1.0], [0.5, 0.5], [1 / 3] * 3, [0.1] * 10, [0.29]),
    ):
        parts = tutorial_partitions(length, sizes, seed)
        for part, indices in enumerate(parts):
            words = " ".join(map(repr, sizes))
            yield f"partition {length} {seed} {part} {words}", summary(indices)


def weighted_cases():
    for length, count, seed in itertools.product(
        (1, 2, 10, 1000), (2, 3, 100, 5000), (0, 42, 2**31, 2**32 + 5)
    ):
        random = Random(f"{length} {seed}")
        weights = [random.expovariate(1) for _ in range(length)]
        weights = [0.0 if i % 5 == 3 else w for i, w in enumerate(weights)]
        generator = torch.Generator().manual_seed(seed)
        sampler = WeightedRandomSampler(weights, count, True, generator)
        words = " ".join(map(repr, weights))
        yield f"weighted {count} {seed} {words}", summary(sampler)


def all_cases(long):
    yield from sampler_cases(
        lengths=(0, 1, 2, 3, 10, 17, 1000),
        world_sizes=(1, 2, 3, 4, 7, 8, 40),
        seeds=(0, 42, 2**31, 2**32 + 5),
        epochs=(0, 1, 17),
    )
    yield from sampler_cases(
        lengths=(60000, 100000), world_sizes=(1, 2, 3, 8), seeds=(0, 42),
        epochs=(0, 3),
    )
    yield from permutation_cases(
        (0, 1, 2, 623, 624, 625, 100000, 1000003), (0, 1, 2**32 - 1, 2**64 - 1)
    )
    yield from partition_cases()
    yield from weighted_cases()
    if long:
        yield from permutation_cases((2**32 // 20 - 1, 2**32 // 20), (7,))


def main():
    cases = list(all_cases("--long" in sys.argv[2:]))
    questions = "".join(question + "\n" for question, _ in cases)
    answers = subprocess.run(
        [sys.argv[1]], input=questions, stdout=subprocess.PIPE, text=True,
        check=True,
    ).stdout.splitlines()
    if len(answers) != len(cases):
        sys.exit(f"{len(answers)} answers to {len(cases)} questions")
    wrong = 0
    for (question, expected), answer in zip(cases, answers):
        if answer != expected:
            wrong += 1
            print(f"{question}\n  expected: {expected}\n  found:    {answer}")
        if wrong == 10:
            break
    print(f"{len(cases)} sequences compared with PyTorch {torch.__version__}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
