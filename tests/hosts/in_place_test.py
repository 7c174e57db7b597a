"""`lockstep run --in-place` on two hosts: ranks, launchers and hosts end at random
moments, and a host comes back. The ranks that live go on in the same processes, and
their weights are those of an undisturbed training that changes its ranks at the same
steps. Nothing is left on the hosts.

    scripts/hosts 2 --once -- in_place_test.py HOSTS LOCKSTEP RANK ROUNDS [SEED]

RANK is the program lockstep_elastic_rank. Round N has the seed SEED + N, which
decides the kind of fault too.
"""
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from signal import SIGKILL

sys.path.insert(0, str(Path(__file__).parents[1] / "elastic"))
from fault_table import FaultTable
from host_launcher import PORT, Launcher, pids_on, run, signal_all
from leftovers import Leftovers
from training import MEASURED, lines_of, replay

HOSTS, LOCKSTEP, RANK = sys.argv[1:4]
ROUNDS = int(sys.argv[4])
SEED = int(sys.argv[5]) if len(sys.argv) > 5 else random.randrange(1 << 31)
PER_HOST = 2
# Far beyond the usual time; it only keeps a failing test from hanging.
PATIENCE_SECONDS = 240
# More than a job does before its fault, so that it awaits what follows that.
MANY_STEPS = 1500


class Round:
    """A job of two ranks on each host, and what happens to it."""

    def __init__(self, chance):
        self.chance = chance
        self.pause = threading.Event()
        self.deadline = time.monotonic() + PATIENCE_SECONDS
        self.backend = chance.choice(["gloo", "hybrid"])
        self.nodes = chance.choice(["2", "1:2"])
        self.all = []
        self.hosts = [None, None]
        self.killed = False  # a launcher was
        self.fault_at = None

    def start(self, host):
        endpoint = os.environ["HOST_ADDRESSES"].split(",")[0]
        self.launch(host, "-n", str(PER_HOST), "--nnodes", self.nodes,
                    "--rdzv-endpoint", f"{endpoint}:{PORT}")

    def launch(self, host, *where):
        self.hosts[host] = Launcher(
            HOSTS, host, [LOCKSTEP, "run", *where, "--in-place", "--min-ranks", "2",
                          *self.flags, RANK, *self.arguments],
            {"LOCKSTEP_BACKEND": self.backend, "OMP_NUM_THREADS": "1",
             "LOCKSTEP_RENDEZVOUS_TIMEOUT": "60"})
        self.all.append(self.hosts[host])

    def start_both(self, size, steps=20, flags=()):
        """The job goes on until its group has `size` ranks, and 20 steps more."""
        self.flags, self.arguments = flags, [f"steps={steps}", f"size={size}"]
        self.start(0)
        self.start(1)
        self.wait_for_steps()

    def wait_for_steps(self):
        self.until(lambda: self.lines("stepped"))
        self.pause.wait(self.chance.uniform(0, 0.5))

    def output(self):
        return "\n".join(launcher.output for launcher in self.all)

    def lines(self, kind):
        return sorted(lines_of(kind, self.output()),
                      key=lambda line: int(line.get("at", 0)))

    def until(self, condition):
        while not condition():
            assert time.monotonic() < self.deadline, "the job does not get on"
            assert self.hosts[0].process.poll() is None, "the job has ended"
            self.pause.wait(0.005)

    def sizes(self):
        return [int(line["size"]) for line in self.lines("begin")]

    def note(self):
        if self.fault_at is None:
            self.fault_at = time.monotonic_ns()

    def kill_rank_of(self, host):
        ranks = self.hosts[host].ranks()
        self.note()
        signal_all([self.chance.choice(ranks)], SIGKILL)

    def end_host(self, how):
        """Ends host 1, which does not serve the rendezvous."""
        self.note()
        self.killed = True
        if how == "launcher":
            return self.hosts[1].signal(SIGKILL)
        if how == "without a word":  # no connection is closed
            run(HOSTS, "mute", "1")
        while pids := pids_on(1):
            signal_all(pids, SIGKILL)

    # The kinds; each returns how many ranks the job ends with.

    def loses_a_launcher(self):
        self.start_both(2)
        self.end_host("launcher")
        return 2

    def loses_a_host(self):
        self.start_both(2)
        self.end_host("all")
        return 2

    def loses_a_host_over_ssh(self):
        self.flags, self.arguments = [], ["steps=20", "size=2"]
        self.launch(0, "-H", "host0:2,host1:2", "--ssh", f"{HOSTS} rsh")
        self.wait_for_steps()
        self.end_host("all")
        return 2

    def loses_a_host_without_a_word(self):
        self.start_both(2)
        self.end_host("without a word")
        self.until(lambda: 2 in self.sizes())
        run(HOSTS, "mend", "1")
        return 2

    def loses_a_link_for_a_moment(self):
        """The connections hold, also where a launcher has to tell of a death. An
        idle connection survives 10 s, of which a slow machine takes some to cut
        and mend the link."""
        self.start_both(4, flags=["--max-restarts", "1"], steps=MANY_STEPS)
        run(HOSTS, self.chance.choice(["cut", "mute"]), "1")
        self.kill_rank_of(1)
        self.pause.wait(self.chance.uniform(0, 7))
        run(HOSTS, "mend", "1")
        return 4

    def loses_a_link(self):
        self.start_both(2)
        self.note()
        run(HOSTS, self.chance.choice(["cut", "mute"]), "1")
        if self.chance.random() < 0.5:  # its launcher cannot tell the others
            self.kill_rank_of(1)
        self.until(lambda: 2 in self.sizes())
        self.hosts[1].process.wait(PATIENCE_SECONDS)
        run(HOSTS, "mend", "1")
        return 2

    def loses_a_rank_on_each_host(self):
        self.start_both(2)
        for host in self.chance.sample([0, 1], 2):
            self.kill_rank_of(host)
        return 2

    def loses_a_rank_and_then_a_launcher(self):
        """The rank is replaced; the launcher may die while the next group forms."""
        self.start_both(3, flags=["--max-restarts", "1"], steps=MANY_STEPS)
        self.kill_rank_of(0)
        self.pause.wait(self.chance.uniform(0, 0.3))
        self.end_host("launcher")
        self.until(lambda: self.sizes()[-1] == 2)
        self.start(1)
        self.until(lambda: self.sizes()[-1] == 4)
        self.kill_rank_of(1)
        return 3

    def replaces_a_rank(self):
        self.start_both(4, flags=["--max-restarts", "1"], steps=MANY_STEPS)
        self.kill_rank_of(self.chance.randrange(2))
        return 4

    def takes_a_host_back(self):
        self.start_both(4, steps=MANY_STEPS)
        self.end_host(self.chance.choice(["launcher", "all"]))
        # It may come before the others have noticed its end, or later.
        if self.chance.random() < 0.5:
            self.until(lambda: self.sizes()[-1] == 2)
        self.start(1)
        return 4

    def loses_all_ranks_of_a_host(self):
        """Its launcher says so and ends, which leaves its place to another one,
        here of the same host."""
        self.start_both(4, steps=MANY_STEPS)
        self.note()
        signal_all(self.hosts[1].ranks(), SIGKILL)
        self.hosts[1].process.wait(PATIENCE_SECONDS)
        self.start(1)
        return 4

    def loses_a_host_that_came_late(self):
        self.start_both(2, steps=MANY_STEPS)
        self.end_host("launcher")
        self.start(1)
        self.until(lambda: self.sizes()[-1] == 4)
        self.hosts[1].signal(SIGKILL)
        return 2

    def loses_the_server(self):
        """The job ends everywhere; host 1 says what to do."""
        self.start_both(2)
        self.killed = True
        self.hosts[0].signal(SIGKILL)
        return None

    def run(self, kind):
        size = kind(self)
        for launcher in self.all:
            launcher.process.wait(PATIENCE_SECONDS)
        if size is None:
            assert self.hosts[1].process.poll() not in (0, None), "the job succeeded"
            assert not self.lines("end"), "a rank has ended its training"
        else:
            assert self.hosts[0].process.poll() == 0, "the job failed"
            self.check(size)
        for launcher in self.all:
            launcher.check_end()

    def check(self, size):
        ends, groups = self.lines("end"), self.lines("begin")
        assert len(ends) == size, f"{len(ends)} ranks ended their training"
        for name in ("size", "step", "weights"):
            assert len({end[name] for end in ends}) == 1, f"{name} differs"
        # `hybrid` adds in another order on one host than on two.
        if self.backend == "gloo":
            right = replay(["env", "LOCKSTEP_BACKEND=gloo", LOCKSTEP, "run"], RANK,
                           [(int(group["size"]), int(group["step"]))
                            for group in groups], int(ends[0]["step"]))
            assert ends[0]["weights"] == right, "the weights are not those of a replay"

    def recovery(self):
        """The seconds from the fault to the end of the next group's first step."""
        if self.fault_at is None:
            return []
        later = [step for line in self.lines("stepped")
                 if (step := int(line["at"])) > self.fault_at]
        return [(later[0] - self.fault_at) / 1e9] if later else []

    def print(self):
        for launcher in self.all:
            print(f"--- host {launcher.host} ended with "
                  f"{launcher.process.poll()}:\n{launcher.output}")


