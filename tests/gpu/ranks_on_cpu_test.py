"""The programs that gpu_check runs twice on a card, here on the CPU: gradients
and parameters beside PyTorch's, and ranks with injected faults."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = REPOSITORY / "scripts/gpu"
COMMAND = os.environ["LOCKSTEP_COMMAND"]
PYTHON = os.environ["LOCKSTEP_PYTHON"]


def run(python, script, *arguments, path=Path(COMMAND).parent):
    """The environment with `lockstep` on the path, as in a bundle."""
    environment = {
        **os.environ, "LOCKSTEP_TIMEOUT": "5", "OMP_NUM_THREADS": "1",
        "LOCKSTEP_COMPARE_SECONDS": "400",
        "PATH": f"{path}:{Path(COMMAND).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY / "tests/train")}
    return subprocess.run(
        [python, SCRIPTS / script, *arguments], env=environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False, timeout=900)


@unittest.skipUnless(PYTHON, "LOCKSTEP_PYTHON is not set")
class Compare(unittest.TestCase):
    def compare(self, program, *job, **keywords):
        result = run(PYTHON, "compare.py", program, "cpu", *job, **keywords)
        rows = [json.loads(line.removeprefix("RESULT "))
                for line in result.stdout.splitlines()
                if line.startswith("RESULT ")]
        return result, rows

    def test_finds_our_numbers_to_be_pytorchs(self):
        result, rows = self.compare(os.environ["LOCKSTEP_COMPARE_RANK"], "cnn",
                                    "float32", "2", "5")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertEqual([row["met"] for row in rows], [True] * 5)
        self.assertGreater(rows[-1]["theirs"], 0)

    def test_finds_others_not_to_be(self):
        # One rank's gradients instead of both ranks'.
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "program"
            program.write_text(
                "#!/bin/bash\nWORLD_SIZE=1 LOCAL_WORLD_SIZE=1\n"
                "[ $RANK = 0 ] || exit 0\nexec env -u LOCKSTEP_STORE "
                f"{os.environ['LOCKSTEP_COMPARE_RANK']} \"$@\"\n",
                encoding="utf-8")
            program.chmod(0o755)
            result, rows = self.compare(program, "cnn", "float32", "2", "5")
            self.assertEqual(result.returncode, 1, result.stdout)
            # The loss of the first step depends on the initial weights of both sides.
        self.assertEqual([row["met"] for row in rows], [True] + [False] * 4)

    def run_beside(self, card, **variables):
        """compare.py where nvidia-smi does this."""
        with mock.patch.dict(os.environ, variables), tempfile.TemporaryDirectory() \
                as folder:
            program = Path(folder) / "nvidia-smi"
            program.write_text(card, encoding="utf-8")
            program.chmod(0o755)
            result, rows = self.compare(
                os.environ["LOCKSTEP_COMPARE_RANK"], "mlp", "bfloat16", "1", "20",
                path=folder)
        self.assertEqual(result.returncode, 0, result.stdout)
        return result, rows

    def test_tells_the_memory_that_each_side_took(self):
        # The card's memory is in use while there are ranks.
        _, rows = self.run_beside("""#!/bin/bash
while :; do
  if grep -qsz "^RANK=" $(grep -lsz "^OURS=$OURS$" /proc/[0-9]*/environ); then
    echo 1503
  else
    echo 3
  fi
done
""", OURS=str(os.getpid()))
        self.assertEqual((rows[-1]["ours"], rows[-1]["theirs"], rows[-1]["met"]),
                         (1500, 1500, True))

    def test_tells_why_there_is_no_memory(self):
        result, _ = self.run_beside(
            "#!/bin/bash\nwhile echo 900; do sleep 0.1; done\n",
            LOCKSTEP_SETTLE_SECONDS="1")
        self.assertIn("other processes use the card: 900 MiB", result.stdout)

    def test_tells_whose_ranks_failed(self):
        result, _ = self.compare("/bin/false", "mlp", "float32", "1", "1")
        self.assertEqual(result.returncode, 1)
        self.assertIn("LAYER Lockstep\n", result.stdout)


class ImageFolder(unittest.TestCase):
    def test_is_trained_on_evaluated_and_predicted(self):
        for ranks in ("1", "2"):
            result = run(sys.executable, "image_folder.py", ranks, "cpu")
            self.assertEqual(result.returncode, 0, result.stdout)
            self.assertRegex(result.stdout, r"(?m)^RESULT .*predict.* \"met\": true")
            self.assertRegex(result.stdout, r"(?m)^RESULT .*after one epoch more")


class Faults(unittest.TestCase):
    def test_are_told_to_every_rank(self):
        for kind in ("hang", "death", "mismatch"):
            result = run(sys.executable, "fault.py",
                         os.environ["LOCKSTEP_FAULT_ON_GPU"], "cpu", kind)
            self.assertEqual(result.returncode, 0, result.stdout)

    def test_of_devices_are_none_of_the_cpus(self):
        for kind in ("memory", "capture"):
            result = run(sys.executable, "fault.py",
                         os.environ["LOCKSTEP_FAULT_ON_GPU"], "cpu", kind)
            self.assertEqual(result.returncode, 77, result.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
