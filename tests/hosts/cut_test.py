"""A host loses its link in the middle of all-reduces: every rank, on either
side, gets PeerFailure naming a rank of the other side.

    scripts/hosts 3 --once -- cut_test.py HOSTS RANKS_PROGRAM cut|mute HOST
"""
import random
import re
import subprocess
import sys
import unittest

from host_launcher import pids_on
from host_ranks import HOST_COUNT, RANKS, Rank, host_of, print_all

HOSTS, PROGRAM, VERB, CUT_HOST = sys.argv[1:5]
# Far beyond the usual time; these limits only keep a failing test from hanging.
PATIENCE_SECONDS = 120
FAILED = 10  # the program's exit status after an error


def hosts(*words):
    return subprocess.run([HOSTS, *words], check=True, capture_output=True,
                          text=True, timeout=PATIENCE_SECONDS).stdout


def is_cut_off(rank):
    return host_of(rank) == int(CUT_HOST)


class Link(unittest.TestCase):
    def start_ranks(self):
        # The same on all ranks: it sets the size of each all-reduce.
        seed = random.randrange(1 << 31)
        print(f"seed {seed}", flush=True)
        ranks = []
        for number in range(RANKS):
            ranks.append(Rank(HOSTS, number, [
                "env", f"SEED={seed}", PROGRAM, "all_reduce_for_ever"]))
            self.addCleanup(ranks[-1].end)
        for rank in ranks:
            self.assertTrue(rank.begun.wait(PATIENCE_SECONDS))
            self.assertIn("begun", rank.output)
        return ranks

    def culprit_of(self, rank):
        """The rank that a rank's error names."""
        self.assertEqual(rank.wait(PATIENCE_SECONDS), FAILED, rank.output)
        named = re.search(r"^PeerFailure of rank (\d+): all_reduce #\d+",
                          rank.output, re.MULTILINE)
        self.assertIsNotNone(named, rank.output)
        culprit = int(named.group(1))
        self.assertIn(f"rank {culprit} on host{host_of(culprit)}", rank.output)
        return culprit

    def test_a_lost_link_is_what_every_rank_names(self):
        ranks = self.start_ranks()
        hosts(VERB, CUT_HOST)
        self.addCleanup(print_all, ranks)
        culprits = [self.culprit_of(rank) for rank in ranks]
        print(f"named: {culprits}")
        for rank, culprit in enumerate(culprits):
            self.assertNotEqual(is_cut_off(rank), is_cut_off(culprit), rank)
        for host in range(HOST_COUNT):
            self.assertEqual(pids_on(host), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
