"""lockstep run --in-place: ranks die at random moments, and the training ends with
the weights of an undisturbed one that changes its ranks at the same steps.

    elastic_test.py
    scripts/hosts 1 -- elastic_test.py --rounds N

The second form does N rounds, each one of the tests with deaths, and looks for
what they leave on the host. Round N has the seed LOCKSTEP_SEED + N, which decides
the test too, so `--rounds 1` with that seed repeats a round.
"""
import os
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "hosts"))
from fault_table import FaultTable
from leftovers import Leftovers
from training import MEASURED, lines_of, recoveries, replay

COMMAND = os.environ["LOCKSTEP_COMMAND"]
RANK = os.environ["LOCKSTEP_ELASTIC_RANK"]
SEED = int(os.environ.get("LOCKSTEP_SEED", random.SystemRandom().randrange(2**31)))
TIMEOUT = 300


class Elastic(unittest.TestCase):
    seed = SEED

    def setUp(self):
        # Another sequence for each test, the same in any order of tests.
        self.random = random.Random(f"{self.seed} {self.id()}")
        self.deaths, self.recovered = 0, []

    def start(self, flags, *arguments, **variables):
        done = subprocess.run(
            [COMMAND, "run", *flags, RANK, *arguments], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=TIMEOUT,
            env={**os.environ, "LOCKSTEP_RENDEZVOUS_TIMEOUT": "60", **variables})
        self.text = f"seed {self.seed}, {self.id()}\n{done.stdout}"
        self.deaths += len(lines_of("death", done.stdout))
        self.recovered += recoveries(done.stdout)
        return done.returncode, done.stdout

    def train(self, flags, *arguments):
        """Sizes and first steps of the groups, and the ends of all ranks."""
        code, out = self.start(flags, *arguments)
        self.assertEqual(code, 0, self.text)
        begins = sorted(lines_of("begin", out), key=lambda line: int(line["at"]))
        return ([(int(line["size"]), int(line["step"])) for line in begins],
                lines_of("end", out))

    def check(self, groups, ends, size):
        text = self.text
        self.assertEqual(len(ends), size, text)
        self.assertEqual({end["size"] for end in ends}, {str(size)}, text)
        self.assertEqual(len({end["weights"] for end in ends}), 1, text)
        self.assertEqual(len({end["step"] for end in ends}), 1, text)
        # A replay begins with worker 0's initial weights.
        self.assertEqual(ends[0]["weights"],
                         replay([COMMAND, "run"], RANK, groups, int(ends[0]["step"])),
                         f"{text}\ngroups {groups}")

    def moment(self, worker):
        """A random moment of the training, at which `worker` is killed."""
        return (f"die={worker}:{self.random.randrange(1, 60)}:"
                f"{self.random.randrange(2500)}")

    def test_goes_on_with_fewer_ranks(self):
        victim = self.random.randrange(1, 3)
        groups, ends = self.train(["-n3", "--in-place", "--min-ranks=2"],
                                  "steps=100", self.moment(victim))
        self.assertEqual([size for size, _ in groups], [3, 2], self.text)
        self.check(groups, ends, 2)

    def test_goes_on_without_rank_0_from_the_last_commit(self):
        groups, ends = self.train(["-n3", "--in-place", "--min-ranks=2"],
                                  "steps=100", "commit=7", self.moment(0))
        self.assertEqual(groups[-1][0], 2, self.text)
        self.assertEqual(groups[-1][1] % 7, 0, self.text)
        self.check(groups, ends, 2)

    def test_waits_for_a_replacement_where_all_ranks_are_needed(self):
        victim = self.random.randrange(2)
        groups, ends = self.train(["-n2", "--in-place", "--max-restarts=1"],
                                  "steps=100", self.moment(victim))
        self.assertEqual([size for size, _ in groups], [2, 2], self.text)
        self.check(groups, ends, 2)

    def test_takes_a_replacement_in_without_losing_a_step(self):
        groups, ends = self.train(
            ["-n3", "--in-place", "--min-ranks=1", "--max-restarts=1"],
            "steps=100", "size=3", self.moment(1))
        self.assertEqual([size for size, _ in groups][-2:], [2, 3], self.text)
        self.check(groups, ends, 3)

    def test_trains_alone_until_a_replacement_comes(self):
        groups, ends = self.train(
            ["-n2", "--in-place", "--min-ranks=1", "--max-restarts=1"],
            "steps=100", "size=2", self.moment(self.random.randrange(2)))
        self.assertEqual([size for size, _ in groups], [2, 1, 2], self.text)
        self.check(groups, ends, 2)

    def test_replaces_two_ranks_one_of_which_dies_in_the_second_group(self):
        groups, ends = self.train(
            ["-n3", "--in-place", "--min-ranks=2", "--max-restarts=2"],
            "steps=100", "size=3", self.moment(1), "die_reset=0")
        self.assertEqual(groups[-1][0], 3, self.text)
        self.check(groups, ends, 3)

    def test_survives_a_death_in_a_new_group(self):
        groups, ends = self.train(
            ["-n4", "--in-place", "--min-ranks=2"], "steps=100", self.moment(3),
            f"die_reset={self.random.randrange(3)}")
        self.assertEqual(groups[-1][0], 2, self.text)
        self.check(groups, ends, 2)

    def test_survives_a_death_while_a_group_forms(self):
        moment = self.random.randrange(60_000)
        groups, ends = self.train(
            ["-n4", "--in-place", "--min-ranks=2"], "steps=3000",
            self.moment(3), f"die_leaving={self.random.randrange(3)}:{moment}")
        self.assertEqual(groups[-1][0], 2, self.text)
        self.check(groups, ends, 2)

    def test_replaces_a_replacement_that_dies_at_its_start(self):
        groups, ends = self.train(["-n2", "--in-place", "--max-restarts=2"],
                                  "steps=100", self.moment(1), "die_start=2")
        self.check(groups, ends, 2)

    def test_saves_checkpoints_again_after_the_steps_that_it_repeats(self):
        with tempfile.TemporaryDirectory() as folder:
            # Steps 51 to 60 were saved, and are repeated from step 50.
            groups, ends = self.train(
                ["-n3", "--in-place", "--min-ranks=2"], "steps=90", "commit=50",
                f"die={self.random.randrange(3)}:60:0", f"save={folder}")
            self.assertEqual(groups, [(3, 0), (2, 50)], self.text)
            self.check(groups, ends, 2)
            self.assertEqual(
                sorted(int(name[11:17]) for name in os.listdir(folder)
                       if name.startswith("checkpoint-")),
                list(range(3, 91, 3)), self.text)
            # Another job resumes there.
            groups, _ = self.train(["-n2", "--in-place"], "steps=100",
                                   f"save={folder}")
            self.assertEqual(groups, [(2, 0)], self.text)

    def test_ends_with_the_usual_error_where_too_few_remain(self):
        code, out = self.start(["-n3", "--in-place"], "steps=3000",
                               self.moment(2))
        self.assertEqual(code, 137, self.text)
        self.assertIn("rank 2", out)
        self.assertIn("SIGKILL", out)
        self.assertIn("2 of at least 3 ranks remain (--min-ranks)", out)
        self.assertEqual(lines_of("end", out), [], self.text)

    def test_repeats_steps_also_where_no_rank_is_left_that_saved_them(self):
        with tempfile.TemporaryDirectory() as folder:
            groups, ends = self.train(
                ["-n2", "--in-place", "--max-restarts=2"], "steps=90", "commit=50",
                "die=0:60:0", "die_again=1:55", f"save={folder}")
            self.assertEqual(groups, [(2, 0), (2, 50), (2, 50)], self.text)
            self.check(groups, ends, 2)

    def test_says_that_a_rank_ended_before_the_training(self):
        code, out = self.start(["-n2", "--in-place", "--min-ranks=1"], "exit=1:5")
        self.assertNotEqual(code, 0, self.text)
        self.assertIn("rank 1 ended with code 0 before elastic::run()", out)

    def test_blames_a_later_failure_once_the_others_have_formed_a_group(self):
        code, out = self.start(["-n2", "--in-place", "--min-ranks=1"], "steps=3000",
                               self.moment(1), "fail_reset=0")
        self.assertEqual(code, 9, self.text)
        self.assertIn("exited with code 9 after", out)

    def test_blames_no_replacement_that_was_in_no_group(self):
        code, out = self.start(
            ["-n3", "--in-place", "--min-ranks=2", "--max-restarts=1"], "steps=3000",
            self.moment(1), "die_start=3", "die_after=0")
        self.assertEqual(code, 137, self.text)
        self.assertIn("rank 0 of 3 was killed", out)

    def test_fails_where_a_rank_dies_after_its_training(self):
        for flags in (["--min-ranks=2"], ["--max-restarts=1"]):
            code, out = self.start(["-n3", "--in-place", *flags], "steps=20",
                                   "die_after=0")
            self.assertEqual(code, 137, self.text)
            self.assertIn("rank 0", out)

    def test_ends_the_training_on_all_ranks_or_on_none(self):
        """A rank dies at about the end, when others may have seen it."""
        for _ in range(4):
            code, out = self.start(
                ["-n3", "--in-place", "--min-ranks=2"], "steps=20",
                f"die=2:19:{self.random.randrange(2000)}")
            ends = lines_of("end", out)
            if code == 0:
                self.assertEqual(len({end["weights"] for end in ends}), 1,
                                 self.text)
                self.assertIn(len(ends), (2, 3), self.text)
            else:
                # It died after the training had ended on all ranks.
                self.assertEqual(code, 137, self.text)
                self.assertIn("rank 2", out)

    def test_ends_where_a_rank_hangs_and_lives(self):
        code, out = self.start(["-n3", "--in-place", "--min-ranks=1"], "stop=1:5",
                               LOCKSTEP_TIMEOUT="1", LOCKSTEP_RENDEZVOUS_TIMEOUT="1")
        self.assertEqual(code, 134, self.text)
        self.assertIn("a rank is slow or stopped", out)

    def test_refuses_a_second_run(self):
        code, out = self.start(["-n2", "--in-place"], "steps=5", "again=1")
        self.assertNotEqual(code, 0, self.text)
        self.assertIn("put all parts of the training into one function", out)

    def test_trains_once_without_the_flag(self):
        code, out = self.start(["-n2"], "steps=3000", self.moment(1))
        self.assertEqual(code, 137, self.text)
        self.assertEqual(len(lines_of("begin", out)), 1, self.text)
        groups, ends = self.train(["-n2"], "steps=20")
        self.assertEqual(groups, [(2, 0)])
        self.check(groups, ends, 2)

    def test_trains_alone_without_a_launcher(self):
        done = subprocess.run([RANK, "steps=20"], capture_output=True, text=True,
                              timeout=TIMEOUT, check=True)
        self.assertEqual(lines_of("end", done.stdout)[0]["size"], "1")


