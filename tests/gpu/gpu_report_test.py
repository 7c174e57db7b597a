"""gpu_report, and gpu_bundle on a simulated machine."""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = REPOSITORY / "scripts"
sys.path.insert(0, str(SCRIPTS / "gpu"))
import cut_dataset  # noqa: E402

PAGE = "# On a GPU\n\n<!-- gpu_report begins -->\nold\n<!-- gpu_report ends -->\n\n## How\n"


def part(name, outcome="passed", **other):
    return {"name": name, "layer": "Lockstep", "outcome": outcome, "seconds": 3.2,
            "failed": outcome == "FAILED", "reason": "", "results": [], **other}


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)


class Report(Folder):
    def setUp(self):
        super().setUp()
        self.page = self.folder / "gpu.md"
        self.page.write_text(PAGE, encoding="utf-8")

    def write(self, out, stage, *parts, card=True, commit="0123456789abcdef",
              whole=()):
        folder = self.folder / out
        folder.mkdir(exist_ok=True)
        (folder / f"{stage}.json").write_text(json.dumps(
            {"stage": stage, "date": "2026-12-01", "card": card,
             "cards": ["NVIDIA H200, 580.1"] if card else [],
             "commit": commit, "whole": whole, "parts": parts}))
        return folder

    def report(self, *folders, status=0):
        result = subprocess.run(
            [SCRIPTS / "gpu_report", "--page", self.page, *folders],
            capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, status, result.stderr)
        self.said = result.stderr
        return self.page.read_text(encoding="utf-8")

    def test_takes_the_place_of_the_last_one_alone(self):
        out = self.write("out", "smoke", part("lockstep doctor"))
        text = self.report(out)
        self.assertNotIn("old", text)
        self.assertTrue(text.startswith("# On a GPU\n\n<!-- gpu_report begins"))
        self.assertTrue(text.endswith("<!-- gpu_report ends -->\n\n## How\n"))
        self.assertEqual(self.report(out), text)

    def test_names_the_card_the_commit_and_what_failed(self):
        out = self.write("out", "ranks", part("Cuda, 2 ranks"), part(
            "kill -9", "FAILED", reason="a | b"))
        text = self.report(out)
        self.assertIn("2026-12-01, NVIDIA H200, 580.1; Lockstep at 0123456789ab: "
                      "1 of 2 parts did not fail", text)
        self.assertIn("| kill -9 | Lockstep | **FAILED** | 3 | a \\| b |", text)
        self.assertIn("Not run: smoke, compare, speed, faults.", text)

    def test_names_parts_that_did_not_run(self):
        first = self.write("a", "smoke", part("doctor"), whole=("doctor", "plug-in"))
        self.assertIn("\nParts not run: smoke: plug-in.\n", self.report(first))
        second = self.write("b", "smoke", part("plug-in"), whole=("doctor", "plug-in"))
        self.assertNotIn("Parts not run", self.report(first, second))

    def test_shows_numbers_beside_pytorchs(self):
        out = self.write("out", "compare", part("mlp", results=[
            {"what": "gradients", "unit": "apart", "ours": 1.5e-7,
             "theirs": 1e-7, "limit": 1e-5, "met": True},
            {"what": "parameters", "ours": float("nan"), "met": False},
            {"what": "memory", "unit": "MiB", "ours": 2512, "theirs": 2600}]))
        text = self.report(out)
        self.assertIn("| gradients | apart | 1.5e-07 | 1e-07 | 1e-05 | met |", text)
        self.assertIn("| parameters |  | nan | - | - | **missed** |", text)
        self.assertIn("| memory | MiB | 2,512 | 2,600 | - |  |", text)

    def test_shows_the_rows_of_the_benchmark(self):
        out = self.write("out", "speed", part("./dev bench gpu"))
        (out / "gpu.json").write_text(json.dumps([
            {"case": "resnet18", "metric": "step", "unit": "ms", "ours": 5.0,
             "peer": 4.0, "peer_name": "LibTorch alone", "ratio": 1.25,
             "target": 1.01, "met": False}]))
        self.assertIn("| resnet18 | step, ms | 5 | 4 | LibTorch alone | 1.25 | "
                      "1.01 | **missed** |", self.report(out))

    def test_takes_repeated_parts_of_the_last_folder(self):
        first = self.write("a", "faults", part("hang"), part("death", "FAILED"))
        second = self.write("b", "faults", part("death"))
        self.assertIn("1 of 2 parts did not", self.report(first))
        self.assertIn("2 of 2 parts did not", self.report(first, second))
        self.assertIn("1 of 2 parts did not", self.report(second, first))

    def test_names_the_commits_of_all_parts(self):
        first = self.write("a", "faults", part("hang"), part("death"), commit="aaaa")
        second = self.write("b", "faults", part("death"), commit="bbbb")
        self.assertIn("Lockstep at aaaa, bbbb: 2 of 2", self.report(first, second))
        third = self.write("c", "faults", part("hang"), commit="cccc")
        self.assertIn("at bbbb, cccc: 2 of 2", self.report(first, second, third))

    def test_says_that_there_was_no_card(self):
        out = self.write("out", "smoke", part("plug-in", "skipped"), card=False)
        self.assertIn("Stages ran without a card", self.report(out))

    def test_refuses_a_folder_without_stages_and_a_page_without_marks(self):
        self.report(self.folder, status=1)
        self.assertIn("no stage of gpu_check's", self.said)
        self.page.write_text("# On a GPU\n", encoding="utf-8")
        self.report(self.write("out", "smoke", part("a")), status=1)
        self.assertIn("lacks the marks", self.said)

    def test_has_its_marks_in_our_page(self):
        shutil.copy(REPOSITORY / "docs/results/gpu.md", self.page)
        self.assertIn("parts did not", self.report(
            self.write("out", "smoke", part("a"))))


