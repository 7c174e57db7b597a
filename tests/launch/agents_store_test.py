"""Ranks of the real torchrun, whose agent holds MASTER_PORT.

    PYTHON agents_store_test.py lockstep_comm_ranks

Rank 0 serves its store at one of eight ports that follow from MASTER_PORT: the
first is 12000 + MASTER_PORT mod 16000, and each further one 2003 beyond.
"""
import contextlib
import os
import random
import socket
import subprocess
import sys
import unittest

RANKS_PROGRAM = sys.argv[1]
PERIOD = 16000
DISTANCE = 2003
PORTS = 8
ENVIRONMENT = {name: value for name, value in os.environ.items()
               if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                               "LOCKSTEP_STORE", "LOCKSTEP_TOKEN")}
ENVIRONMENT |= {"LOCKSTEP_BACKEND": "shm", "OMP_NUM_THREADS": "1"}


def derived(port):
    return [12000 + (port + turn * DISTANCE) % PERIOD for turn in range(PORTS)]


def listen(port):
    listener = socket.socket(socket.AF_INET6)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        listener.bind(("::", port))
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def is_free(port):
    with contextlib.suppress(OSError), listen(port):
        return True
    return False


def free_master_ports():
    """Two ports whose derived ports are the same, and free."""
    while True:
        port = random.randrange(20000, 32000)
        ports = port, port + PERIOD
        if all(is_free(each) for each in (*ports, *derived(port))):
            return ports


class Torchrun(unittest.TestCase):
    def start(self, port, *command, flags=()):
        job = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--master-addr",
             "127.0.0.1", "--master-port", str(port), "--nproc-per-node", "2",
             "--no-python", *flags, *command],
            env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)
        self.addCleanup(job.wait)
        self.addCleanup(job.kill)
        self.addCleanup(job.stdout.close)
        return job

    def finish(self, job):
        out, _ = job.communicate()
        self.assertEqual(job.returncode, 0, out)
        return out

    def test_its_agent_holds_the_port(self):
        port, _ = free_master_ports()
        out = self.finish(self.start(port, "sh", "-c",
                                     'echo "$TORCHELASTIC_USE_AGENT_STORE"'))
        self.assertEqual(out.split()[-2:], ["True", "True"])

    def test_the_derived_port_is_taken_by_a_program_that_says_nothing(self):
        port, _ = free_master_ports()
        with listen(derived(port)[0]), listen(derived(port)[1]):
            out = self.finish(self.start(port, RANKS_PROGRAM, "join_twice"))
        self.assertEqual(out.count("joined twice"), 2, out)

    def test_all_derived_ports_are_taken(self):
        port, _ = free_master_ports()
        with contextlib.ExitStack() as listeners:
            for each in derived(port):
                listeners.enter_context(listen(each))
            out, _ = self.start(port, RANKS_PROGRAM, "barrier").communicate()
        self.assertIn(f'could not serve the store of "torchrun none at port {port}": '
                      "each of the ports", out)

    def test_two_jobs_with_the_same_derived_ports_run_at_once(self):
        jobs = [self.start(port, RANKS_PROGRAM, "conformance")
                for port in free_master_ports()]
        for job in jobs:
            self.assertEqual(self.finish(job).count(" cases, 0 wrong"), 2)

    def test_the_ranks_meet_again_after_a_restart(self):
        port, _ = free_master_ports()
        out = self.finish(self.start(
            port, "sh", "-c",
            'case $TORCHELASTIC_RESTART_COUNT in 0) exec "$0" die;; '
            '*) exec "$0" join_twice;; esac', RANKS_PROGRAM,
            flags=("--max-restarts", "1")))
        self.assertEqual(out.count("joined twice"), 2, out)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
