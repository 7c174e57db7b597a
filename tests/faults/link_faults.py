"""Hosts whose links go and come back while their ranks all-reduce: the ranks go
on, and every sum is right.

    scripts/hosts 3 --once -- link_faults.py HOSTS RANK_PROGRAM INTERRUPTIONS
"""
import os
import random
import re
import subprocess
import sys
import threading

HOSTS, PROGRAM, INTERRUPTIONS = sys.argv[1:4]
HOST_COUNT = int(os.environ["LOCKSTEP_HOSTS"])
RANKS_PER_HOST = 2
RANKS = HOST_COUNT * RANKS_PER_HOST
# A connection is given up after fifteen seconds without an answer.
LONGEST_OUTAGE_SECONDS = 1.0
# Far beyond what it takes; they only keep a failing test from hanging.
PATIENCE_SECONDS = 300


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
        }
        self.process = subprocess.Popen(
            [HOSTS, "exec", str(rank // RANKS_PER_HOST), "--", PROGRAM,
             str(seed)],
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

    def right_sums(self):
        """How many, once the process has ended in good order."""
        self.process.wait(timeout=PATIENCE_SECONDS)
        self._reader.join()
        found = re.search(r"^right sums: (\d+)$", self.output, re.MULTILINE)
        return int(found.group(1)) if found else None

    def end(self):
        self.process.kill()
        self.process.wait()
        self._reader.join()


def interrupt(chance, pause):
    host = chance.randrange(HOST_COUNT)
    verb = chance.choice(["cut", "mute"])
    subprocess.run([HOSTS, verb, str(host)], check=True)
    pause.wait(chance.uniform(0.01, LONGEST_OUTAGE_SECONDS))
    subprocess.run([HOSTS, "mend", str(host)], check=True)
    pause.wait(chance.uniform(0, 0.3))


def main():
    seed = random.randrange(1 << 31)
    print(f"links that go and come back, on {os.environ['LOCKSTEP_BACKEND']}: "
          f"seed {seed}", flush=True)
    chance = random.Random(seed)
    ranks = [Rank(number, seed) for number in range(RANKS)]
    try:
        for rank in ranks:
            rank.begun.wait(PATIENCE_SECONDS)
        pause = threading.Event()
        done = 0
        while done < int(INTERRUPTIONS) and all(
                rank.process.poll() is None for rank in ranks):
            interrupt(chance, pause)
            done += 1
        ranks[0].process.stdin.write("stop\n")
        ranks[0].process.stdin.flush()
        sums = [rank.right_sums() for rank in ranks]
    finally:
        for rank in ranks:
            rank.end()
    if done < int(INTERRUPTIONS) or None in sums or len(set(sums)) != 1:
        for number, rank in enumerate(ranks):
            print(f"rank {number} ended with {rank.process.poll()}:\n"
                  f"{rank.output}")
        sys.exit(f"FAILED after {done} interruptions")
    print(f"{done} interruptions survived; {sums[0]} sums on each of {RANKS} "
          "ranks, all right")


main()
