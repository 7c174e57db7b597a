#!/usr/bin/env python3
"""The examples without images train as well on two ranks as on one, and a run
that was stopped within an epoch ends as one that was not.

    own_data_test.py LANGUAGE_MODEL REGRESSION LOCKSTEP
"""
import math
import random
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

LANGUAGE_MODEL, REGRESSION, LOCKSTEP = sys.argv[1:]
TEXT = Path(__file__).resolve().parent.parent / "docs/guides/launchers.md"
TOLERANCE = 1e-3  # relative: the order of sums of floats depends on the ranks


def output_of(ranks, *command):
    launcher = [LOCKSTEP, "run", "-n", str(ranks)] if ranks > 1 else []
    result = subprocess.run([*launcher, *map(str, command)], text=True,
                            stdin=subprocess.DEVNULL, capture_output=True,
                            check=False)
    print(f"{ranks} ranks, {command}:\n{result.stdout}{result.stderr}")
    result.check_returncode()
    return result.stdout


def numbers(output, name):
    return [float(number) for number in
            re.findall(rf"epoch \d+:.*{name} (\d+\.\d+)", output)]


def last_words(output):
    """What every rank says at its end, without its number."""
    return re.findall(r"rank \d+: (.*)", output)


class OwnData(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def assert_close(self, ones, others):
        self.assertEqual(len(ones), len(others))
        for one, other in zip(ones, others):
            self.assertLess(abs(one - other), TOLERANCE * one)

    def assert_trains_alike(self, *command, names):
        """The outputs on one and on two ranks."""
        one, two = output_of(1, *command), output_of(2, *command)
        for name in names:
            curve = numbers(one, name)
            self.assertGreater(len(curve), 2)
            self.assertLess(curve[-1], curve[0])
            self.assert_close(curve, numbers(two, name))
        self.assertEqual(len(last_words(one)), 1)
        self.assertEqual(len(last_words(two)), 2)
        self.assertEqual(len(set(last_words(two))), 1, "on all ranks the same")
        return one, two

    def test_a_language_model_learns_a_text(self):
        one, _ = self.assert_trains_alike(
            LANGUAGE_MODEL, TEXT, names=("loss", "perplexity"))
        # The best guess without any context, from how often each byte occurs.
        text = TEXT.read_bytes()
        counts = [text.count(byte) / len(text) for byte in set(text)]
        without_context = math.exp(-sum(p * math.log(p) for p in counts))
        self.assertLess(numbers(one, "perplexity")[-1], 0.7 * without_context)

    def test_a_language_model_learns_numbers_by_default(self):
        perplexity = numbers(output_of(2, LANGUAGE_MODEL), "perplexity")
        self.assertLess(perplexity[-1], 3)

    def test_a_run_that_was_stopped_within_an_epoch_goes_on_there(self):
        whole = output_of(2, LANGUAGE_MODEL, TEXT, self.folder / "whole")
        parts = (LANGUAGE_MODEL, TEXT, self.folder / "parts")
        output_of(2, *parts, 75)
        rest = output_of(2, *parts)
        went_on = re.search(r"went on after \d+ epochs and (\d+) steps", rest)
        self.assertGreater(int(went_on[1]), 0, "not within an epoch")
        self.assertEqual(last_words(rest), last_words(whole))
        # And on another number of ranks, as a run that has ended.
        again = output_of(1, *parts)
        self.assert_close(*([float(words[0].split()[1])] for words in
                            (last_words(again), last_words(whole))))

    def test_a_regression_learns_a_function(self):
        one, _ = self.assert_trains_alike(REGRESSION, names=("error",))
        self.assertLess(numbers(one, "error")[-1], 0.3)

    def test_a_regression_learns_a_table(self):
        draw = random.Random(0).random
        rows = [(draw(), 100 * draw()) for _ in range(400)]
        table = self.folder / "table.csv"
        table.write_text("a,b,target\n" + "".join(
            f"{a},{b},{3 * a - 0.05 * b + 7}\n" for a, b in rows))
        one, _ = self.assert_trains_alike(REGRESSION, table, names=("error",))
        self.assertLess(numbers(one, "error")[-1], 0.15)

    def test_a_regression_names_the_line_that_is_no_row(self):
        table = self.folder / "table.csv"
        for line, problem in (("1,two", '"two" is no number'),
                              ("1,2,3", "the number of columns is 3")):
            table.write_text(f"1,2\n\n{line}\n")
            result = subprocess.run([REGRESSION, table], text=True, check=False,
                                    capture_output=True)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(f"{table}, line 3: {problem}", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
