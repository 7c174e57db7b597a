"""Compares our ResNets with the same networks written with torch.

usage: resnet_golden.py PROGRAM MODEL SIDE

PROGRAM is resnet_golden_main.cc. From one seed both sides must start from equal
weights under equal names, to the bit, and agree within a tolerance on weights and
running statistics after three steps, and on logits in evaluation.
"""

import pathlib
import subprocess
import sys
import tempfile

import plain_safetensors
import torch
from torch import nn
from torch.nn.functional import cross_entropy

# The same numbers stand in resnet_golden_main.cc.
IMAGES = 6
CLASSES = 10
STEPS = 3
LEARNING_RATE = 0.01

SEED = 3
TOLERANCE = 2e-4
DEPTHS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3),
          "resnet50": (3, 4, 6, 3)}
TYPES = {"F32": torch.float32, "I64": torch.int64}


class Block(nn.Module):
    """Two 3 x 3 convolutions, or a 3 x 3 one between 1 x 1 ones, and a shortcut.
    It makes the downsample first, because the order decides which layer draws what."""

    def __init__(self, inputs, width, stride, bottleneck):
        super().__init__()
        outputs = 4 * width if bottleneck else width
        downsample = None
        if stride != 1 or inputs != outputs:
            downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                nn.BatchNorm2d(outputs))
        sizes = ([(inputs, width, 1, 1), (width, width, 3, stride),
                  (width, outputs, 1, 1)] if bottleneck else
                 [(inputs, width, 3, stride), (width, width, 3, 1)])
        self.count = len(sizes)
        for i, (a, b, kernel, step) in enumerate(sizes, 1):
            setattr(self, f"conv{i}", nn.Conv2d(a, b, kernel, step, kernel // 2,
                                                bias=False))
            setattr(self, f"bn{i}", nn.BatchNorm2d(b))
        self.downsample = downsample

    def forward(self, x):
        y = x
        for i in range(1, self.count + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            y = y.relu() if i < self.count else y
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class ResNet(nn.Module):
    def __init__(self, name, side):
        super().__init__()
        self.large = side >= 64
        bottleneck = name == "resnet50"
        self.conv1 = (nn.Conv2d(3, 64, 7, 2, 3, bias=False) if self.large else
                      nn.Conv2d(3, 64, 3, 1, 1, bias=False))
        self.bn1 = nn.BatchNorm2d(64)
        channels = 64
        for stage, depth in enumerate(DEPTHS[name]):
            blocks = []
            for i in range(depth):
                stride = 2 if stage > 0 and i == 0 else 1
                blocks.append(Block(channels, 64 << stage, stride, bottleneck))
                channels = (64 << stage) * (4 if bottleneck else 1)
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(channels, CLASSES)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out",
                                        nonlinearity="relu")

    def forward(self, x):
        x = self.bn1(self.conv1(x)).relu()
        if self.large:
            x = nn.functional.max_pool2d(x, 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def read(path):
    tensors, _ = plain_safetensors.read(path)
    return {name: torch.frombuffer(bytearray(content), dtype=TYPES[kind])
            .reshape(shape) for name, (kind, shape, content) in tensors.items()}


def largest_difference(ours, theirs):
    return max((ours[name] - theirs[name]).abs().max().item() for name in theirs)


def compare(model, images, labels, directory):
    """One line per disagreement."""
    ours = read(directory / "initial.safetensors")
    model.load_state_dict(ours, strict=True)  # names and shapes
    torch.manual_seed(SEED)
    fresh = ResNet(sys.argv[2], images.shape[2])
    for name, value in fresh.state_dict().items():
        if not torch.equal(value, ours[name]):
            yield f"{name} starts from other values"
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
    trained = read(directory / "trained.safetensors")
    weights = largest_difference(trained, model.state_dict())
    moved = largest_difference(trained, ours)
    model.eval()
    logits = torch.from_file(str(directory / "logits.f32"),
                             size=IMAGES * CLASSES).reshape(IMAGES, CLASSES)
    with torch.no_grad():
        outputs = (model(images) - logits).abs().max().item()
    print(f"{sys.argv[2]}: state differs by at most {weights:.2g} after moving "
          f"by {moved:.2g}; logits by {outputs:.2g} of {logits.abs().max():.2g}")
    if not weights <= TOLERANCE or not outputs <= TOLERANCE * logits.abs().max():
        yield f"more than the tolerance of {TOLERANCE}"


def main(program, name, side):
    torch.set_num_threads(1)
    torch.manual_seed(11)
    images = torch.randn(IMAGES, 3, side, side)
    labels = torch.randint(CLASSES, (IMAGES,))
    with tempfile.TemporaryDirectory() as folder:
        directory = pathlib.Path(folder)
        images.numpy().tofile(directory / "images.f32")
        labels.numpy().tofile(directory / "labels.i64")
        subprocess.run([program, name, str(side), str(SEED), folder], check=True)
        return "\n".join(
            compare(ResNet(name, side), images, labels, directory)) or None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
