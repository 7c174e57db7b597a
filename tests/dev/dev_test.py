"""Runs ./dev and its scripts on machines that are made up: programs in a folder
at the front of the path stand for what is, or is not, installed."""
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


class Machine(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def program(self, name, body):
        path = self.folder / name
        path.write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
        path.chmod(0o755)

    def libtorch(self, version):
        folder = self.folder / f"libtorch-{version}"
        header = folder / "include/torch/headeronly/version.h"
        header.parent.mkdir(parents=True)
        parts = zip(("MAJOR", "MINOR", "PATCH"), version.split("."))
        header.write_text("".join(f"#define TORCH_VERSION_{name} {number}\n"
                                  for name, number in parts),
                          encoding="utf-8")
        (folder / "lib").mkdir()
        (folder / "lib/libtorch_cpu.so").touch()
        return folder

    def run_script(self, *command, **variables):
        path = f"{self.folder}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, **variables}
        return subprocess.run(
            [REPOSITORY / command[0], *command[1:]], env=environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False)


class FindTorch(Machine):
    def find(self, folder):
        return self.run_script("scripts/find_torch",
                               LOCKSTEP_TORCH=str(folder))

    def test_takes_the_named_libtorch(self):
        folder = self.libtorch("2.11.0")
        self.assertEqual(self.find(folder).stdout.splitlines()[0],
                         str(folder.resolve()))

    def test_refuses_an_old_libtorch_by_name_and_version(self):
        folder = self.libtorch("2.10.1")
        result = self.find(folder)
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn(f"LOCKSTEP_TORCH={folder} is 2.10.1: too old",
                      result.stderr)

    def test_says_where_no_libtorch_is(self):
        result = self.find(self.folder)
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"LOCKSTEP_TORCH={self.folder} holds no LibTorch",
                      result.stderr)

    def test_takes_the_torch_of_the_python_on_the_path(self):
        self.program("python3", "echo 2.12.0+cpu /opt/torch")
        result = self.run_script("scripts/find_torch", LOCKSTEP_TORCH="")
        self.assertEqual(result.stdout,
                         f"/opt/torch\n{self.folder / 'python3'}\n")


class FindTorchWithCuda(Machine):
    def find(self, folder):
        return self.run_script("scripts/find_torch", "--cuda",
                               LOCKSTEP_TORCH=str(folder))

    def test_takes_the_named_libtorch_that_has_cuda(self):
        folder = self.libtorch("2.11.0")
        (folder / "lib/libtorch_cuda.so").touch()
        self.assertEqual(self.find(folder).stdout.splitlines()[0],
                         str(folder.resolve()))

    def test_refuses_one_that_has_not(self):
        folder = self.libtorch("2.11.0")
        result = self.find(folder)
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertRegex(result.stderr,
                         f"LOCKSTEP_TORCH={folder} is without CUDA\n.*next: ")

    def test_takes_the_torch_of_the_python_on_the_path_if_it_has_cuda(self):
        folder = self.libtorch("2.12.0")
        (folder / "lib/libtorch_cuda.so").touch()
        self.program("python3", f"echo 2.12.0 {folder}")
        result = self.run_script("scripts/find_torch", "--cuda",
                                 LOCKSTEP_TORCH="")
        self.assertEqual(result.stdout,
                         f"{folder}\n{self.folder / 'python3'}\n")


class FindNccl(Machine):
    def setUp(self):
        super().setUp()
        self.program("nvcc", "echo 'Cuda tools, release 13.0, V13.0.88'")

    def find(self, folder):
        return self.run_script("scripts/find_nccl", LOCKSTEP_NCCL=str(folder))

    def test_takes_the_named_nccl(self):
        for name in ("include/nccl.h", "lib/libnccl.so.2"):
            (self.folder / name).parent.mkdir()
            (self.folder / name).touch()
        result = self.find(self.folder)
        self.assertEqual(result.stdout, f"{self.folder.resolve()}\n",
                         result.stderr)

    def test_says_where_no_nccl_is(self):
        result = self.find(self.folder)
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn(f"LOCKSTEP_NCCL={self.folder} holds no NCCL",
                      result.stderr)

    def test_without_a_toolkit_it_names_the_package(self):
        self.program("nvcc", "exit 127")
        result = self.find(self.folder)
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertRegex(result.stderr, "no nvcc .*\n.*cuda-toolkit-13-0")


class InstallPackages(Machine):
    def setUp(self):
        super().setUp()
        self.program("dpkg-query", "echo installed cmake")

    def install(self):
        return self.run_script("scripts/install_packages", "build")

    def test_without_root_or_sudo_it_prints_the_command_and_stops(self):
        self.program("id", "echo 1000")
        self.program("sudo", "exit 1")
        result = self.install()
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertRegex(result.stderr, r"apt-get install .*\bg\+\+ .*ninja")
        self.assertNotIn("cmake", result.stderr)

    def test_without_root_it_asks_sudo(self):
        self.program("id", "echo 1000")
        self.program("sudo", f'echo "$@" >>{self.folder}/asked')
        result = self.install()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("apt-get", (self.folder / "asked").read_text())
        self.assertRegex(result.stdout, r"ninja-build +runs the build")

    def test_as_root_it_updates_the_lists_once_if_they_are_too_old(self):
        self.program("id", "echo 0")
        self.program("apt-get", f'echo "$@" >>{self.folder}/calls\n'
                     f"[ $(wc -l <{self.folder}/calls) -gt 1 ]")
        result = self.install()
        self.assertEqual(result.returncode, 0, result.stderr)
        calls = (self.folder / "calls").read_text().splitlines()
        self.assertEqual(["update" in call for call in calls],
                         [False, True, False])


class Dev(Machine):
    def test_help_names_every_verb(self):
        text = self.run_script("dev").stdout
        for verb in ("setup", "build", "train", "test", "test faults", "check",
                     "sanitize", "bench", "clean"):
            self.assertRegex(text, rf"(?m)^  {verb} ")

    def test_an_unknown_verb_is_a_usage_error(self):
        result = self.run_script("dev", "tset")
        self.assertEqual(result.returncode, 2)
        self.assertIn('unknown verb "tset"', result.stderr)

    def test_an_unknown_benchmark_is_named(self):
        result = self.run_script("dev", "bench", "nonesuch")
        self.assertEqual(result.returncode, 2)
        self.assertIn('unknown benchmark "nonesuch"', result.stderr)


if __name__ == "__main__":
    unittest.main()
