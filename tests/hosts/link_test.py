"""Interrupts links of hosts while their ranks all-reduce: the ranks continue, and
every sum is right.

    scripts/hosts 3 --once -- link_test.py HOSTS RANK_PROGRAM INTERRUPTIONS
"""
import os
import random
import re
import subprocess
import sys
import threading

from host_ranks import HOST_COUNT, RANKS, Rank, print_all

HOSTS, PROGRAM, INTERRUPTIONS = sys.argv[1:4]
# Ranks give up a connection after fifteen seconds without an answer.
LONGEST_OUTAGE_SECONDS = 1.0
# Far beyond the usual time; these limits only keep a failing test from hanging.
PATIENCE_SECONDS = 300


def right_sums(rank):
    """The number of sums, once the rank has ended in good order."""
    rank.wait(PATIENCE_SECONDS)
    found = re.search(r"^right sums: (\d+)$", rank.output, re.MULTILINE)
    return int(found.group(1)) if found else None


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
    ranks = [Rank(HOSTS, number, [PROGRAM, str(seed)])
             for number in range(RANKS)]
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
        sums = [right_sums(rank) for rank in ranks]
    finally:
        for rank in ranks:
            rank.end()
    if done < int(INTERRUPTIONS) or None in sums or len(set(sums)) != 1:
        print_all(ranks)
        sys.exit(f"FAILED after {done} interruptions")
    print(f"{done} interruptions survived; {sums[0]} sums on each of {RANKS} "
          "ranks, all right")


main()