class Dataset(unittest.TestCase):
    def test_keeps_the_beginning_in_its_format(self):
        images = struct.pack(">4I", 0x803, 5, 2, 3) + bytes(range(30))
        self.assertEqual(cut_dataset.cut(images, 3, 2),
                         struct.pack(">4I", 0x803, 2, 2, 3) + bytes(range(12)))
        self.assertEqual(cut_dataset.cut(images, 3, 9), images)


class Bundle(Folder):
    """The scripts in a repository without builds."""

    def setUp(self):
        super().setUp()
        self.repository = self.folder / "repository"
        for name in ("scripts", "benchmarks", "tests/train"):
            shutil.copytree(REPOSITORY / name, self.repository / name,
                            ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("dev", "scripts/install_packages"):
            self.program(name, "")
        self.program("scripts/find_torch", "echo /torch")
        self.program("scripts/find_nccl", "echo /nccl")
        self.program("scripts/gpu/cut_dataset.py", 'echo images >"$2/images.gz"')
        self.program("path/strip", "")
        self.program("path/git", "echo 0123456789abcdef")
        built = "build/cuda/"
        for name in ("bin/lockstep-bench", "bin/lockstep-evaluate",
                     "bin/lockstep-train", "bin/liblockstep_nccl.so",
                     "src/comm/lockstep_comm_ranks",
                     "src/comm/lockstep_comm_test",
                     "src/comm/lockstep_plugin_nccl_test",
                     "src/torch/lockstep_torch_test",
                     "src/evaluate/lockstep_evaluate_test",
                     "apps/trainer/lockstep_trainer_test",
                     "tests/gpu/lockstep_compare_rank",
                     "tests/gpu/lockstep_fault_on_gpu",
                     "benchmarks/lockstep_gpu_step"):
            self.program(built + name, "")
        self.program(built + "bin/lockstep",
                     'echo "$(realpath "$0") $1 with $LD_LIBRARY_PATH"')

    def program(self, name, body):
        path = self.repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
        path.chmod(0o755)

    def bundle(self):
        path = f"{self.repository / 'path'}:{os.environ['PATH']}"
        return subprocess.run(
            [self.repository / "scripts/gpu_bundle"],
            env={**os.environ, "PATH": path}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False)

    def test_says_its_size_and_asks_the_doctor_of_a_moved_copy(self):
        result = self.bundle()
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertRegex(result.stdout, r"(?m)^/.*/copy/lockstep/bin/lockstep "
                         r"doctor with .*/copy/lockstep/lib:/torch/lib:/nccl/lib$")
        self.assertRegex(result.stdout, r"build/gpu_bundle: 0 MiB at commit 0123")

    def doctor_says(self, line):
        self.program("build/cuda/bin/lockstep",
                     f"echo '  ok  network'; echo '{line}'; exit 1")
        return self.bundle()

    def test_passes_where_only_what_a_driver_brings_is_missing(self):
        if Path("/proc/driver/nvidia/version").exists():
            self.skipTest("there is a GPU")
        result = self.doctor_says("  NO  LibTorch   libcudnn.so.9 is not here")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("loads where a driver is, not here", result.stdout)

    def test_fails_where_the_doctor_finds_something_else(self):
        result = self.doctor_says("  NO  backend shm   no shared memory")
        self.assertNotEqual(result.returncode, 0)

    def test_has_all_that_gpu_check_runs(self):
        self.assertEqual(self.bundle().returncode, 0)
        folder = self.repository / "build/gpu_bundle"
        self.program("path/nvidia-smi", "echo H200, 580.1")
        out = self.folder / "out"
        path = f"{self.repository / 'path'}:{os.environ['PATH']}"
        result = subprocess.run(
            [sys.executable, folder / "gpu_check", out, "smoke", "plug-in"],
            env={**os.environ, "PATH": path}, capture_output=True, text=True,
            check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        for name in ("lockstep/bin/lockstep_fault_on_gpu",
                     "lockstep/bin/liblockstep_nccl.so",
                     "lockstep/benchmarks/lockstep_gpu_step",
                     "lockstep/data/images.gz", "benchmarks/peers/gpu_step.py",
                     "gpu/plain_safetensors.py", "gpu/compare.py"):
            self.assertTrue((folder / name).exists(), name)

    def test_fails_when_it_is_too_large_to_carry(self):
        self.program("path/gzip", "head -c 60000000 /dev/zero")
        self.program("path/tar", '[ "$3" != -xzf ] || mkdir -p "$2/bin"; '
                     '[ "$3" != -xzf ] || ln -s /bin/true "$2/bin/lockstep"')
        result = self.bundle()
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("exceeds the limit of 55 MiB", result.stderr)

    def test_fails_when_the_doctor_does(self):
        self.program("build/cuda/bin/lockstep", "echo no libfmt; exit 127")
        self.assertEqual(self.bundle().returncode, 127)


if __name__ == "__main__":
    unittest.main(verbosity=2)
