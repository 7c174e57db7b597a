"""Runs ./dev and its scripts on simulated machines: programs in a folder at the
front of the path replace installed ones, or show what is missing."""
import os
import re
import shutil
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
        self.repository = REPOSITORY

    def program(self, name, body):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
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

    def libtorch_with_cuda(self, version):
        folder = self.libtorch(version)
        (folder / "lib/libtorch_cuda.so").touch()
        return folder

    def copy_of_scripts(self):
        """A repository with only the scripts, where a test may build."""
        self.repository = self.folder / "repository"
        for folder in ("scripts", "tests"):
            (self.repository / folder).mkdir(parents=True)
        shutil.copy(REPOSITORY / "dev", self.repository)
        shutil.copy(REPOSITORY / "tests/allowed_skips",
                    self.repository / "tests")
        for script in (REPOSITORY / "scripts").iterdir():
            if script.is_file():
                shutil.copy(script, self.repository / "scripts")

    def run_script(self, *command, **variables):
        path = f"{self.folder}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, **variables}
        return subprocess.run(
            [self.repository / command[0], *command[1:]], env=environment,
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


    def test_takes_no_torch_with_cuda_that_was_not_named(self):
        self.copy_of_scripts()
        text = (self.repository / "scripts/find_torch").read_text()
        version = re.search(r" version=([\d.]+)$", text, re.M)[1]
        self.program("repository/build/venv/bin/python3",
                     f"echo {version}+cpu /opt/cpu/torch")
        (self.repository / f"build/venv/.torch-{version}+cpu+torchvision").touch()
        with_cuda = self.libtorch_with_cuda("2.12.0")
        self.program("python3", f"echo 2.12.0 {with_cuda}")
        result = self.run_script("scripts/find_torch", LOCKSTEP_TORCH="")
        python = self.repository / "build/venv/bin/python3"
        self.assertEqual(result.stdout, f"/opt/cpu/torch\n{python}\n")
        self.assertIn("has CUDA", result.stderr)

    def test_takes_one_with_cuda_that_was_named_and_says_what_it_costs(self):
        folder = self.libtorch_with_cuda("2.12.0")
        result = self.find(folder)
        self.assertEqual(result.stdout.splitlines()[0], str(folder.resolve()))
        self.assertIn("has CUDA: tests on the fake GPU skip", result.stderr)


class FindTorchWithCuda(Machine):
    def find(self, folder):
        return self.run_script("scripts/find_torch", "--cuda",
                               LOCKSTEP_TORCH=str(folder))

    def test_takes_the_named_libtorch_that_has_cuda(self):
        folder = self.libtorch_with_cuda("2.11.0")
        self.assertEqual(self.find(folder).stdout.splitlines()[0],
                         str(folder.resolve()))

    def test_refuses_one_that_has_not(self):
        folder = self.libtorch("2.11.0")
        result = self.find(folder)
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertRegex(result.stderr,
                         f"LOCKSTEP_TORCH={folder} is without CUDA\n.*next: ")

    def test_takes_the_torch_of_the_python_on_the_path_if_it_has_cuda(self):
        folder = self.libtorch_with_cuda("2.12.0")
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


class Build(Machine):
    """./dev build with a simulated plan of ninja."""

    def setUp(self):
        super().setUp()
        self.copy_of_scripts()
        self.program("cmake", "true")
        self.program("dpkg-query", "awk '/^[a-z]/ {print \"installed \" $2}' "
                     f"{self.repository}/scripts/packages")
        self.torch = self.libtorch("2.12.0")

    def build_of(self, plain, with_torch):
        lines = (["c++ -o a.o -c a.cc"] * plain
                 + ["c++ -include torch_pch.h -o b.o -c b.cc"] * with_torch
                 + ["c++ a.o b.o -o program"])
        self.program("ninja", '[[ " $* " == *" -t commands"* ]] || exit\n'
                     "cat <<'PLAN'\n" + "\n".join(lines) + "\nPLAN")
        result = self.run_script("dev", "build", "release", LOCKSTEP_JOBS="2",
                                 LOCKSTEP_TORCH=str(self.torch))
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_says_how_long_a_long_build_will_take(self):
        self.assertIn("build: 140 files to compile, about 6 min on 2 cores",
                      self.build_of(plain=100, with_torch=40))

    def test_counts_no_file_that_is_compiled(self):
        objects = self.repository / "build" / "release"
        objects.mkdir(parents=True)
        (objects / "b.o").touch()
        self.assertIn("build: 100 files to compile",
                      self.build_of(plain=100, with_torch=40))

    def test_says_nothing_of_a_short_one(self):
        self.assertNotIn("to compile", self.build_of(plain=3, with_torch=1))


def gtest(reason):
    return f"test.cc:1: Skipped\n{reason}\n\n[  SKIPPED ] A.B (0 ms)\n"


class Skips(Machine):
    """./dev test with the real ctest, and simulated tests."""

    def setUp(self):
        super().setUp()
        self.copy_of_scripts()
        self.program("cmake", "echo -- left out: some.test, for want of luck")
        self.program("dpkg-query", "awk '/^[a-z]/ {print \"installed \" $2}' "
                     f"{self.repository}/scripts/packages")
        self.torch = self.libtorch("2.12.0")
        self.build = self.repository / "build/dev"
        self.build.mkdir(parents=True)

    def add_test(self, name, output, code=0, properties=""):
        (self.build / name).write_text(output, encoding="utf-8")
        with (self.build / "CTestTestfile.cmake").open("a") as file:
            file.write(f"add_test({name} sh -c \"cat {self.build}/{name}; "
                       f"exit {code}\")\n")
            if properties:
                file.write(f"set_tests_properties({name} PROPERTIES "
                           f"{properties})\n")

    def add_gtest(self, name, reason):
        self.add_test(name, gtest(reason), properties=
                      'SKIP_REGULAR_EXPRESSION "\\\\[  SKIPPED \\\\]"')

    def run_tests(self, **variables):
        return self.run_script(
            "dev", "test", LOCKSTEP_TORCH=str(self.torch),
            **{"LOCKSTEP_ALLOW_SKIPS": "", **variables})

    def assert_refused(self, name, reason, allowing):
        result = self.run_tests()
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertRegex(result.stdout, rf"a failure:\n  {reason}\n    {name}\n")
        self.assertIn("LOCKSTEP_ALLOW_SKIPS=", result.stdout)
        result = self.run_tests(LOCKSTEP_ALLOW_SKIPS=allowing)
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertRegex(result.stdout, rf"allows:\n  {reason}\n    {name}\n")

    def test_of_suites_on_the_fake_gpu_are_failures(self):
        self.add_gtest("Cuda.Adds", "LibTorch has a CUDA of its own")
        self.assert_refused("Cuda.Adds", "LibTorch has a CUDA of its own",
                            "CUDA of its own")

    def test_of_one_test_of_a_suite_in_one_process_is_a_failure(self):
        self.add_test("Cuda", "[ RUN      ] Cuda.Adds\n[       OK ] Cuda.Adds (0 ms)\n"
                      "[ RUN      ] Cuda.Copies\n" + gtest("no GPU"))
        self.assert_refused("Cuda.Copies", "no GPU", "^Cuda.Copies$")

    def test_are_sought_in_the_suite_of_a_test_without_a_name(self):
        self.add_test("Cuda", "all of the suite\n")
        self.add_test("Other", "not these\n")
        result = self.run_script("dev", "test", "Cuda.Copies",
                                 LOCKSTEP_TORCH=str(self.torch))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("out of 1", result.stdout)

    def test_of_programs_are_failures(self):
        self.add_test("golden.a", "skipped: LOCKSTEP_PYTHON is not set\n", 77,
                      "SKIP_RETURN_CODE 77")
        self.assert_refused("golden.a", "LOCKSTEP_PYTHON is not set",
                            "^golden")

    def test_of_single_cases_in_tests_that_pass_are_failures(self):
        self.add_test("train.a", "x" * 100_000 + "\n"
                      "test_b (c.D.test_b) ... skipped 'no torch'\n\n"
                      "OK (skipped=1)\n")
        self.assert_refused("train.a", "no torch", "train")

    def test_without_a_reason_are_failures(self):
        self.add_test("train.b", "..s\nOK (skipped=2)\n")
        self.assert_refused("train.b", "2 of its cases.*", "train")

    def test_for_reasons_that_are_listed_are_named_and_pass(self):
        self.add_test("hosts.a", "hosts: cannot be made here: no right\n", 77,
                      "SKIP_RETURN_CODE 77")
        self.add_test("passes", "all is well\n")
        result = self.run_tests()
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertRegex(result.stdout,
                         r"allows:\n  hosts: cannot be .* right\n    hosts.a\n")
        self.assertIn("left out: some.test, for want of luck", result.stdout)

    def test_of_no_test_are_not_spoken_of(self):
        self.add_test("passes", "all is well\n")
        result = self.run_tests()
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertNotIn("skipped", result.stdout)

    def test_do_not_hide_a_failure(self):
        self.add_test("fails", "hosts: cannot be made here: no right\n", 3)
        result = self.run_tests()
        self.assertNotEqual(result.returncode, 0, result.stdout)


if __name__ == "__main__":
    unittest.main()
