"""The benchmark `launch` as ./dev starts it, with the one round of "quick"."""
import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

DRIVER = os.environ["LOCKSTEP_LAUNCH"]
BUILD = os.environ["LOCKSTEP_BUILD"]


class Launch(unittest.TestCase):
    def test_times_a_start_a_crash_and_a_restart(self):
        with tempfile.TemporaryDirectory() as folder:
            result = subprocess.run(
                [DRIVER, "quick"],
                # Without torchrun, whose restarts may take minutes.
                env={**os.environ, "LOCKSTEP_RESULTS": folder,
                     "LOCKSTEP_PYTHON": ""},
                stdin=subprocess.DEVNULL, capture_output=True, text=True,
                check=False, timeout=240)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            rows = json.loads(Path(folder, "launch.json").read_text())
        cases = [row["case"] for row in rows]
        self.assertEqual(cases, ["2 ranks", *["2 ranks, one killed"] * 2,
                                 *["2 ranks, a restart"] * 2,
                                 "spawn() of 2 ranks, forked",
                                 "spawn() of 2 ranks, anew",
                                 "spawn() of 2 ranks, forked",
                                 "3 ranks in place, one killed, without it",
                                 "3 ranks in place, one killed, with a new rank"])
        for row in rows:
            self.assertGreater(row["ours"], 0, row)


if __name__ == "__main__":
    unittest.main(verbosity=2)
