"""One rank of Gloo in PyTorch, in the benchmark of collectives.

    gloo_collectives.py REQUESTS     with the environment of torchrun

Asks, measures and verifies as ../collective_answers.h and
apps/bench/bench_measure.h have it.
"""
import json
import math
import statistics
import sys
import time

import torch
import torch.distributed as dist

WARM_UP, TRIALS, MOST_ROUNDS = 2, 3, 5000


class Case:
    """The buffers of a collective, what to run, and what must come out. Block b
    of rank r's input is filled with r + 10 b + the round's number; blocks of
    results are compared as wholes."""

    def __init__(self, size):
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.next = (self.rank + 1) % self.ranks
        self.before = (self.rank - 1) % self.ranks
        self.elements = size // 4
        self.block = max(1, self.elements // self.ranks)
        self.source = self.result = torch.empty(0)
        self.source_blocks = self.result_blocks = 1

    def value(self, rank, block, number):
        return rank + 10 * block + number % 100

    def buffers(self, source_blocks, result_blocks, count):
        self.source = torch.empty(source_blocks * count)
        self.result = torch.empty(result_blocks * count)
        self.source_blocks, self.result_blocks = source_blocks, result_blocks

    def in_place(self):
        self.source = self.result = torch.empty(max(1, self.elements))

    def write(self, number):
        for b, block in enumerate(self.source.chunk(self.source_blocks)):
            block.fill_(self.value(self.rank, b, number))

    def verify(self, number):
        wanted = list(self.expected(number))
        for value, block in zip(wanted, self.result.chunk(self.result_blocks)):
            if not torch.all(block == value):
                raise RuntimeError(f"wrong result of {type(self).__name__}")

    def sum_of(self, block, number):
        return sum(self.value(r, block, number) for r in range(self.ranks))


class AllReduce(Case):
    def prepare(self):
        self.in_place()

    def run(self):
        dist.all_reduce(self.result)

    def expected(self, number):
        yield self.sum_of(0, number)


class Broadcast(Case):
    def prepare(self):
        self.in_place()

    def run(self):
        dist.broadcast(self.result, 0)

    def expected(self, number):
        yield self.value(0, 0, number)


class Reduce(Case):
    def prepare(self):
        self.in_place()

    def run(self):
        dist.reduce(self.result, 0)

    def expected(self, number):
        if self.rank == 0:
            yield self.sum_of(0, number)


class AllGather(Case):
    def prepare(self):
        self.buffers(1, self.ranks, self.block)
        self.parts = list(self.result.chunk(self.ranks))

    def run(self):
        dist.all_gather(self.parts, self.source)

    def expected(self, number):
        return (self.value(r, 0, number) for r in range(self.ranks))


class Gather(AllGather):
    def run(self):
        dist.gather(self.source, self.parts if self.rank == 0 else None)

    def expected(self, number):
        return super().expected(number) if self.rank == 0 else []


class Scatter(Case):
    def prepare(self):
        self.buffers(self.ranks, 1, self.block)
        self.parts = list(self.source.chunk(self.ranks))

    def run(self):
        dist.scatter(self.result, self.parts if self.rank == 0 else None)

    def expected(self, number):
        yield self.value(0, self.rank, number)


class ReduceScatter(Case):
    def prepare(self):
        self.buffers(self.ranks, 1, self.block)

    def run(self):
        dist.reduce_scatter_tensor(self.result, self.source)

    def expected(self, number):
        yield self.sum_of(self.rank, number)


class AllToAll(Case):
    def prepare(self):
        self.buffers(self.ranks, self.ranks, self.block)

    def run(self):
        dist.all_to_all_single(self.result, self.source)

    def expected(self, number):
        return (self.value(r, self.rank, number) for r in range(self.ranks))


class SendRecv(Case):
    def prepare(self):
        self.buffers(1, 1, max(1, self.elements))

    def run(self):
        received = dist.irecv(self.result, self.before)
        dist.isend(self.source, self.next).wait()
        received.wait()

    def expected(self, number):
        yield self.value(self.before, 0, number)


class Barrier(Case):
    def prepare(self):
        pass

    def run(self):
        dist.barrier()

    def expected(self, _):
        return []


CASES = {"all_reduce": AllReduce, "broadcast": Broadcast, "reduce": Reduce,
         "all_gather": AllGather, "gather": Gather, "scatter": Scatter,
         "reduce_scatter": ReduceScatter, "all_to_all": AllToAll,
         "send_recv": SendRecv, "barrier": Barrier}


def run_once(case, number):
    case.write(number)
    dist.barrier()
    begin = time.perf_counter()
    case.run()
    return time.perf_counter() - begin


def over_ranks(value, op):
    result = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(result, op)
    return result.item()


def choose_rounds(case, seconds, least):
    begin = time.perf_counter()
    for number in range(TRIALS):
        run_once(case, number)
    took = (time.perf_counter() - begin) / TRIALS
    slowest = over_ranks(took, dist.ReduceOp.MAX)
    return math.floor(min(max(seconds / slowest, least), MOST_ROUNDS))


def measure(question):
    collective, _, size, seconds, least = question.split()
    case = CASES[collective](int(size))
    case.prepare()
    run_once(case, 0)
    case.verify(0)
    run_once(case, 1)
    rounds = choose_rounds(case, float(seconds), int(least))
    times = [run_once(case, WARM_UP + i) for i in range(rounds)]
    case.verify(WARM_UP + rounds - 1)
    ranks, total = dist.get_world_size(), dist.ReduceOp.SUM
    return {
        "median_us": over_ranks(statistics.median(times), total) / ranks * 1e6,
        "mean_us": over_ranks(statistics.mean(times), total) / ranks * 1e6,
        "rounds": rounds,
    }


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with open(f"{sys.argv[1]}.{dist.get_rank()}") as requests:
        for question in iter(requests.readline, ""):
            try:
                answer = measure(question)
            except (RuntimeError, ValueError) as error:
                # What Gloo lacks, every rank refuses; a wrong result ends it.
                if "wrong result" in str(error):
                    raise
                answer = {"lacks": str(error).splitlines()[0]}
            if dist.get_rank() == 0:
                print(json.dumps(answer), flush=True)
    dist.destroy_process_group()


main()