WITH_DEATHS = [
    Elastic.test_goes_on_with_fewer_ranks,
    Elastic.test_goes_on_without_rank_0_from_the_last_commit,
    Elastic.test_waits_for_a_replacement_where_all_ranks_are_needed,
    Elastic.test_takes_a_replacement_in_without_losing_a_step,
    Elastic.test_trains_alone_until_a_replacement_comes,
    Elastic.test_replaces_two_ranks_one_of_which_dies_in_the_second_group,
    Elastic.test_survives_a_death_in_a_new_group,
    Elastic.test_survives_a_death_while_a_group_forms,
    Elastic.test_replaces_a_replacement_that_dies_at_its_start,
    Elastic.test_ends_with_the_usual_error_where_too_few_remain,
    Elastic.test_fails_where_a_rank_dies_after_its_training,
    Elastic.test_ends_the_training_on_all_ranks_or_on_none,
]


def do_rounds(count):
    if "HOST_INDEX" not in os.environ:
        raise SystemExit("elastic_test.py: --rounds is for a host of scripts/hosts: "
                         "elsewhere others leave files and processes too")
    table = FaultTable(MEASURED)
    for number in range(count):
        case = Elastic(WITH_DEATHS[(SEED + number) % len(WITH_DEATHS)].__name__)
        case.seed = SEED + number
        name = case.id().split(".test_")[-1]
        label = f"round {number}, seed {case.seed}: {name}"
        leftovers = Leftovers(COMMAND)
        result = unittest.TestResult()
        case.run(result)
        problems = [text for _, text in result.failures + result.errors]
        if problems:
            raise SystemExit("\n".join([*problems, f"FAILED: {label}"]))
        leftovers.check(killed=False)
        table.add(name, case.deaths > 0, case.recovered)
        times = ", ".join(f"{seconds:.2f}" for seconds in case.recovered)
        print(f"{label}; deaths: {case.deaths}"
              f"{f'; recovered in {times} s' if times else ''}", flush=True)
    table.print()
    print(f"{count} rounds; each ended as it must")


if __name__ == "__main__":
    print(f"LOCKSTEP_SEED={SEED}", flush=True)
    if sys.argv[1:2] == ["--rounds"]:
        do_rounds(int(sys.argv[2]))
    else:
        unittest.main()
