"""The small models of the benchmarks, as LibTorch's programs here have them."""
import torch
from torch import nn
from torch.nn import functional as F


class Cnn(nn.Module):
    """The network of PyTorch's MNIST tutorial."""

    def __init__(self, dropout):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.conv2_drop = nn.Dropout2d(dropout)
        self.fc1 = nn.Linear(320, 50)
        self.dropout = nn.Dropout(dropout)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(self.dropout(x))


def make_model(name, seed, dropout):
    """`cnn`, or `mlp`: 784-4096-4096-10."""
    torch.manual_seed(seed)
    if name == "cnn":
        return Cnn(dropout)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 4096),
        nn.ReLU(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Linear(4096, 10),
    )
