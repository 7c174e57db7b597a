"""The benchmark `growth` as ./dev starts it, with the few rounds of "quick":
that its programs and their peers still fit together."""
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

DRIVER = os.environ["LOCKSTEP_GROWTH"]
PROGRAMS = os.environ["LOCKSTEP_BENCHMARK_PROGRAMS"]
sys.path.insert(0, str(Path(DRIVER).parent))
import side_by_side  # noqa: E402
KEYS = {"case", "metric", "unit", "ours", "peer", "peer_name", "ratio",
        "better", "target", "met"}


def run(folder, *arguments):
    """Rows go to the test's own folder, beside which the build is."""
    build = folder / "build"
    build.mkdir(exist_ok=True)
    if not (build / "benchmarks").exists():
        (build / "benchmarks").symlink_to(PROGRAMS)
    return subprocess.run(
        [DRIVER, *arguments],
        env={**os.environ, "LOCKSTEP_BUILD": str(build),
             "LOCKSTEP_RESULTS": str(folder / "bench")},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=240)


class Rows(unittest.TestCase):
    def met(self, ours, peer, better="lower"):
        table = side_by_side.Table("rows")
        with contextlib.redirect_stdout(io.StringIO()):
            table.add("a case", "cost", "µs", ours, peer, "a peer",
                      better=better, target=1)
        return table.rows[-1]["met"]

    def test_meet_their_target_or_miss_it(self):
        self.assertIs(self.met(1, 2), True)
        self.assertIs(self.met(0, 2), True)
        self.assertIs(self.met(3, 2), False)
        self.assertIs(self.met(3, 2, "higher"), True)

    def test_below_zero_are_not_judged(self):
        for ours, peer in ((-1, 2), (1, -2), (-1, -2)):
            for better in ("lower", "higher"):
                self.assertIsNone(self.met(ours, peer, better))


class Growth(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    @unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun")
    def test_holds_every_kind_of_growth_against_a_peer(self):
        result = run(self.folder, "quick")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        rows = json.loads((self.folder / "bench/growth.json").read_text())
        for row in rows:
            self.assertEqual(set(row), KEYS)
            # A difference of two times, whose sign a busy machine may change.
            if row["metric"] != "cost a parameter":
                self.assertGreater(row["peer"], 0, row)
            if row["target"] is not None:
                judged = row["ours"] >= 0 and row["peer"] >= 0
                self.assertEqual(
                    row["met"],
                    row["ratio"] <= row["target"] if judged else None)
        cases = {row["case"] for row in rows}
        for case in ("10 parameters, 2 ranks", "1,000 parameters, 2 ranks",
                     "all_reduce 4 B, 1 rank", "all_reduce 4 B, 2 ranks",
                     "all_reduce 1 MiB, 2 ranks", "all_reduce 4 B, 4 ranks"):
            self.assertIn(case, cases)
        bounds = [row for row in rows if row["peer_name"] == "the bound"]
        self.assertEqual([row["unit"] for row in bounds], ["µs", "µs"])

    def test_refuses_what_it_does_not_know(self):
        result = run(self.folder, "quik")
        self.assertEqual(result.returncode, 1)
        self.assertIn("growth takes nothing, or quick", result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
