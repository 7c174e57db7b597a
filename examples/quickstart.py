"""quickstart.cc in PyTorch, for PyTorch users: the same network, data and order
give the same losses.

    torchrun --nproc-per-node 2 quickstart.py

(*) marks what data parallelism adds to an ordinary PyTorch program.
"""
import gzip
import os

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

FOLDER = "/usr/share/datasets/fashion-mnist"  # of Debian's package


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(784, 128)
        self.output = nn.Linear(128, 10)

    def forward(self, images):
        return self.output(torch.relu(self.hidden(images.flatten(1))))


def read_idx(name, header_bytes):
    with gzip.open(os.path.join(FOLDER, name)) as file:
        data = numpy.frombuffer(file.read(), numpy.uint8, offset=header_bytes)
    return torch.from_numpy(data.copy())


def load_fashion_mnist():
    pixels = read_idx("train-images-idx3-ubyte.gz", 16).view(-1, 1, 28, 28)
    labels = read_idx("train-labels-idx1-ubyte.gz", 8).long()
    return TensorDataset((pixels / 255 - 0.2860) / 0.3530, labels)


def main():
    dist.init_process_group("gloo")  # (*)
    train = load_fashion_mnist()

    torch.manual_seed(0)
    model = DistributedDataParallel(Net())  # (*)
    sampler = DistributedSampler(train)     # (*)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    for epoch in range(2):
        sampler.set_epoch(epoch)  # (*)
        loader = DataLoader(train, batch_size=64, sampler=sampler)
        total = 0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()  # averages the gradients over the ranks meanwhile
            optimizer.step()
            total += loss.item()
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: mean loss {total / len(loader):.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
