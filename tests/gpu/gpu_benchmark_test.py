"""./dev bench gpu with simulated contenders on simulated cards."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "benchmarks"))
import side_by_side  # noqa: E402

# The host's part is that of the device where its queue is full. Keeps all requests.
STEP = """#!{python}
import json, os, sys
model, batch, way, precision, prefix = sys.argv[1:]
ours = 1 + (way != "libtorch")
answers = {{"steps": {{"step_ms": 30 * ours, "host_ms": 30 * ours}},
           "host": {{"host_ms": 5 * ours}}, "loss": {{"loss": 2.3}}}}
with open(prefix + ".0") as requests, open("{folder}/" + way, "a") as asked:
    for request in requests:
        if os.environ.get("FAILS") == precision:
            sys.exit("no memory")
        asked.write(request)
        asked.flush()
        print(json.dumps(answers[request.split()[0]]), flush=True)
"""
LOCKSTEP = """#!/bin/bash
[ "$LOCKSTEP_CHECK" = all ] && time=6 || time=5
row="{\\"p50_us\\": $time}"
echo "{\\"backends\\": [{\\"rows\\": [$row, $row, $row]}]}"
"""


class Benchmark(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.program("benchmarks/lockstep_gpu_step",
                     STEP.format(python=sys.executable, folder=self.folder))
        self.program("bin/lockstep", LOCKSTEP)
        self.gpus(1)

    def program(self, name, text):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def gpus(self, count):
        lines = "".join(f"echo GPU {i}: NVIDIA H200\n" for i in range(count))
        self.program("path/nvidia-smi", "#!/bin/bash\n" + lines)

    def bench(self, *words, status=0, **variables):
        """The rows."""
        result = subprocess.run(
            [sys.executable, REPOSITORY / "benchmarks/gpu", *words], check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=200, env={
                **os.environ, "PATH": f"{self.folder}/path:{os.environ['PATH']}",
                "LOCKSTEP_BUILD": str(self.folder), "LOCKSTEP_PYTHON": "",
                "LOCKSTEP_RESULTS": str(self.folder), **variables})
        self.assertEqual(result.returncode, status, result.stdout)
        self.said = result.stdout
        return json.loads((self.folder / "gpu.json").read_text())

    def test_measures_the_hosts_part_of_a_step_on_an_idle_gpu(self):
        found = {row["metric"]: (row["ours"], row["peer"])
                 for row in self.bench("quick")}
        self.assertEqual(found["host's part, idle GPU"], (10, 5))
        self.assertEqual(found["host's part"], found["step"])
        # Losses are those of the same steps.
        for way in ("ddp", "graph", "libtorch"):
            asked = (self.folder / way).read_text().splitlines()
            self.assertEqual(asked[:3], ["steps 6", "loss", "steps 10"])

    def test_leaves_out_the_check_of_calls_where_ranks_share_a_gpu(self):
        self.assertNotIn("compared", {row["metric"] for row in self.bench("quick")})
        self.assertIn("left out: what it costs to compare calls", self.said)

    def test_measures_the_check_of_calls_between_two_gpus(self):
        self.gpus(2)
        found = [row for row in self.bench("quick") if row["metric"] == "compared"]
        self.assertEqual([(row["ours"], row["peer"]) for row in found], [(6, 5)] * 3)
        self.assertEqual(found[0]["case"], "all_reduce of 4 bytes, 2 GPUs")

    def test_keeps_the_rows_of_other_cases_where_one_fails(self):
        rows = self.bench(status=1, FAILS="float32")
        figures = {row["case"]: row["ours"] for row in rows if row["metric"] == "step"}
        self.assertEqual(list(figures.values()), [60, 60, None, None, None])
        self.assertIn("no memory", self.said)

    def test_ends_contenders_that_have_not_begun_to_listen_where_one_fails(self):
        late = side_by_side.start_ranks("late", ["sleep", "1000"], 1, pinned=False)
        with self.assertRaisesRegex(RuntimeError, "another"), late:
            raise RuntimeError("another has failed")
        self.assertEqual(late.processes[0].returncode, -signal.SIGTERM)

    def test_leaves_no_rows_of_an_earlier_run(self):
        self.bench("quick")
        (self.folder / "benchmarks/lockstep_gpu_step").unlink()
        self.assertEqual(self.bench("quick", status=1), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
