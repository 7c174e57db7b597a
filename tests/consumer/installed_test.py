"""Tests an installed Lockstep: programs that run from any folder, wherever the
prefix was moved, and a project that builds Lockstep as a part."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests/train"))
from train_data import WithSmallData

BUILD = os.environ["LOCKSTEP_TEST_BUILD"]
TORCH = os.environ["LOCKSTEP_TEST_TORCH"]
FLAGS = os.environ["LOCKSTEP_TEST_CMAKE_FLAGS"].split(";")
TRAIN = ("--model=mlp", "--hidden=16", "--epochs=1", "--global-batch-size=32")


def plain_environment(**variables):
    """The environment of a new shell, without variables of Lockstep or a LibTorch."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith("LOCKSTEP_") and name != "LD_LIBRARY_PATH"}
    return {**kept, "OMP_NUM_THREADS": "1", **variables}


def run(*command, cwd=None, **variables):
    return subprocess.run([str(word) for word in command], cwd=cwd,
                          env=plain_environment(**variables),
                          stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, check=False)


class Installed(WithSmallData):
    prefix = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        first = Path(folder.name) / "first"
        installed = run("cmake", "--install", BUILD, "--prefix", first)
        assert installed.returncode == 0, installed.stderr
        cls.prefix = Path(folder.name) / "moved"
        first.rename(cls.prefix)

    def setUp(self):
        super().setUp()
        self.empty = self.folder / "empty"
        self.empty.mkdir()

    def lockstep(self, *words, command=None, status=0, **variables):
        result = run(command or self.prefix / "bin/lockstep", *words,
                     cwd=self.empty, **variables)
        self.assertEqual(result.returncode, status,
                         f"{words}: {result.stdout}{result.stderr}")
        return result.stdout + result.stderr

    def test_trains_evaluates_and_predicts(self):
        data = f"--data-dir={self.data}"
        self.lockstep("train", "-n", 2, data, *TRAIN, "--output=m.safetensors")
        self.assertIn("on 2 ranks", self.lockstep("evaluate", "m.safetensors",
                                                  "-n", 2, data))
        self.lockstep("predict", "m.safetensors", data, "--output=p.csv")
        self.assertTrue((self.empty / "p.csv").exists())

    def test_scales_and_measures(self):
        data = f"--data-dir={self.data}"
        said = self.lockstep("scale", "--ranks=1,2", data, "--model=mlp",
                             "--epochs=2")
        self.assertIn("speed-up", said)
        self.assertIn("all_reduce", self.lockstep(
            "bench", "all_reduce", "-n", 2, "--bytes=4..64K"))

    def test_loads_the_standard_library_before_libtorchs_copies_of_it(self):
        said = run("readelf", "-d", self.prefix / "bin/lockstep-train").stdout
        libraries = re.findall(r"\(NEEDED\).*\[(.+)\]", said)
        torch = [name for name in libraries if name.startswith("libtorch")]
        self.assertTrue(torch, said)
        self.assertLess(libraries.index("libstdc++.so.6"),
                        libraries.index(torch[0]), said)

    def test_doctor_starts_what_trains(self):
        said = self.lockstep("doctor")
        self.assertRegex(said, r"ok  LibTorch +lockstep-train \S+, LibTorch ")
        self.assertIn(str(self.prefix), said)
        self.assertIn("Training on this host works.", said)

    def test_a_torch_that_is_gone_is_told_and_another_named(self):
        copy = self.folder / "copy"
        shutil.copytree(self.prefix / "bin", copy / "bin")
        script = self.folder / "forget.cmake"
        script.write_text(f'file(RPATH_REMOVE FILE "{copy}/bin/lockstep-train")')
        self.assertEqual(run("cmake", "-P", script).returncode, 0)
        command = copy / "bin/lockstep"
        said = self.lockstep("doctor", command=command, status=1)
        self.assertRegex(said, r"NO  LibTorch .*does not start: .*libtorch")
        self.assertIn("Training on this host does not work.", said)
        self.assertIn("LOCKSTEP_TORCH", said)
        named = {"LOCKSTEP_TORCH": TORCH}
        self.assertIn("Training on this host works.",
                      self.lockstep("doctor", command=command, **named))
        self.lockstep("train", "-n", 2, f"--data-dir={self.data}", *TRAIN,
                      command=command, **named)
        self.assertIn("cannot be read", self.lockstep(
            "train", "-n", 2, command=command, status=2,
            LOCKSTEP_TORCH="/nowhere"))


class Subproject(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = Path(folder.name)

    def configure(self, how, **variables):
        return run("cmake", "-S", Path(__file__).parent / "subproject", "-B",
                   self.build, "-G", "Ninja", f"-DHOW={how}",
                   f"-DLOCKSTEP_SOURCE={REPOSITORY}", *FLAGS, **variables)

    def test_is_built_by_add_subdirectory(self):
        # The LibTorch of the python3 on the path.
        python = Path(TORCH).resolve().parents[3] / "bin"
        path = f"{python}:{os.environ['PATH']}"
        result = self.configure("add_subdirectory", PATH=path)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        built = run("cmake", "--build", self.build, "--target", "own")
        self.assertEqual(built.returncode, 0, built.stdout + built.stderr)
        self.assertEqual(run(self.build / "own").stdout, "2\n")

    def test_is_found_by_fetch_content(self):
        result = self.configure("FetchContent", LOCKSTEP_TORCH=TORCH)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_says_what_to_do_without_a_torch(self):
        result = self.configure("add_subdirectory", LOCKSTEP_TORCH="/nowhere")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn('No LibTorch at LOCKSTEP_TORCH="/nowhere"', result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
