"""Two agents of the real torchrun, each on its own host, start the ranks.

    scripts/hosts 2 --once -- PYTHON torchrun_test.py HOSTS RANKS_PROGRAM
"""
import os
import subprocess
import sys
import unittest

HOSTS, PROGRAM = sys.argv[1:3]
ADDRESSES = os.environ["HOST_ADDRESSES"].split(",")
RANKS_PER_HOST = 2
ENVIRONMENT = {name: value for name, value in os.environ.items()
               if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                               "LOCKSTEP_STORE")}


class Agents(unittest.TestCase):
    def start(self, host, *command, flags=()):
        agent = subprocess.Popen(
            [HOSTS, "exec", str(host), "--", sys.executable, "-m",
             "torch.distributed.run", "--nnodes", str(len(ADDRESSES)),
             "--nproc-per-node", str(RANKS_PER_HOST), "--rdzv-backend", "c10d",
             "--rdzv-endpoint", f"{ADDRESSES[0]}:29400", "--rdzv-id", "hosts",
             "--local-addr", ADDRESSES[host], "--no-python", *flags, *command],
            env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)
        self.addCleanup(agent.wait)
        self.addCleanup(agent.kill)
        self.addCleanup(agent.stdout.close)
        return agent

    def run_on_all(self, *command, flags=()):
        agents = [self.start(host, *command, flags=flags)
                  for host in range(len(ADDRESSES))]
        outputs = [agent.communicate()[0] for agent in agents]
        for agent, output in zip(agents, outputs):
            self.assertEqual(agent.returncode, 0, "\n".join(outputs))
        return outputs

    def test_the_ranks_pass_the_conformance_suite(self):
        for output in self.run_on_all(PROGRAM, "conformance"):
            self.assertEqual(output.count(" cases, 0 wrong"), RANKS_PER_HOST, output)

    def test_the_ranks_meet_again_after_a_restart(self):
        outputs = self.run_on_all(
            "sh", "-c", 'case $TORCHELASTIC_RESTART_COUNT in 0) exec "$0" die;; '
            '*) exec "$0" join_twice;; esac', PROGRAM, flags=("--max-restarts", "1"))
        for output in outputs:
            self.assertEqual(output.count("joined twice"), RANKS_PER_HOST, output)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
