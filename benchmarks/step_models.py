"""The models of the benchmark of a step, as ./dev bench step measures them, and
the bounds of their ratios."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Model:
    """One of step_job.h's: how long it is measured, and what bounds ratios of
    times. A ratio that is not bounded is reported."""

    text: str
    rounds: int
    steps: int  # of a round
    warm_up: int = 5
    checked_steps: int = 5  # after which losses are compared with PyTorch's
    # Ours on 2 ranks over LibTorch's own on 1: twice the work.
    alone: float | None = None
    # Over 2 LibTorchs that do not talk, for a model whose weights exceed the
    # cache: its ranks share the memory bus, and even those take longer than
    # one. The same of the sharded optimizer.
    apart: float | None = None
    sharded_apart: float | None = None
    # Over one process that computes the whole batch with two threads. A net
    # whose weights exceed the cache favours threads, since each rank reads all
    # of them.
    threads: float | None = None
    # Over PyTorch's DDP at its best.
    best: float | None = None
    # The sharded optimizer's over the fastest of PyTorch's, glibc tuned too.
    sharded_fastest: float | None = None


MODELS = {
    "cnn": Model(
        "cnn of PyTorch's tutorial, 21,840 parameters; batch 64",
        rounds=15,
        steps=30,
        checked_steps=30,
        alone=1.02,
        threads=1 / 1.05,
    ),
    "mlp": Model(
        "mlp 784-4096-4096-10, 20,037,642 parameters; batch 64",
        rounds=12,
        steps=3,
        apart=0.88,
        sharded_apart=0.85,
        sharded_fastest=0.70,
    ),
    "resnet18": Model(
        "resnet18 on 32 x 32, 11,173,962 parameters; batch 64",
        rounds=5,
        steps=1,
        warm_up=2,
        checked_steps=3,
        threads=1 / 1.05,
        best=0.85,
    ),
    "transformer": Model(
        "causal transformer, 4 layers of width 256, 4 heads, 3,307,008"
        " parameters; batch 16 x 64 tokens; AdamW (learning rate 0.0003,"
        " weight decay 0.1), gradients clipped to a norm of 1",
        rounds=8,
        steps=3,
        checked_steps=10,
        threads=1 / 1.05,
        best=0.85,
    ),
    "convnet": Model(
        "convnet, 421,642 parameters; batch 64; beside threads, and a busy"
        " process",
        rounds=8,
        steps=10,
        threads=1 / 1.05,
    ),
}
