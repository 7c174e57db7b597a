"""The models of the benchmarks, as LibTorch's programs here have them: the same
layers, and the same weights after the same seed."""
import torch
from torch import nn
from torch.nn import functional as F

# The transformer's, as ../causal_transformer.h has them.
VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS = 256, 64, 256, 4, 4
EMBEDDING_DEVIATION = 0.02


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


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut. It draws its weights in the
    order in which torchvision's block does: the shortcut's first."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        downsample = None
        if stride != 1 or inputs != width:
            downsample = nn.Sequential(
                nn.Conv2d(inputs, width, 1, stride, bias=False),
                nn.BatchNorm2d(width),
            )
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = downsample

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = self.bn2(self.conv2(x))
        x += shortcut
        return F.relu(x, inplace=True)


class ResNet18(nn.Module):
    """torchvision's resnet18 with the paper's stem for small images: a 3 x 3
    convolution of stride 1 and no pooling."""

    def __init__(self, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        blocks, inputs = [], 64
        for stage, width in enumerate((64, 128, 256, 512)):
            blocks.append(ResidualBlock(inputs, width, 2 if stage else 1))
            blocks.append(ResidualBlock(width, width, 1))
            inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(
                    module.weight, mode="fan_out", nonlinearity="relu"
                )

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = F.adaptive_avg_pool2d(self.blocks(x), 1)
        return self.fc(x.flatten(1))


class TransformerBlock(nn.Module):
    """Self-attention and a feed-forward layer, each normalised before."""

    def __init__(self):
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.feed_forward_norm = nn.LayerNorm(WIDTH)
        self.expand = nn.Linear(WIDTH, 4 * WIDTH)
        self.contract = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attend(self.attention_norm(x))
        return x + self.contract(F.gelu(self.expand(self.feed_forward_norm(x))))

    def attend(self, x):
        sequences, length, width = x.shape
        parts = self.queries_keys_values(x)
        parts = parts.view(sequences, length, 3, HEADS, width // HEADS)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(
            queries, keys, values, is_causal=True
        )
        return self.projection(mixed.transpose(1, 2).reshape_as(x))


class CausalTransformer(nn.Module):
    """The twin of ../causal_transformer.h: tokens (sequences x tokens) to
    logits (sequences · tokens x vocabulary)."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(TransformerBlock() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=EMBEDDING_DEVIATION)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x))).flatten(0, 1)


def make_model(name, seed, dropout):
    """`cnn`, `resnet18`, `transformer`, or `mlp`: 784-4096-4096-10."""
    torch.manual_seed(seed)
    if name == "cnn":
        return Cnn(dropout)
    if name == "resnet18":
        return ResNet18(classes=10)
    if name == "transformer":
        return CausalTransformer()
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 4096),
        nn.ReLU(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Linear(4096, 10),
    )
