"""Compares models of many kinds under our DistributedDataParallel with the same
models under PyTorch's.

usage: ddp_models_golden.py PROGRAM RANKS

PROGRAM is ddp_models_golden_main.cc, with as many processes as PyTorch: a rank is
a process on both sides, so that each has its own generator. Both sides train
every model by every rule, from the same weights on the same data; our side once
with each kind of step, of which two shard the optimizer's state. With the same
seed, LibTorch's generator gives dropout the same masks in C++ as in Python.

The sides differ in the order in which they add gradients of ranks, and in
products that LibTorch's optimizers fuse into sums and ours do not: both round the
last bit of numbers of about 1, 1e-7, in each of 10 steps. So parameters and
running statistics, with which the last rank evaluates, may differ by 5e-6 after
moving by at least 100 times that.
"""

import itertools
import pathlib
import sys
import tempfile

import pytorch_ranks
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear, relu

# The plain Python side of the tests of our files.
sys.path.append(str(pathlib.Path(__file__).parent.parent / "train"))
import plain_safetensors

# The same numbers stand in ddp_models_golden_main.cc.
STEPS = 10
BATCH = 12
WORDS = 30
LENGTH = 6
NUMBERS = 192
CLASSES = 10
SEED = 7
NAN_FROM_STEP = 5

TOLERANCE = 5e-6
MOVED = 100 * TOLERANCE


class Mlp(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.first = nn.Linear(12, 16)
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(16, CLASSES)

    def forward(self, words, numbers):
        return self.last(self.dropout(relu(self.first(numbers[:, :12]))))


class Embedding(nn.Module):
    def __init__(self, sparse=False):
        super().__init__()
        self.table = nn.Embedding(WORDS, 8, sparse=sparse)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, words, numbers):
        return self.last(self.table(words).mean(1))


class Tied(nn.Module):
    """The same weights encode and decode words."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(WORDS, 8)
        self.inner = nn.Linear(8, 8)
        self.decoder = self.encoder.weight

    def forward(self, words, numbers):
        return linear(self.inner(self.encoder(words).mean(1)).tanh(), self.decoder)


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.LSTM(8, 12, num_layers=2, batch_first=True, dropout=0.25)
        self.last = nn.Linear(12, CLASSES)

    def forward(self, words, numbers):
        outputs, _ = self.net(numbers[:, :48].reshape(-1, LENGTH, 8))
        return self.last(outputs[:, -1])


class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.GRU(8, 12, batch_first=True, bidirectional=True)
        self.last = nn.Linear(24, CLASSES)

    def forward(self, words, numbers):
        outputs, _ = self.net(numbers[:, :48].reshape(-1, LENGTH, 8))
        return self.last(outputs.mean(1))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.places = nn.Parameter(torch.randn(LENGTH, 1, 16))
        self.table = nn.Embedding(WORDS, 16)
        layer = nn.TransformerEncoderLayer(16, 4, dim_feedforward=32, dropout=0.1)
        self.net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(16, CLASSES)

    def forward(self, words, numbers):
        return self.last(self.net(self.table(words.t()) + self.places).mean(0))


class BatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 8, 3, stride=2, bias=False)
        self.norm2 = nn.BatchNorm2d(8)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, words, numbers):
        x = relu(self.norm1(self.conv1(numbers.reshape(-1, 3, 8, 8))))
        return self.last(relu(self.norm2(self.conv2(x))).mean((2, 3)))


MODELS = {
    "dropout_off": lambda: Mlp(0),
    "dropout_on": lambda: Mlp(0.3),
    # One batch of the last rank has a NaN.
    "nan": lambda: Mlp(0),
    "embedding": Embedding,
    # Gradients stay sparse there, and become dense in ours.
    "sparse": lambda: Embedding(sparse=True),
    "tied": Tied,
    "lstm": Lstm,
    "gru": Gru,
    "transformer": Transformer,
    "batch_norm": BatchNorm,
}
RULES = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    # Some gradients are zero except for rounding, such as those of a bias before a
    # batch norm. With the default of 1e-8 Adam would turn them into steps.
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-3),
}
WAYS = ["unsharded", "sharded", "one_pass"]


def jobs():
    """Models and rules; PyTorch's AdamW takes no sparse gradients."""
    return [job for job in itertools.product(MODELS, RULES)
            if job != ("sparse", "adamw")]


