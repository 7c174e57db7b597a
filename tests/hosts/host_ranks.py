"""The ranks of a job on the hosts of scripts/hosts, one process per rank.
"""
import os
import subprocess
import threading

HOST_COUNT = int(os.environ["LOCKSTEP_HOSTS"])
RANKS_PER_HOST = 2
RANKS = HOST_COUNT * RANKS_PER_HOST


def host_of(rank):
    return rank // RANKS_PER_HOST


class Rank:
    """A process on its host, whose output the test reads as it arrives.

    `hosts` is the program scripts/hosts, `command` the rank's command. The rank
    has begun once it prints a line with this prefix, or has ended.
    """

    def __init__(self, hosts, number, command):
        self.begun = threading.Event()
        self.output = ""
        environment = {
            **os.environ,
            "RANK": str(number),
            "WORLD_SIZE": str(RANKS),
            "LOCAL_RANK": str(number % RANKS_PER_HOST),
            "LOCAL_WORLD_SIZE": str(RANKS_PER_HOST),
            "MASTER_ADDR": os.environ["HOST_ADDRESSES"].split(",")[0],
            "MASTER_PORT": "29500",
        }
        self.process = subprocess.Popen(
            [hosts, "exec", str(host_of(number)), "--", *command],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.output += line
            if line.startswith("begun"):
                self.begun.set()
        self.begun.set()

    def wait(self, seconds):
        """Its exit status; subprocess.TimeoutExpired when it still runs."""
        status = self.process.wait(timeout=seconds)
        self._reader.join()
        return status

    def end(self):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdin.close()
        self.process.stdout.close()


def print_all(ranks):
    for number, rank in enumerate(ranks):
        print(f"rank {number} ended with {rank.process.poll()}:\n"
              f"{rank.output}")
