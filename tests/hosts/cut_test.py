"""A host loses its link in the middle of all-reduces: every rank, on either
side, gets PeerFailure naming a rank of the other side.

    scripts/hosts 3 --once -- cut_test.py HOSTS RANKS_PROGRAM cut|mute HOST
"""
import os
import random
import re
import subprocess
import sys
import threading
import unittest

HOSTS, PROGRAM, VERB, CUT_HOST = sys.argv[1:5]
HOST_COUNT = int(os.environ["LOCKSTEP_HOSTS"])
RANKS_PER_HOST = 2
RANKS = HOST_COUNT * RANKS_PER_HOST
# Far beyond what it takes; they only keep a failing test from hanging.
PATIENCE_SECONDS = 120
FAILED = 10  # what the program ends with after an error


def hosts(*words):
    return subprocess.run([HOSTS, *words], check=True, capture_output=True,
                          text=True, timeout=PATIENCE_SECONDS).stdout


def host_of(rank):
    return rank // RANKS_PER_HOST


def is_cut_off(rank):
    return host_of(rank) == int(CUT_HOST)


class Rank:
    """A process on its host, whose output is read as it comes."""

    def __init__(self, rank, seed):
        self.begun = threading.Event()
        self.output = ""
        environment = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(RANKS),
            "LOCAL_RANK": str(rank % RANKS_PER_HOST),
            "LOCAL_WORLD_SIZE": str(RANKS_PER_HOST),
            "MASTER_ADDR": os.environ["HOST_ADDRESSES"].split(",")[0],
            "MASTER_PORT": "29500",
            "SEED": str(seed),
        }
        self.process = subprocess.Popen(
            [HOSTS, "exec", str(host_of(rank)), "--", PROGRAM,
             "all_reduce_for_ever"],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.output += line
            if line.startswith("begun"):
                self.begun.set()
        self.begun.set()

    def wait(self):
        try:
            code = self.process.wait(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            return f"it still runs after {PATIENCE_SECONDS} s"
        self._reader.join()
        return code

    def end(self):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()


class Link(unittest.TestCase):
    def start_ranks(self):
        # The same on all ranks: it says how much each all-reduce is of.
        seed = random.randrange(1 << 31)
        print(f"seed {seed}", flush=True)
        ranks = []
        for number in range(RANKS):
            ranks.append(Rank(number, seed))
            self.addCleanup(ranks[-1].end)
        for rank in ranks:
            self.assertTrue(rank.begun.wait(PATIENCE_SECONDS))
            self.assertIn("begun", rank.output)
        return ranks

    def tell_all(self, ranks):
        for number, rank in enumerate(ranks):
            print(f"rank {number} ended with {rank.process.poll()}:\n"
                  f"{rank.output}")

    def culprit_of(self, rank):
        """Whom a rank's error names."""
        self.assertEqual(rank.wait(), FAILED, rank.output)
        named = re.search(r"^PeerFailure of rank (\d+): all_reduce #\d+",
                          rank.output, re.MULTILINE)
        self.assertIsNotNone(named, rank.output)
        culprit = int(named.group(1))
        self.assertIn(f"rank {culprit} on host{host_of(culprit)}", rank.output)
        return culprit

    def test_a_lost_link_is_what_every_rank_names(self):
        ranks = self.start_ranks()
        hosts(VERB, CUT_HOST)
        self.addCleanup(self.tell_all, ranks)
        culprits = [self.culprit_of(rank) for rank in ranks]
        print(f"named: {culprits}")
        for rank, culprit in enumerate(culprits):
            self.assertNotEqual(is_cut_off(rank), is_cut_off(culprit), rank)
        for host in range(HOST_COUNT):
            left = subprocess.run(["ip", "netns", "pids", f"host{host}"],
                                  check=True, capture_output=True, text=True)
            self.assertEqual(left.stdout, "")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
