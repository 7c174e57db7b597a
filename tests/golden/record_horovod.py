#!/usr/bin/env python3
"""Makes horovod.json with Horovod itself; tests compare our answers with it.

    horovodrun --gloo -np 2 python3 record_horovod.py horovod.json

It needs Horovod 0.28.1 for PyTorch, which pip builds (--no-build-isolation,
with setuptools below 70 and cmake below 4; HOROVOD_WITH_PYTORCH=1,
HOROVOD_WITH_GLOO=1, HOROVOD_WITHOUT_MPI=1). For a PyTorch newer than 2.0, set
CMAKE_CXX_STANDARD to 20 in its CMakeLists.txt and horovod/torch/CMakeLists.txt.
"""
import platform
import sys

import horovod
import horovod.torch as hvd
import torch
from recorded_run import (BATCH, LEARNING_RATE, MOMENTUM, STEPS, WORKERS, flat,
                          make_inputs, wave, weights_of, write)

INPUTS = make_inputs()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 4)
        self.second = torch.nn.Linear(4, 2)

    # `bias` is whether the pass uses the second layer's.
    def forward(self, x, bias=True):
        hidden = torch.tanh(self.first(x))
        return torch.nn.functional.linear(
            hidden, self.second.weight, self.second.bias if bias else None)


def make_net():
    """Rank 1 has other weights, which rank 0's must replace."""
    net = Net()
    factor = 1 + hvd.rank()
    with torch.no_grad():
        for parameter, values in zip(net.parameters(), weights_of(INPUTS)):
            parameter.copy_(torch.from_numpy(values) * factor)
    return net


def make_optimizer(net, **options):
    """Rank 1 has another learning rate and momentum, which rank 0's must replace."""
    factor = 1 + hvd.rank()
    return hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), LEARNING_RATE * factor,
                        momentum=MOMENTUM / factor),
        named_parameters=net.named_parameters(), **options)


def loss_of(net, step, bias=True):
    share = BATCH // WORKERS
    first = step * BATCH + hvd.rank() * share
    data = torch.from_numpy(INPUTS["data"][first:first + share])
    targets = torch.from_numpy(INPUTS["targets"][first:first + share])
    return torch.nn.functional.mse_loss(net(data, bias), targets)


def begin(**options):
    net = make_net()
    optimizer = make_optimizer(net, **options)
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return net, optimizer


def train(passes=1, bias=lambda: True, **options):
    net, optimizer = begin(backward_passes_per_step=passes, **options)
    for step in range(STEPS):
        if step % passes == 0:
            optimizer.zero_grad()
        loss_of(net, step, bias()).backward()
        if step % passes == passes - 1:
            optimizer.step()
    return net


def train_with_lost_state():
    """Rank 1 loses its state in the middle, and gets rank 0's."""
    net, optimizer = begin()
    for step in range(STEPS):
        if step == STEPS // 2:
            if hvd.rank() == 1:
                for state in optimizer.state.values():
                    state["momentum_buffer"].zero_()
                optimizer.param_groups[0]["lr"] = 9.0
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        optimizer.zero_grad()
        loss_of(net, step).backward()
        optimizer.step()
    return net


def outputs():
    nets = {
        "average": train(),
        "sum": train(op=hvd.Sum),
        "two passes a step": train(passes=2),
        "fp16": train(compression=hvd.Compression.fp16),
        "bias used on rank 0 alone": train(bias=lambda: hvd.rank() == 0),
        "lost state": train_with_lost_state(),
    }
    found = {name: flat([p.detach() for p in net.parameters()])
             for name, net in nets.items()}
    mine = torch.from_numpy(wave((2, 3), 30 + hvd.rank()))
    for name, op in (("average", hvd.Average), ("sum", hvd.Sum),
                     ("min", hvd.Min), ("max", hvd.Max),
                     ("product", hvd.Product)):
        found[f"allreduce, {name}"] = hvd.allreduce(mine, op=op, name=name)
    found["allgather"] = hvd.allgather(mine, name="gather")
    found["broadcast from 1"] = hvd.broadcast(mine, 1, name="broadcast")
    return found


def main():
    hvd.init()
    assert hvd.size() == WORKERS
    found = outputs()
    for name, tensor in found.items():
        on_all = hvd.allgather_object(torch.as_tensor(tensor))
        assert all(torch.equal(on_all[0], other) for other in on_all), name
    inputs = {**INPUTS, "rank 0's": wave((2, 3), 30),
              "rank 1's": wave((2, 3), 31)}
    if hvd.rank() == 0:
        made_by = (f"Horovod {horovod.__version__}, PyTorch "
                   f"{torch.__version__}, Python {platform.python_version()}")
        write(sys.argv[1], made_by, "horovodrun --gloo -np 2 python3 "
              "record_horovod.py horovod.json", inputs, found)
    hvd.shutdown()


main()
