#!/usr/bin/env python3
"""Copies the first images of Fashion-MNIST, on which the stages of gpu_check
train, in its own format:

    cut_dataset.py FROM TO
"""
import gzip
import struct
import sys
from pathlib import Path

COUNTS = {"train": 12_000, "t10k": 2_000}
# The name's end, and how many of a header's numbers, the first is the count,
# follow the magic.
KINDS = {"images-idx3-ubyte.gz": 3, "labels-idx1-ubyte.gz": 1}


def cut(whole, dimensions, count):
    begin = 4 + 4 * dimensions
    sizes = list(struct.unpack(f">{dimensions}I", whole[4:begin]))
    one = 1
    for size in sizes[1:]:
        one *= size
    sizes[0] = min(count, sizes[0])
    return (whole[:4] + struct.pack(f">{dimensions}I", *sizes)
            + whole[begin:begin + sizes[0] * one])


def main(source, target):
    for part, count in COUNTS.items():
        for kind, dimensions in KINDS.items():
            name = f"{part}-{kind}"
            whole = gzip.decompress((Path(source) / name).read_bytes())
            (Path(target) / name).write_bytes(
                gzip.compress(cut(whole, dimensions, count), 9, mtime=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
