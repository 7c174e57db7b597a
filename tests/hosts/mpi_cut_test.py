"""The host of the store and of mpirun loses its link, while ranks work on hybrid
over mpi, where only the store reports deaths: every rank ends with an error.

    scripts/hosts 3 --once -- mpi_cut_test.py HOSTS RANKS_PROGRAM MPIRUN
"""
import os
import re
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

HOSTS, PROGRAM, MPIRUN = sys.argv[1:4]
RANKS_PER_HOST = 2
RANKS = 3 * RANKS_PER_HOST
# mpirun places the first ranks on its own host, and rank 0 serves the store.
CUT_HOST = 1
CUT_RANKS = range(RANKS_PER_HOST)
# Far beyond the usual time; this only keeps a failing test from hanging.
PATIENCE_SECONDS = 120
PASSED_ON = ("LOCKSTEP_PLUGIN_PATH", "LOCKSTEP_TOKEN", "SEED", "ASAN_OPTIONS",
             "TSAN_OPTIONS")


class Output(threading.Thread):
    """What a rank writes to a pipe, because mpirun loses what the ranks print."""

    def __init__(self, pipe):
        super().__init__(daemon=True)
        os.mkfifo(pipe)
        self.pipe = pipe
        self.text = ""
        self.has_begun = threading.Event()
        self.start()

    def run(self):
        with open(self.pipe, encoding="utf-8") as lines:
            for line in lines:
                self.text += line
                if line in ("begun\n", "works\n"):
                    self.has_begun.set()
        self.has_begun.set()


class Link(unittest.TestCase):
    def start(self, case):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        outputs = [Output(Path(folder.name, str(rank))) for rank in range(RANKS)]
        environment = {**os.environ, "SEED": "7",
                       "ASAN_OPTIONS": "detect_leaks=0",
                       "TSAN_OPTIONS": "ignore_noninstrumented_modules=1"}
        passed_on = [word for name in PASSED_ON for word in ("-x", name)]
        job = subprocess.Popen(
            [HOSTS, "exec", str(CUT_HOST), "--", MPIRUN, "--allow-run-as-root",
             "--mca", "plm_rsh_agent", f"{HOSTS} rsh",
             "--host", "host0:2,host1:2,host2:2", "--bind-to", "none",
             "--mca", "btl_tcp_if_include", "eth0",
             "--mca", "oob_tcp_if_include", "eth0",
             "--mca", "mpi_yield_when_idle", "1",
             # Otherwise mpirun ends all ranks as soon as one fails.
             "--mca", "orte_enable_recovery", "1",
             "-x", "LOCKSTEP_BACKEND=hybrid", "-x", "LOCKSTEP_WIRE=mpi", *passed_on,
             "sh", "-c", 'exec "$0" "$1" > "$2/$OMPI_COMM_WORLD_RANK" 2>&1',
             PROGRAM, case, folder.name],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        self.addCleanup(job.wait)
        self.addCleanup(job.kill)
        return outputs

    def check_that_every_rank_is_told(self, case):
        outputs = self.start(case)
        for output in outputs:
            self.assertTrue(output.has_begun.wait(PATIENCE_SECONDS))
        subprocess.run([HOSTS, "cut", str(CUT_HOST)], check=True)
        self.addCleanup(subprocess.run, [HOSTS, "mend", str(CUT_HOST)], check=True)
        for rank, output in enumerate(outputs):
            output.join(PATIENCE_SECONDS)
            self.assertFalse(output.is_alive(), output.text)
            if rank in CUT_RANKS:
                # The store is here: it loses the other hosts' ranks.
                named = re.search(r"^PeerFailure of rank (\d+): ", output.text, re.M)
                self.assertIsNotNone(named, output.text)
                self.assertNotIn(int(named.group(1)), CUT_RANKS, output.text)
            else:
                self.assertIn("the store, which reports the ranks that died, did "
                              "not answer for 15 s", output.text)

    def test_in_large_collectives(self):
        self.check_that_every_rank_is_told("all_reduce_for_ever")

    def test_where_ranks_wait_for_a_rank_of_their_host(self):
        self.check_that_every_rank_is_told("work_until_asked_to_stop")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
