"""`lockstep doctor` as the ranks of two hosts: what lies between them.

    scripts/hosts 2 --rate 100mbit --once -- doctor_test.py HOSTS LOCKSTEP
"""
import json
import os
import subprocess
import sys
import unittest

HOSTS, LOCKSTEP = sys.argv[1:]
# Far beyond the usual time; this only keeps a failing test from hanging.
PATIENCE_SECONDS = 200
ENDPOINT = os.environ["HOST_ADDRESSES"].split(",")[0]


class Doctor(unittest.TestCase):
    PORT = 29600  # the hosts have networks of their own

    def start(self, host, *variables):
        return subprocess.Popen(
            [HOSTS, "exec", str(host), "--", "env", *variables, LOCKSTEP,
             "run", "--nnodes", "2", "--rdzv-endpoint",
             f"{ENDPOINT}:{self.PORT}", "-n", "1", "--node-rank", str(host),
             LOCKSTEP, "doctor", "--json"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)

    def examine(self, *variables_of_host1):
        """The report, and the exit code of the launcher of rank 0."""
        jobs = [self.start(0), self.start(1, *variables_of_host1)]
        try:
            ends = [job.communicate(timeout=PATIENCE_SECONDS) for job in jobs]
        finally:
            for job in jobs:
                job.kill()
                job.wait()
        self.assertEqual(ends[1][0], "", "rank 0 alone reports")
        text = ends[0][0].replace("[rank 0] ", "")
        try:
            return json.loads(text), jobs[0].returncode
        except json.JSONDecodeError:
            self.fail(f"{text}\n{ends[0][1]}\n{ends[1][1]}")

    @staticmethod
    def between(report):
        return {finding["topic"]: finding for finding in report["between"]}

    def test_two_equal_hosts(self):
        report, code = self.examine()
        self.assertEqual(code, 0, report)
        self.assertTrue(report["can_train"])
        self.assertEqual([host["host"] for host in report["hosts"]],
                         ["host0", "host1"])
        found = self.between(report)
        self.assertIn("2 ranks on 2 hosts", found["group"]["text"])
        for topic in ("group", "versions", "clocks"):
            self.assertEqual(found[topic]["health"], "good", found[topic])
        for topic in ("host0 to host1", "host1 to host0"):
            speed = float(found[topic]["text"].split()[0])
            # No message is faster than the link, whatever the machine does.
            self.assertGreater(speed, 0)
            self.assertLess(speed, 0.13, found[topic])

    def test_a_host_without_its_libtorch_is_named(self):
        report, code = self.examine("LOCKSTEP_TORCH=/no/such/folder")
        self.assertEqual(code, 1)
        self.assertFalse(report["can_train"])
        versions = self.between(report)["versions"]
        self.assertEqual(versions["health"], "limited")
        self.assertRegex(versions["text"], r"LibTorch: none on host1; .* on host0")


unittest.main(argv=sys.argv[:1], verbosity=2)
