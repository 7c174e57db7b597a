"""The benchmark `checkpoint` as ./dev starts it, with the small model of
"quick"."""
import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

DRIVER = os.environ["LOCKSTEP_CHECKPOINT_BENCH"]
BUILD = os.environ["LOCKSTEP_BUILD"]


class Checkpoint(unittest.TestCase):
    def test_holds_shards_against_one_file_and_a_step(self):
        with tempfile.TemporaryDirectory() as folder:
            result = subprocess.run(
                [DRIVER, "quick"],
                env={**os.environ, "LOCKSTEP_RESULTS": folder},
                stdin=subprocess.DEVNULL, capture_output=True, text=True,
                check=False, timeout=240)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            # Its checkpoints are gone.
            self.assertEqual(os.listdir(folder), ["checkpoint.json"])
            rows = json.loads(Path(folder, "checkpoint.json").read_text())
        cases = ["quick parameters, SGD with momentum",
                 "quick parameters, sharded AdamW"]
        for case in cases:
            metrics = [row["metric"] for row in rows if row["case"] == case]
            self.assertEqual(metrics, ["save()", "save()", "all that it costs",
                                       "load", "peak, saving", "peak, loading"])
        judged = [row for row in rows if row["target"] is not None]
        self.assertEqual(len(judged), 3 * len(cases))
        for row in judged:
            self.assertGreater(row["ours"], 0, row)
            self.assertEqual(row["met"], row["ratio"] <= row["target"], row)


if __name__ == "__main__":
    unittest.main(verbosity=2)
