"""Compares training under our DistributedDataParallel with PyTorch's, from the
same weights on the same data, on the same device:

    compare.py PROGRAM cpu|cuda cnn|mlp|resnet18 float32|bfloat16 RANKS STEPS

PROGRAM is tests/gpu/compare_rank_main.cc. PyTorch's ranks are processes that
share the card, as ours do. The test judges three figures, each a norm over all
parameters: the difference of the gradients of steps 1 and 3, over their norm; and
the difference of the parameters at the end, over the distance that they moved.
Rounding increases the difference with each step, with batch normalization a lot.
So PyTorch trains once more, from weights with other last bits, and Lockstep's
difference may be a few times that of this run. The output also has the growth of
the card's memory, all of it, which may be PyTorch's at most.
"""
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, max_pool2d, relu

import card_memory
import judge
import plain_safetensors
import torch_pair

# The same numbers stand in compare_rank_main.cc.
STEPS_OF_GRADIENTS = 1, 3
RATES, MOMENTUM = {"cnn": 0.01, "mlp": 0.01, "resnet18": 0.001}, 0.9
CLASSES = 10

SEED, BATCHES = 7, 4
# For each side.
SECONDS = float(os.environ.get("LOCKSTEP_COMPARE_SECONDS", 100))
# Always allowed; the factor over PyTorch's difference from itself; and the upper
# limit: a missing rank, or a sum instead of an average, gives 0.5 to 1.
LOSS_LIMITS = {"float32": 1e-5, "bfloat16": 1e-2}
LIMITS = {"float32": {"gradients": 1e-5, "parameters": 1e-4},
          "bfloat16": {"gradients": 1e-3, "parameters": 1e-2}}
TIMES_THEIRS, MOST = 4, 0.2


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, CLASSES)

    def forward(self, x):
        x = relu(max_pool2d(self.conv1(x), 2))
        x = relu(max_pool2d(self.conv2(x), 2))
        return self.fc2(relu(self.fc1(x.flatten(1))))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(784, 512)
        self.fc2 = nn.Linear(512, 256)
        self.fc3 = nn.Linear(256, CLASSES)

    def forward(self, x):
        return self.fc3(relu(self.fc2(relu(self.fc1(x.flatten(1))))))


def make_model(name):
    torch.manual_seed(SEED)
    if name == "resnet18":
        import torchvision
        return torchvision.models.resnet18(num_classes=CLASSES)
    return {"cnn": Cnn, "mlp": Mlp}[name]()


def make_data(name, device, ranks):
    torch.manual_seed(SEED)
    samples = 32 if device == "cuda" else 8
    side = 224 if device == "cuda" else 64
    image = (3, side, side) if name == "resnet18" else (1, 28, 28)
    shape = (BATCHES, ranks, samples)
    return torch.randn(*shape, *image), torch.randint(CLASSES, shape)


def write_tensors(path, tensors):
    types = {torch.float32: "F32", torch.int64: "I64"}
    plain_safetensors.write(path, {
        name: (types[value.dtype], list(value.shape),
               value.contiguous().numpy().tobytes())
        for name, value in tensors.items()}, {})


def read_tensors(path):
    types = {"F32": torch.float32, "I64": torch.int64}
    tensors, _ = plain_safetensors.read(path)
    return {name: torch.frombuffer(bytearray(data), dtype=types[kind])
            .reshape(shape) for name, (kind, shape, data) in tensors.items()}


def be_exact():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)


def change_last_bits(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + torch.empty_like(parameter).uniform_(-1, 1) * 2**-22)


def train(model, name, precision, steps, images, labels):
    """The gradients of one step and all of the model at the end, by name."""
    replica = nn.parallel.DistributedDataParallel(
        model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATES[name],
                                momentum=MOMENTUM)
    found = {"losses": {}}
    for step in range(1, steps + 1):
        batch = (step - 1) % BATCHES
        optimizer.zero_grad()
        with torch.autocast(images.device.type, torch.bfloat16,
                            enabled=precision == "bfloat16"):
            loss = cross_entropy(replica(images[batch]), labels[batch])
        loss.backward()
        if step in STEPS_OF_GRADIENTS:
            found["losses"][str(step)] = loss.detach().float().cpu()
            found[f"gradients_{step}"] = {key: parameter.grad.cpu().clone() for
                                  key, parameter in model.named_parameters()}
        optimizer.step()
    found["parameters"] = {key: value.cpu().clone()
                           for key, value in model.state_dict().items()}
    if dist.get_rank() == 0:
        print(f"PyTorch's loss {loss.item()}", flush=True)
    return found


def wait_for_all(folder, rank, ranks):
    """No rank ends, and closes its connections, before the others have reduced. A
    collective would not do: the first rank that has its result would end."""
    (folder / f"done-{rank}").touch()
    end = time.monotonic() + 60
    while not all((folder / f"done-{r}").exists() for r in range(ranks)):
        if time.monotonic() > end:
            sys.exit("compare: another of PyTorch's ranks does not end")
        time.sleep(0.01)


