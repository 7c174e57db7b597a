"""The same as ../data_main.cc, with torchvision's transforms on PIL images:

    torchvision_images.py FILE REQUESTS    answers questions
    torchvision_images.py make FILE        makes the photo, a JPEG

Texts are those of ../data_main.cc; ToTensor is written out where floats follow.
"""
import glob
import io
import json
import pathlib
import re
import site
import sys
import time

import numpy as np
import torch
from PIL import Image

# The transforms need none of torchvision's own operators, which do not load
# beside PyTorch's CPU build: they are declared by name.
for path in glob.glob(site.getsitepackages()[0] + "/torchvision/**/*.py", recursive=True):
    for name in set(re.findall(r'register_fake\("torchvision::([a-z_0-9]+)"',
                               pathlib.Path(path).read_text(encoding="utf-8"))):
        boxes = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        try:
            torch.library.define("torchvision::" + name,
                                 boxes if name == "nms" else "(Tensor a) -> Tensor")
        except RuntimeError:
            pass  # declared already
from torchvision import transforms as t  # noqa: E402

SEED, WARM_UP = 1, 20
PHOTO = (375, 500)  # height, width
NAMES = {
    "resize": t.Resize,
    "center_crop": t.CenterCrop,
    "random_resized_crop": t.RandomResizedCrop,
    "hflip": t.RandomHorizontalFlip,
    "vflip": t.RandomVerticalFlip,
    "random_rotation": t.RandomRotation,
    "random_affine": t.RandomAffine,
    "color_jitter": t.ColorJitter,
    "to_tensor": t.ToTensor,
    "normalize": lambda by: t.Normalize(*by),
    "imagenet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
}


def compose(text):
    """A text's arguments are Python's."""
    parts = [part.strip() for part in text.split("|")]
    made = []
    for part in parts:
        if part.startswith("normalize") and "to_tensor" not in text:
            made.append(t.ToTensor())
        made.append(eval(part if "(" in part else part + "()", dict(NAMES)))
    return t.Compose(made)


def make_photo(path):
    """Brightness and colour that change over all distances, the more the
    larger, and edges, as in a photo."""
    height, width = PHOTO
    random = np.random.default_rng(SEED)
    pixels = np.full((height, width, 3), 120.0)
    for cells, light, color in [(2, 60, 25), (5, 40, 15), (12, 25, 8), (30, 15, 4),
                                (75, 9, 2), (180, 5, 1), (375, 4, 1)]:
        waves = random.normal(size=(cells, cells * 4 // 3, 4)).astype(np.float32)
        large = np.stack([np.asarray(Image.fromarray(waves[:, :, i]).resize(
            (width, height), Image.BICUBIC)) for i in range(4)], axis=2)
        pixels += light * large[:, :, :1] + color * large[:, :, 1:]
    y, x = np.mgrid[:height, :width]
    for _ in range(12):
        across, down = random.uniform(0, width), random.uniform(0, height)
        wide, high = random.uniform(15, 90, 2)
        inside = ((x - across) / wide) ** 2 + ((y - down) / high) ** 2 < 1
        pixels[inside] += random.normal(0, 35, 3)
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    image.save(path, "JPEG", quality=90)


class Images:
    def __init__(self, path):
        self.contents = pathlib.Path(path).read_bytes()
        self.photo = self.decode()

    def decode(self):
        return Image.open(io.BytesIO(self.contents)).convert("RGB")

    def cut(self, side):
        return t.functional.center_crop(self.photo, [side] * 2) if side else self.photo

    def answer(self, request):
        what, *rest = request.split(" ", 1)
        if what == "sum":
            pixels = np.asarray(compose(rest[0])(self.photo)).ravel().astype(np.int64)
            return {"sum": int((pixels * (np.arange(pixels.size) % 251 + 1)).sum())}
        seconds, *rest = rest[0].split(" ", 1)
        if what in ("pixels", "numbers"):
            side, text = rest[0].split(" ", 1)
            change, image = compose(text), self.cut(int(side))
            return self.rate(float(seconds), lambda: change(image))
        if what == "decode":
            return self.rate(float(seconds), self.decode)
        _, text = rest[0].split(" ", 1)  # torchvision decodes exactly in both
        change = compose(text)
        return self.rate(float(seconds), lambda: change(self.decode()))

    def rate(self, seconds, make):
        for _ in range(WARM_UP):
            make()
        images, took, begin = 0, 0.0, time.process_time()
        while took < seconds:
            make()
            images += 1
            took = time.process_time() - begin
        return {"images_per_second": images / took}


def main():
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    if sys.argv[1] == "make":
        make_photo(sys.argv[2])
        return
    images = Images(sys.argv[1])
    with open(f"{sys.argv[2]}.0", encoding="utf-8") as requests:
        for request in requests:
            print(json.dumps(images.answer(request.rstrip("\n"))), flush=True)


main()
