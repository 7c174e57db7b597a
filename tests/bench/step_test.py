"""The benchmark `step` as ./dev starts it, with the one round of "quick": that
its programs and PyTorch's still train the same, and what it says of them."""
import importlib.machinery
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

DRIVER = os.environ["LOCKSTEP_STEP"]
PROGRAMS = os.environ["LOCKSTEP_BENCHMARK_PROGRAMS"]
sys.path.insert(0, str(Path(DRIVER).parent))


def load_driver():
    """The driver has no extension."""
    loader = importlib.machinery.SourceFileLoader("step", DRIVER)
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader("step", loader))
    loader.exec_module(module)
    return module


step = load_driver()
TRANSFORMER, CONVNET = "transformer, 2 ranks", "convnet, 2 ranks"
UNPINNED = "convnet, 2 unpinned ranks, busy process"


def run(folder, *arguments):
    """Rows go to a folder of the test's own, beside which a build lies."""
    build = folder / "build"
    build.mkdir()
    (build / "benchmarks").symlink_to(PROGRAMS)
    return subprocess.run(
        [DRIVER, *arguments],
        env={**os.environ, "LOCKSTEP_BUILD": str(build),
             "LOCKSTEP_RESULTS": str(folder / "bench")},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=280)


class Difference(unittest.TestCase):
    def setUp(self):
        self.state = {
            name: {"parameters": 10, "loss": 2.0, "grad_norm": 4.0}
            for name in (step.OURS, step.SHARDED, step.TUTORIAL, step.BEST)}

    def test_is_none_within_the_tolerances(self):
        self.state[step.OURS].update(loss=2.00009, grad_norm=4.003)
        self.assertIsNone(step.difference(self.state))

    def test_names_what_parts(self):
        for what, value in (("parameters", 11), ("loss", 2.00011),
                            ("loss", math.nan), ("grad_norm", 4.005)):
            for name in (step.OURS, step.SHARDED, step.BEST):
                with self.subTest(what=what, value=value, name=name):
                    self.setUp()
                    self.state[name][what] = value
                    self.assertIn(what, step.difference(self.state))


class Step(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_trains_as_pytorch_does_and_holds_it_against_every_peer(self):
        result = run(self.folder, "quick", "--models", "transformer,convnet")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        rows = json.loads((self.folder / "bench/step.json").read_text())
        for row in rows:
            self.assertGreater(row["ours"], 0, row)
            self.assertGreater(row["peer"], 0, row)
        targets = {(row["case"], row["metric"], row["peer_name"]): row["target"]
                   for row in rows}
        self.assertEqual(len(targets), len(rows))
        for case, target in ((TRANSFORMER, 1 / 1.05), (CONVNET, 1 / 1.05),
                             (f"{TRANSFORMER}, sharded", None)):
            self.assertEqual(targets[case, "step", step.THREADS], target)
        for case in (f"{CONVNET}, busy process", UNPINNED):
            self.assertIsNone(targets[case, "mean step", step.THREADS])
        for peer in (step.ALONE, step.APART):
            self.assertIsNone(targets[TRANSFORMER, "step", peer])
        if os.environ["LOCKSTEP_PYTHON"]:
            self.assertIn("transformer: loss after 10 steps", result.stdout)
            for peer, target in ((step.TUTORIAL, None), (step.BEST, 0.85),
                                 (step.BEST_KEEPING, None)):
                self.assertEqual(targets[TRANSFORMER, "step", peer], target)

    def test_refuses_what_it_does_not_know(self):
        for case, (arguments, words) in enumerate((
                (["quik"], "quik"),
                (["--models", "cnn,vgg"], '"vgg"; known: cnn'))):
            with self.subTest(arguments=arguments):
                folder = self.folder / str(case)
                folder.mkdir()
                result = run(folder, *arguments)
                self.assertEqual(result.returncode, 2)
                self.assertIn(words, result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
