"""Ranks that hydra, the mpirun of MPICH and Intel MPI, has started.

    mpich_test.py MPIRUN lockstep_comm_ranks
"""
import os
import socket
import subprocess
import sys
import unittest

MPIRUN, RANKS_PROGRAM = sys.argv[1:3]
# Variables of another launcher would take precedence.
ENVIRONMENT = {name: value for name, value in os.environ.items()
               if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                               "LOCKSTEP_STORE", "LOCKSTEP_TOKEN")}


class Hydra(unittest.TestCase):
    def run_ranks(self, ranks, *command, **variables):
        """The exit code of the job and what its ranks have printed."""
        flags = [word for name, value in variables.items()
                 for word in ("-genv", name, value)]
        result = subprocess.run(
            [MPIRUN, *flags, "-n", str(ranks), *command], env=ENVIRONMENT,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False)
        return result.returncode, result.stdout

    def check(self, ranks, *command, **variables):
        code, out = self.run_ranks(ranks, *command, **variables)
        self.assertEqual(code, 0, out)
        return out

    def check_failure(self, ranks, *command, **variables):
        """hydra may end a rank before the rank has printed its error, so only one
        of the errors is certain."""
        code, out = self.run_ranks(ranks, *command, **variables)
        self.assertNotEqual(code, 0, out)
        return out

    def test_its_ranks_find_each_other(self):
        for backend in "shm", "hybrid", "reference":
            self.check(3, RANKS_PROGRAM, "barrier", LOCKSTEP_BACKEND=backend)

    def test_its_ranks_pass_the_conformance_suite(self):
        out = self.check(3, RANKS_PROGRAM, "conformance")
        self.assertEqual(out.count(" cases, 0 wrong"), 3, out)

    def test_its_ranks_make_a_second_default_group(self):
        out = self.check(3, RANKS_PROGRAM, "join_twice")
        self.assertEqual(out.count("joined twice"), 3, out)

    def test_a_rank_outlives_its_forked_children(self):
        out = self.check(2, RANKS_PROGRAM, "forked_child")
        self.assertEqual(out.count("all are still here"), 2, out)

    def test_a_token_of_the_user_stays_in_use(self):
        self.check(2, RANKS_PROGRAM, "barrier", LOCKSTEP_TOKEN="the user's")

    def test_the_second_program_of_a_rank_is_told_why_it_cannot_join(self):
        out = self.check_failure(2, "sh", "-c", '"$0" barrier && exec "$0" barrier',
                                 RANKS_PROGRAM)
        self.assertRegex(out, "neither the environment nor PMI gives rank 0's address\n"
                              "  likely:  mpirun closed the connection for PMI")

    def test_an_address_of_the_user_makes_pmi_unnecessary(self):
        without_pmi = "env", "-u", "PMI_FD", RANKS_PROGRAM, "barrier"
        out = self.check_failure(2, *without_pmi)
        self.assertIn("likely:  mpirun has not set PMI_FD", out)
        self.assertIn("pass -genv MASTER_ADDR HOST -genv MASTER_PORT PORT", out)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.check(2, *without_pmi, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))

    def test_a_process_that_takes_no_part_is_noticed(self):
        # hydra ends the sleeping process once the others have failed.
        out = self.check_failure(
            3, "sh", "-c",
            '[ "$PMI_RANK" = 2 ] && exec sleep 1000; exec "$0" barrier',
            RANKS_PROGRAM, LOCKSTEP_RENDEZVOUS_TIMEOUT="1")
        self.assertIn("not all of the 3 ranks that mpirun started came within 1.0 s",
                      out)

    def test_the_backend_mpi_is_refused(self):
        out = self.check_failure(2, RANKS_PROGRAM, "barrier", LOCKSTEP_BACKEND="mpi")
        self.assertIn("not started by Open MPI's mpirun", out)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