def make_data(ranks):
    """By step and rank; labels are classes."""
    torch.manual_seed(SEED)
    shape = (STEPS, ranks, BATCH // ranks)
    words = torch.randint(WORDS, (*shape, LENGTH))
    return words, torch.randn(*shape, NUMBERS), torch.randint(CLASSES, shape)


def make_model(name):
    torch.manual_seed(SEED)
    return MODELS[name]()


def train(name, rule, rank, ranks):
    words, numbers, labels = make_data(ranks)
    if name == "nan":
        numbers[NAN_FROM_STEP:, -1, 0, 0] = float("nan")
    net = make_model(name)
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = RULES[rule](net.parameters())
    torch.manual_seed(SEED + rank)
    for step in range(STEPS):
        optimizer.zero_grad()
        output = model(words[step, rank], numbers[step, rank])
        cross_entropy(output, labels[step, rank]).backward()
        optimizer.step()
    # PyTorch sends rank 0's running statistics to all in the first forward pass
    # after training, also in evaluation; our side calls broadcast_buffers().
    model.eval()
    with torch.no_grad():
        model(words[0, rank], numbers[0, rank])
    return net.state_dict()


def run_rank(rank, ranks, directory):
    """One of PyTorch's ranks. The last one writes its results to `directory`."""
    pytorch_ranks.join(rank, ranks, directory)
    results = {
        (name, rule): train(name, rule, rank, ranks) for name, rule in jobs()
    }
    if rank == ranks - 1:
        torch.save(results, directory / "theirs.pt")
    pytorch_ranks.leave()


def write_state(path, state):
    plain_safetensors.write(path, {
        name: ("I64" if value.dtype == torch.int64 else "F32", list(value.shape),
               value.numpy().tobytes())
        for name, value in state.items()}, {})


def read_state(path, like):
    """Reads a file of our side; its names must be those of `like`."""
    tensors, _ = plain_safetensors.read(path)
    assert tensors.keys() == like.keys(), f"{path}: {tensors.keys()}"
    return {name: torch.frombuffer(bytearray(tensors[name][2]), dtype=value.dtype)
            .reshape(value.shape) for name, value in like.items()}


def largest_difference(a, b):
    """The difference over the names of `a`; infinite where only one side has a NaN."""
    difference = 0
    for name in a:
        both = a[name].isnan() & b[name].isnan()
        apart = (a[name] - b[name]).abs().nan_to_num(nan=float("inf"))
        difference = max(difference, apart.masked_fill(both, 0).max().item())
    return difference


def complaints_about(name, theirs, mine):
    """The errors in our results of training a model."""
    apart = largest_difference(mine, theirs)
    moved = largest_difference(dict(make_model(name).named_parameters()), mine)
    print(f"differs from PyTorch's by at most {apart:.2g} after moving by {moved:.2g}")
    if not apart <= TOLERANCE:
        yield f"more than {TOLERANCE}"
    if not moved >= MOVED:
        yield "did not learn"
    numbers = [v for v in mine.values() if v.is_floating_point()]
    if any(not v.isnan().all() for v in numbers) and name == "nan":
        yield "has numbers where every one depends on a NaN"


def compare(directory):
    theirs = torch.load(directory / "theirs.pt")
    for (name, rule), expected in theirs.items():
        for way in WAYS:
            job = f"{name}.{rule}.{way}"
            print(f"{job}: ", end="")
            mine = read_state(directory / f"{job}.safetensors", expected)
            for complaint in complaints_about(name, expected, mine):
                yield f"{job}: {complaint}"


def main(program, ranks):
    with tempfile.TemporaryDirectory() as folder:
        directory = pathlib.Path(folder)
        for name, data in zip(("words.i64", "numbers.f32", "labels.i64"),
                              make_data(ranks)):
            data.numpy().tofile(directory / name)
        for name in MODELS:
            write_state(directory / f"{name}.safetensors",
                        make_model(name).state_dict())
        all_jobs = [f"{name}.{rule}.{way}"
                    for name, rule in jobs() for way in WAYS]
        ours = [[program, str(rank), str(ranks), folder, *all_jobs]
                for rank in range(ranks)]
        failure = pytorch_ranks.run_beside(ours, ranks, folder)
        return failure or "\n".join(compare(directory)) or 0


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        run_rank(int(sys.argv[2]), int(sys.argv[3]), pathlib.Path(sys.argv[4]))
    else:
        sys.exit(main(sys.argv[1], int(sys.argv[2])))