def run_rank(device, name, precision, ranks, steps, folder):
    """One of PyTorch's ranks. Rank 0 writes theirs.pt and again.pt."""
    be_exact()
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank = dist.get_rank()
    images, labels = (data[:, rank].to(device) for data in
                      make_data(name, device, int(ranks)))
    for file in ("theirs.pt", "again.pt"):
        model = make_model(name)
        if file == "again.pt":
            change_last_bits(model)
        found = train(model.to(device), name, precision, int(steps), images,
                      labels)
        if rank == 0:
            torch.save(found, Path(folder) / file)
        del model
        # The second model takes no memory beside the first.
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    wait_for_all(Path(folder), rank, int(ranks))
    # Destroying Gloo's group while other ranks end sometimes aborts a rank.
    os._exit(0)


def run_both(program, device, name, precision, ranks, steps, folder):
    """The watches of memory of theirs and of ours; None where a side failed."""
    job = [device, name, precision]
    sides = {
        "PyTorch": [sys.executable, __file__, "rank", *job, ranks, steps, folder],
        "Lockstep": [program, *job, steps, folder]}
    memory = {}
    for side, command in sides.items():
        with card_memory.Watch() as memory[side]:
            if side == "Lockstep":
                command = ["lockstep", "run", "-n", ranks, "--bind", "none",
                           "--", *command]
                statuses = [subprocess.run(command, timeout=SECONDS,
                                           check=False).returncode]
            else:
                statuses = torch_pair.end_of(
                    torch_pair.start_ranks(command, int(ranks)), SECONDS)
        if any(statuses):
            print(f"LAYER {side}\ncompare: {side}'s ranks ended with {statuses}")
            return None
    return memory


def norm(tensors):
    return sum(float(value.double().square().sum())
               for value in tensors) ** 0.5


def difference(ours, theirs, names, zero=None):
    """The norm of the difference of tensors by name, over that of theirs, or of
    the distance from `zero`. NaN if a tensor has one."""
    apart = norm(ours[name] - theirs[name] for name in names)
    way = norm(theirs[name] - (zero[name] if zero else 0) for name in names)
    return apart / way if way else float("nan")


def judged(what, found, again, least):
    limit = min(max(least, TIMES_THEIRS * again), MOST)
    # Comparisons with NaN are false.
    met = found <= limit
    print("RESULT", json.dumps({"what": what, "ours": found, "theirs": again,
                                "limit": limit, "met": met, "unit": "apart"}))
    return met


def judged_loss(case, precision, step, ours, theirs):
    """The difference of one step on rank 0, relative to PyTorch's."""
    apart = float((ours - theirs).abs() / theirs.abs())
    limit = LOSS_LIMITS[precision]
    print("RESULT", json.dumps(
        {"what": f"{case}: loss of step {step}", "ours": apart, "limit": limit,
         "met": apart <= limit, "unit": "apart"}))
    return apart <= limit


def compare(name, precision, folder):
    theirs, again = (torch.load(folder / f"{file}.pt")
                     for file in ("theirs", "again"))
    ours = {what: read_tensors(folder / f"{what}.safetensors") for what in theirs}
    for what, tensors in ours.items():
        if tensors.keys() != theirs[what].keys():
            print(f"compare: {what} have other names")
            return False
    start = read_tensors(folder / "weights.safetensors")
    # Without running statistics.
    trained = theirs["gradients_1"].keys()
    met = [judged_loss(f"{name}, {precision}", precision, step,
                       ours["losses"][step], loss)
           for step, loss in theirs["losses"].items()]
    for what in sorted(theirs.keys() - {"losses"}):
        kind = what.partition("_")[0]
        zero = start if kind == "parameters" else None
        met.append(judged(
            f"{name}, {precision}: {what.replace('_', ' of step ')}",
            *(difference(side[what], theirs[what], trained, zero)
              for side in (ours, again)), LIMITS[precision][kind]))
    return all(met)


def main(program, device, name, precision, ranks, steps):
    try:
        model = make_model(name)
    except ImportError as error:
        print(f"skipped: {error}")
        return judge.SKIP_STATUS
    # With this setting cuBLAS kernels give the same bits each time.
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        images, labels = make_data(name, device, int(ranks))
        write_tensors(folder / "weights.safetensors", model.state_dict())
        write_tensors(folder / "data.safetensors",
                      {"images": images, "labels": labels})
        memory = run_both(program, device, name, precision, ranks, steps, path)
        if memory is None:
            return 1
        # Last, because the report quotes the last line of a failure.
        met = [compare(name, precision, folder),
               card_memory.judged(f"{name}, {precision}", ranks, memory["PyTorch"],
                                  memory["Lockstep"], device)]
        return 0 if all(met) else 1


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        run_rank(*sys.argv[2:])
    else:
        sys.exit(main(*sys.argv[1:]))
