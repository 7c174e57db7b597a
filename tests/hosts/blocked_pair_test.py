"""Two of three hosts cannot reach each other: no rank forms a group, and every
rank's error names a rank on each of the two hosts.

    scripts/hosts 3 --once -- blocked_pair_test.py HOSTS RANKS_PROGRAM
"""
import os
import re
import subprocess
import sys
import unittest

from host_ranks import RANKS, Rank, print_all

HOSTS, PROGRAM = sys.argv[1:3]
# Far beyond the usual time; these limits only keep a failing test from hanging.
PATIENCE_SECONDS = 120
RENDEZVOUS_SECONDS = 6
FAILED = 10  # the program's exit status after an error


def block(host, other):
    """Makes a host send nothing to another one."""
    address = os.environ["HOST_ADDRESSES"].split(",")[other]
    subprocess.run(["ip", "-n", f"host{host}", "route", "add", "blackhole",
                    address], check=True)


class BlockedPair(unittest.TestCase):
    def test_every_rank_names_the_hosts_that_do_not_reach_each_other(self):
        block(1, 2)
        block(2, 1)
        ranks = []
        for number in range(RANKS):
            ranks.append(Rank(HOSTS, number, [
                "env", f"LOCKSTEP_RENDEZVOUS_TIMEOUT={RENDEZVOUS_SECONDS}",
                PROGRAM, "barrier"]))
            self.addCleanup(ranks[-1].end)
        self.addCleanup(print_all, ranks)
        for rank in ranks:
            self.assertEqual(rank.wait(PATIENCE_SECONDS), FAILED, rank.output)
            self.assertRegex(
                rank.output,
                r"network: rank \d on host2 cannot connect to rank \d on host1")
            missing = re.search(r"timed out on rank (\d).*\n  missing: (.*)",
                                rank.output)
            self.assertNotIn("rank 0", missing.group(2))
            self.assertNotIn("rank 1", missing.group(2))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
