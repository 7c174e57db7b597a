"""A job that `lockstep run` starts on two hosts meets faults: killed ranks,
launchers and hosts, stopped launchers, links that go and come back, a full disk;
at random moments, and at chosen ones. It ends with the bytes of a run without
faults, and leaves nothing on the hosts.

    scripts/hosts 2 --once -- launch_test.py HOSTS LOCKSTEP ROUNDS [SEED]

Round N has the seed SEED + N, which decides the kind of fault too, so that ROUNDS
consecutive kinds come: `1 SEED` repeats a round (not exactly, because moments are
real time).
"""
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import launch_faults
from fault_table import FaultTable
from launch_faults import KINDS, KEPT, Round, name_of
from leftovers import Leftovers, check_checkpoints

HOSTS, LOCKSTEP, ROUNDS = sys.argv[1], sys.argv[2], int(sys.argv[3])
SEED = int(sys.argv[4]) if len(sys.argv) > 4 else random.randrange(1 << 31)
MEASURED = ("seconds from the fault (the last kill of a round; the cut of the link) "
            "to the end of the first step after the next start of the ranks")


def undisturbed(folder):
    """The bytes of the model."""
    model = folder / "model.safetensors"
    subprocess.run([LOCKSTEP, *launch_faults.TRAIN, "--ranks", "1", "--output",
                    str(model)], check=True, stdout=subprocess.DEVNULL)
    return model.read_bytes()


def do_round(round_, kind, right):
    """Throws where the job does not do what it must; returns its recovery."""
    try:
        round_.run(kind)
        model = (round_.folder / "model.safetensors").read_bytes()
        assert model == right, "the model differs"
        check_checkpoints(round_.folder / "checkpoints", KEPT)
        round_.check_ends()
        return round_.recovery()
    finally:
        round_.end()


def main():
    print(f"faults of a job on two hosts: seed {SEED}", flush=True)
    table = FaultTable(MEASURED)
    with tempfile.TemporaryDirectory() as name:
        right = undisturbed(Path(name))
    for number in range(ROUNDS):
        seed = SEED + number
        kind = KINDS[seed % len(KINDS)]
        leftovers = Leftovers(LOCKSTEP, ("host0", "host1"))
        with tempfile.TemporaryDirectory() as name:
            round_ = Round((HOSTS, LOCKSTEP), Path(name), random.Random(seed))
            label = f"round {number}, seed {seed}: {name_of(kind)} ({round_.shape()})"
            try:
                recovery = do_round(round_, kind, right)
                leftovers.check(round_.killed, Path(name).name)
            except BaseException:
                round_.print()
                print(f"FAILED: {label}")
                raise
        met = round_.fault_at is not None
        table.add(name_of(kind), met, [] if recovery is None else [recovery])
        print(f"{label}{'' if met else ', too late'}; launchers started: "
              f"{len(round_.all)}"
              f"{'' if recovery is None else f'; recovered in {recovery:.2f} s'}",
              flush=True)
    table.print()
    print(f"{ROUNDS} rounds; the model had the same bytes after each")


if __name__ == "__main__":
    main()
