"""A small data set of IDX files, for tests of programs that train."""
import random
import struct
import tempfile
import unittest
from pathlib import Path

SIDE = 28


def write_images(folder, split, count, seed):
    """IDX files of images that any model learns: a bright row shows the class."""
    draw = random.Random(seed)
    labels = bytes(draw.randrange(10) for _ in range(count))
    pixels = bytearray(draw.randrange(100) for _ in range(count * SIDE * SIDE))
    for image, label in enumerate(labels):
        begin = (image * SIDE + 4 + 2 * label) * SIDE
        for i in range(begin, begin + 2 * SIDE):
            pixels[i] += 150
    header = struct.pack(">4I", 0x803, count, SIDE, SIDE)
    (folder / f"{split}-images-idx3-ubyte").write_bytes(header + pixels)
    (folder / f"{split}-labels-idx1-ubyte").write_bytes(
        struct.pack(">2I", 0x801, count) + labels)


def write_cifar10(folder, count):
    """CIFAR-10's files of `count` images each: bright rows show the class."""
    folder = folder / "cifar-10-batches-bin"
    folder.mkdir()
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    for seed, name in enumerate(names):
        draw = random.Random(seed)
        records = bytearray()
        for _ in range(count):
            label = draw.randrange(10)
            pixels = bytearray(draw.randrange(100) for _ in range(3 * 32 * 32))
            for channel in range(3):
                begin = (channel * 32 + 3 * label) * 32
                for i in range(begin, begin + 3 * 32):
                    pixels[i] += 150
            records += bytes([label]) + pixels
        (folder / f"{name}.bin").write_bytes(records)


class WithSmallData(unittest.TestCase):
    """Has its own folder, which contains a folder of images."""

    TEST_IMAGES = 40

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.data = self.folder / "data"
        self.data.mkdir()
        write_images(self.data, "train", 320, seed=1)
        write_images(self.data, "t10k", self.TEST_IMAGES, seed=2)