KINDS = [Round.loses_a_launcher, Round.takes_a_host_back, Round.loses_the_server,
         Round.replaces_a_rank, Round.loses_a_host_without_a_word,
         Round.loses_a_rank_on_each_host, Round.loses_a_host,
         Round.loses_a_rank_and_then_a_launcher, Round.loses_a_host_over_ssh,
         Round.loses_all_ranks_of_a_host, Round.loses_a_link_for_a_moment,
         Round.loses_a_host_that_came_late, Round.loses_a_link]


def do_round(number, table):
    seed = SEED + number
    kind = KINDS[seed % len(KINDS)]
    leftovers = Leftovers(LOCKSTEP, ("host0", "host1"))
    round_ = Round(random.Random(seed))
    name = kind.__name__
    label = (f"round {number}, seed {seed}: {name} ({round_.backend}, --nnodes "
             f"{round_.nodes})")
    try:
        round_.run(kind)
        for launcher in round_.all:
            launcher.end()
        leftovers.check(round_.killed)
    except BaseException:
        for launcher in round_.all:
            launcher.end()
        round_.print()
        print(f"FAILED: {label}")
        raise
    recovery = round_.recovery()
    table.add(name, True, recovery)
    print(f"{label}; groups of {', '.join(map(str, round_.sizes()))}"
          + "".join(f"; recovered in {each:.2f} s" for each in recovery), flush=True)


def main():
    print(f"a job that re-forms in place on two hosts: seed {SEED}", flush=True)
    table = FaultTable(MEASURED)
    for number in range(ROUNDS):
        do_round(number, table)
    table.print()
    print(f"{ROUNDS} rounds; each ended as it must")


if __name__ == "__main__":
    main()
