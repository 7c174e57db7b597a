"""Contenders that run the collectives of one host, in worlds of any size, and
the rows that hold ours against OpenMPI's best and Gloo.
"""
import contextlib
import statistics

import side_by_side as bench
from side_by_side import KIB, MIB, question, size_name

# What all_reduce must reach on 2 ranks: time over OpenMPI's, by bytes.
TARGETS = {
    4: 1,
    KIB: 1 / 2,
    64 * KIB: 1 / 5,
    MIB: 1 / 4,
    4 * MIB: 1 / 4,
    25 * MIB: 1 / 1.3,
    100 * MIB: 1 / 2,
}
CROWDED_TARGET = 3

# OpenMPI's settings; with more ranks than cores its best is the peer.
BOUND = {"OpenMPI": "--bind-to core"}
CROWDED = {
    "OpenMPI, free, yielding": "--oversubscribe --bind-to none"
    " --mca mpi_yield_when_idle 1",
    "OpenMPI, bound, yielding": "--oversubscribe --bind-to core:overload-allowed"
    " --mca mpi_yield_when_idle 1",
    "OpenMPI, free": "--oversubscribe --bind-to none"
    " --mca mpi_yield_when_idle 0",
}


def ours(ranks):
    command = [bench.program("lockstep_collectives"), "REQUESTS"]
    return bench.start_ranks("Lockstep", command, ranks)


def openmpi(ranks, crowded):
    """One contender a setting, each started when it is asked for."""
    settings = CROWDED if crowded else BOUND
    for name, options in settings.items():
        yield bench.start_mpi(name, ranks, options.split())


def gloo(ranks):
    script = str(bench.HERE / "peers" / "gloo_collectives.py")
    return bench.start_ranks("Gloo", [bench.PYTHON, script, "REQUESTS"], ranks)


def sizes_of(collective, sizes):
    return (0,) if collective == "barrier" else sizes


class World:
    """All contenders with one number of ranks, and what is asked of them. A
    context: they end with it. `pace` says how many rounds a case gets."""

    def __init__(self, table, pace, ranks):
        self.table, self.pace, self.ranks = table, pace, ranks
        self.crowded = ranks > len(bench.CORES)
        # A median would hide the pauses that scheduling brings.
        self.figure = "mean" if self.crowded else "median"
        self.lockstep, self.peers, self.gloo = None, [], []
        self._open = contextlib.ExitStack()

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            everyone = [stack.enter_context(c) for c in self._contenders()]
            # Nobody is measured while another still starts.
            bench.alternate(everyone, question("barrier", "-", 0), 1)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._open.close()

    def _contenders(self):
        self.lockstep = ours(self.ranks)
        yield self.lockstep
        for peer in openmpi(self.ranks, self.crowded):
            self.peers.append(peer)
            yield peer
        if bench.PYTHON and 1 < self.ranks and not self.crowded:
            self.gloo = [gloo(self.ranks)]
            yield self.gloo[0]

    def ask(self, contender, collective, memory, size):
        answer = contender.ask(question(collective, memory, size))
        return answer.get(f"{self.figure}_us")

    def compare(self, collective, sizes):
        """The rows of a collective, a few for each size."""
        self.pace.tell(f"{collective}, {self.ranks} ranks")
        for size in sizes_of(collective, sizes):
            self._rows(collective, size)

    def _times(self, collective, size):
        """Microseconds of each contender, by name: a median over rounds."""
        found = {}
        wanted = [(self.lockstep, "shared", "ours"),
                  *((peer, "plain", peer.name) for peer in self.peers)]
        if collective != "barrier":
            wanted.append((self.lockstep, "plain", "ours, plain"))
        for round_number in self.pace.rounds():
            also = [(gloo, "plain", gloo.name) for gloo in self.gloo
                    if round_number % 2 == 0]
            for contender, memory, name in wanted + also:
                took = self.ask(contender, collective, memory, size)
                if took is not None:
                    found.setdefault(name, []).append(took)
        return {name: statistics.median(took) for name, took in found.items()}

    def _target(self, collective, size):
        if self.ranks == 2 and collective == "all_reduce":
            return TARGETS.get(size)
        return None

    def _rows(self, collective, size):
        """Shared and plain buffers beside OpenMPI's best, and Gloo."""
        times = self._times(collective, size)
        best = min((peer.name for peer in self.peers), key=times.get)
        crowded = CROWDED_TARGET if self.crowded else None
        label = "" if collective == "barrier" else f" {size_name(size)}"
        ranks = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        case = f"{collective}{label}, {ranks}"

        def add(who, own, peer_name, peer, bound=None):
            self.table.add(f"{case}{who}", self.figure, "µs", times[own],
                           times[peer], peer_name, target=bound)

        add("", "ours", best, best, crowded or self._target(collective, size))
        if "ours, plain" in times:
            add(", plain", "ours, plain", best, best, crowded)
        if "Gloo" in times:
            add("", "ours", "Gloo in PyTorch", "Gloo")
