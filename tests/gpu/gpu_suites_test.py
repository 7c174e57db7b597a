"""Every suite of tests with a GPU per rank is in a part of gpu_check: a part names
its suites, so a new suite would run on no card."""
import re
import sys
import unittest
from fnmatch import fnmatchcase
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "scripts/gpu"))
import stages  # noqa: E402

FIXTURES = {"CudaRanks", "GpuRanks"}
PROGRAMS = {"comm": stages.COMM_TESTS, "torch": stages.TORCH_TESTS,
            "evaluate": stages.EVALUATE_TESTS, "trainer": stages.TRAINER_TESTS}
# A class with its bases and what it says, or a second name of one.
FIXTURE = re.compile(
    r"^(?:class|struct|using) (\w+)\s*[:=]([^{;]*)(?:;|\{\};|\{(.*?)^\};)",
    re.M | re.S)
TEST = re.compile(r"^TEST_[FP]\((\w+),\s*(\w+)\) \{\n(.*?)^\}", re.M | re.S)
INSTANCE = re.compile(r"^INSTANTIATE_TEST_SUITE_P\(\s*(\w+),\s*(\w+)", re.M)
NEEDS_FAKE = re.compile(r"if \(!is_fake\(\)\)\s+GTEST_SKIP")
# Of a fixture, not of another object. One rank alone needs no part of several.
SEVERAL_RANKS = re.compile(r"(?<![.\w])run\((?!1,)")


def fixtures_in(text):
    """The fixtures with GPUs that a file may use, with what their classes say."""
    found = {fixture: "" for fixture in FIXTURES}
    for name, bases, body in FIXTURE.findall(text):
        for base in re.findall(r"\w+", bases):
            if base in found:
                found[name] = found[base] + body
    return found


class Test:
    def __init__(self, path, text, suite, name, body):
        self.program = PROGRAMS[path.relative_to(REPOSITORY).parts[1]]
        instances = {of: f"{prefix}/" for prefix, of in INSTANCE.findall(text)}
        self.suite = suite
        self.name = f"{instances.get(suite, '')}{suite}.{name}"
        self.needs_fake = NEEDS_FAKE.search(body + fixtures_in(text)[suite])
        self.has_several_ranks = SEVERAL_RANKS.search(text)

    def is_in(self, program, tests):
        wanted, _, unwanted = tests.partition("-")
        return program == self.program and any(
            fnmatchcase(self.name, pattern) for pattern in wanted.split(":")) \
            and not any(fnmatchcase(self.name, pattern)
                        for pattern in unwanted.split(":"))


def tests_in(path):
    text = path.read_text(encoding="utf-8")
    return [Test(path, text, suite, name, body)
            for suite, name, body in TEST.findall(text)
            if suite in fixtures_in(text)]


TESTS = [test for folder in ("src", "apps")
         for path in sorted((REPOSITORY / folder).rglob("*_test.cc"))
         for test in tests_in(path)]


class Suites(unittest.TestCase):
    def test_are_found(self):
        self.assertLessEqual(
            {"Nccl", "Cuda", "CudaWorld", "CudaBatches", "StrategiesOnCuda"},
            {test.suite for test in TESTS})

    def test_of_several_ranks_are_in_a_part_of_the_stage_ranks(self):
        for test in TESTS:
            if test.has_several_ranks:
                self.assertTrue(any(test.is_in(program, tests)
                                    for _, program, tests in stages.SUITES),
                                f"no part of the stage ranks has {test.name}: "
                                "add its suite to SUITES in scripts/gpu/stages.py")

    def test_above_libtorch_also_run_on_one_rank(self):
        for test in TESTS:
            if test.program != stages.COMM_TESTS:
                self.assertTrue(test.is_in(test.program, stages.ONE_RANK_TESTS),
                                f"the stage smoke lacks {test.name}")

    def test_of_a_part_are_not_all_the_fakes(self):
        for part, program, tests in stages.SUITES:
            self.assertTrue(
                any(test.is_in(program, tests) and not test.needs_fake
                    for test in TESTS),
                f"the part {part} would fail on a card, where it has no test to run")


if __name__ == "__main__":
    unittest.main(verbosity=2)
