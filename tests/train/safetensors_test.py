"""Our reader reads other implementations' files, and other readers read ours."""
import os
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path

import plain_safetensors

TENSORS = {
    "float64": ("F64", [2], struct.pack("<2d", 1.5, -2.5)),
    "float32": ("F32", [2, 1], struct.pack("<2f", 1.5, -2.5)),
    "float16": ("F16", [3], struct.pack("<3e", 1.5, -2.5, 65504)),
    "bfloat16": ("BF16", [1], b"\x80\x3f"),
    "int64": ("I64", [], struct.pack("<q", -2**62)),
    "int32": ("I32", [1, 1, 1], struct.pack("<i", -2**30)),
    "int8": ("I8", [3], b"\x80\x00\x7f"),
    "uint8": ("U8", [3], b"\x00\x80\xff"),
    "bool": ("BOOL", [2], b"\x00\x01"),
    "empty": ("F32", [0, 3], b""),
    "naïve \"name\"\n": ("U8", [1], b"\x01"),
}
METADATA = {"format": "pt", "naïve": "\"quoted\"\\\n"}


class Interchange(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.given = Path(folder.name) / "given"
        self.copied = Path(folder.name) / "copied"

    def copy(self):
        return subprocess.run(
            [os.environ["LOCKSTEP_SAFETENSORS_COPY"], self.given, self.copied],
            capture_output=True, text=True, check=False)

    def test_every_type_survives_both_ways(self):
        plain_safetensors.write(self.given, TENSORS, METADATA)
        result = self.copy()
        self.assertEqual(result.stderr, "")
        tensors, metadata = plain_safetensors.read(self.copied)
        self.assertEqual(tensors, TENSORS)
        self.assertEqual(metadata, METADATA)
        (length,) = struct.unpack("<Q", self.copied.read_bytes()[:8])
        self.assertEqual(length % 8, 0)

    def test_the_reference_implementation_reads_it(self):
        try:
            from safetensors import safe_open
        except ImportError:
            self.skipTest("this Python has no safetensors package")
        plain_safetensors.write(self.given, TENSORS, METADATA)
        self.copy()
        with safe_open(self.copied, framework="np") as file:
            self.assertEqual(set(file.keys()), set(TENSORS))
            self.assertEqual(file.metadata(), METADATA)

    def test_a_damaged_file_is_refused_by_name(self):
        plain_safetensors.write(self.given, TENSORS, METADATA)
        self.given.write_bytes(self.given.read_bytes()[:-1])
        result = self.copy()
        self.assertEqual(result.returncode, 1)
        self.assertIn(str(self.given), result.stderr)
        self.assertFalse(self.copied.exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
