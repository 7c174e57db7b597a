"""`lockstep run -H` starts the ranks of two hosts over a real ssh.

    scripts/hosts 2 --once -- ssh_test.py HOSTS LOCKSTEP RANKS

Each host has an sshd; keys and settings lie in a folder of the test.
"""
import contextlib
import os
import signal
import subprocess
import sys
import time
import unittest

from host_launcher import pids_on
from ssh_servers import CANNOT, SshServers, may_become_any_user

HOSTS, LOCKSTEP, RANKS = sys.argv[1:]
# Far beyond the usual time; this only keeps a failing test from hanging.
PATIENCE_SECONDS = 120


def on_host(host, *command):
    return [HOSTS, "exec", str(host), "--", *command]


class LaunchOverSsh(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.ssh = SshServers(HOSTS, ("host0", "host1"))

    @classmethod
    def tearDownClass(cls):
        cls.ssh.close()

    def tearDown(self):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while left := self.launchers():
            self.assertLess(time.monotonic(), deadline, left)

    @staticmethod
    def launchers():
        """The processes of the command on both hosts."""
        found = []
        for pid in pids_on(0) + pids_on(1):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/exe") == os.path.realpath(LOCKSTEP):
                    found.append(pid)
        return found

    def start(self, *words, ssh=None):
        # How sanitizers treat libraries that they did not instrument.
        more = [word for name in ("ASAN_OPTIONS", "TSAN_OPTIONS")
                if name in os.environ for word in ("-x", name)]
        return subprocess.Popen(
            on_host(0, LOCKSTEP, "run", "--ssh", ssh or self.ssh.client(),
                    *more, *words),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)

    def run_job(self, *words, ssh=None):
        with self.start(*words, ssh=ssh) as job:
            try:
                out, err = job.communicate(timeout=PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                job.kill()
                raise
        return job.returncode, out, err

    def test_a_host_that_does_not_reach_the_command_names_the_flag_for_it(self):
        code, _, err = self.run_job("--local-addr", "lo", "-H", "host1:1", "true")
        self.assertEqual(code, 1, err)
        self.assertRegex(err, r"the launcher on \S+ does not reach the command that "
                              r"started it at 127\.0\.0\.1:\d+")
        self.assertIn("with --local-addr", err)

    def test_ranks_run_on_both_hosts_under_their_own_addresses(self):
        code, out, err = self.run_job(
            "-H", "host0:1,host1:2", "sh", "-c",
            "echo $RANK of $WORLD_SIZE on $(ip -4 -o address show eth0 | wc -l) "
            "$SSH_CONNECTION")
        self.assertEqual(code, 0, err)
        lines = sorted(out.splitlines())
        self.assertEqual(len(lines), 3, out)
        # Host 0 is the one that starts the job, so it needs no ssh.
        self.assertEqual(lines[0], "[rank 0] 0 of 3 on 1", out)
        for line in lines[1:]:
            self.assertRegex(line, r"of 3 on 1 \S+ \d+ \S+ 22$")

    def test_ranks_form_a_group_over_the_network(self):
        code, _, err = self.run_job("-H", "host0:2,host1:2", RANKS, "barrier")
        self.assertEqual(code, 0, err)

    def test_the_first_host_may_be_another(self):
        code, _, err = self.run_job("-H", "host1:1,host0:1", RANKS, "barrier")
        self.assertEqual(code, 0, err)

    def test_the_exit_code_is_that_of_the_rank_that_failed_first(self):
        code, _, err = self.run_job("-H", "host0:1,host1:1", "sh", "-c",
                                    "[ $RANK = 0 ] || exit 7; sleep 600")
        self.assertEqual(code, 7, err)
        self.assertIn("rank 1 of 2 exited with code 7", err)

    def interrupt(self, number):
        job = self.start("-H", "host0:1,host1:1", "sh", "-c",
                         "echo began; sleep 600")
        for _ in range(2):
            self.assertIn("began", job.stdout.readline())
        job.send_signal(number)
        job.communicate(timeout=PATIENCE_SECONDS)
        return job.returncode

    def test_a_signal_ends_the_ranks_of_both_hosts(self):
        self.assertEqual(self.interrupt(signal.SIGINT), 128 + signal.SIGINT)

    def test_no_rank_outlives_the_command(self):
        # The command is killed; tearDown() waits for the hosts' launchers.
        self.assertEqual(self.interrupt(signal.SIGKILL), -signal.SIGKILL)

    def test_an_ssh_that_would_ask_is_an_error_that_says_so(self):
        for ssh, reason in (
                (self.ssh.client(key="strangers_key"), "Permission denied"),
                (self.ssh.client(known="unknown_hosts"),
                 "Host key verification failed")):
            code, out, err = self.run_job("-H", "host0:1,host1:1", "echo",
                                          "never", ssh=ssh)
            self.assertEqual((code, out), (1, ""), err)
            self.assertIn(reason, err)
            self.assertIn("host1 true must work without a password", err)

    def test_a_host_that_does_not_exist_is_an_error_that_names_it(self):
        code, out, err = self.run_job("-H", "host0:1,no-such-host.invalid:1",
                                      "--local-addr", "eth0", "echo", "never")
        self.assertEqual((code, out), (1, ""), err)
        self.assertIn("no-such-host.invalid is lost to the job", err)


if not may_become_any_user():
    print("only root may become another user, as sshd does")
    sys.exit(CANNOT)
unittest.main(argv=sys.argv[:1], verbosity=2)
