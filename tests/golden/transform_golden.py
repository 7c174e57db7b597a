"""Compares the transforms of src/data with those of torchvision on PIL images.

usage: transform_golden.py PROGRAM

PROGRAM is transform_golden_main.cc. Three comparisons:

- Each transform whose range holds one value, beside torchvision's function with
  that value.
- Whole pipelines with random parameters: torchvision's functions with the
  parameters that the program has drawn.
- The distribution of the random parameters, beside those of torchvision's
  get_params(), by the test of Kolmogorov and Smirnov.

Pixels must be equal to the bit; LOOSE names the transforms of which a stated share
may differ, by 1.
"""
import glob
import json
import math
import pathlib
import re
import site
import subprocess
import sys
import tempfile

import numpy as np
import torch
from PIL import Image

# The operators of torchvision's own library are not needed. The wheel's are made for
# CUDA and do not load beside PyTorch's CPU build, so they are declared by name only.
for path in glob.glob(site.getsitepackages()[0] + "/torchvision/**/*.py", recursive=True):
    for name in set(re.findall(r'register_fake\("torchvision::([a-z_0-9]+)"',
                               pathlib.Path(path).read_text(encoding="utf-8"))):
        schema = ("(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                  if name == "nms" else "(Tensor a) -> Tensor")
        try:
            torch.library.define("torchvision::" + name, schema)
        except RuntimeError:
            pass  # declared already
try:
    from torchvision import transforms
    from torchvision.transforms import functional as F
    from torchvision.transforms import InterpolationMode
except ImportError:
    print("skipped: this Python has no torchvision")
    sys.exit(77)

SEED = 20261127
BY = [InterpolationMode.NEAREST, InterpolationMode.BILINEAR, InterpolationMode.BICUBIC]
PIL_BY = [Image.Resampling.NEAREST, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC]
MODES = ["constant", "edge", "reflect", "symmetric"]
# Operation → the share of pixels that may differ by 1: sums in another order.
LOOSE = {"blur": 0.002}
SIZES = [(1, 1), (1, 9), (9, 1), (3, 200), (200, 3), (64, 48), (97, 131)]


class Program:
    """Runs cases, all in one process."""

    def __init__(self, path):
        self.path = path
        self.folder = tempfile.TemporaryDirectory(prefix="transform-golden-")
        self.cases = []

    def add(self, text, image=None, size=None, index=0):
        height, width = size or image.shape[:2]
        case = {"text": text, "seed": SEED, "epoch": 1, "index": index,
                "height": height, "width": width, "channels": 3}
        if image is not None:
            case["channels"] = 1 if image.ndim == 2 else 3
            case["image"] = f"{len(self.cases)}.raw"
            (pathlib.Path(self.folder.name) / case["image"]).write_bytes(image.tobytes())
        self.cases.append(case)
        return len(self.cases) - 1

    def run(self):
        folder = pathlib.Path(self.folder.name)
        (folder / "cases.json").write_text(json.dumps(self.cases), encoding="utf-8")
        done = subprocess.run([self.path, folder], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"FAILED: {done.stderr}")
        self.operations = [json.loads(line) for line in done.stdout.splitlines()]

    def pixels(self, number, size):
        channels = self.cases[number]["channels"]
        data = np.fromfile(f"{self.folder.name}/{number}.pixels", np.uint8)
        shape = size if channels == 1 else (*size, 3)
        return data.reshape(shape) if data.size == math.prod(shape) else data

    def floats(self, number):
        return np.fromfile(f"{self.folder.name}/{number}.floats", np.float32)


class Verdict:
    def __init__(self):
        self.compared = self.failed = 0

    def pixels(self, what, ours, theirs, share):
        self.compared += 1
        if ours.shape != theirs.shape:
            return self.fail(what, f"{ours.shape} instead of {theirs.shape}")
        different = ours != theirs
        apart = np.abs(ours.astype(int) - theirs.astype(int)).max(initial=0)
        if different.mean() > share or apart > (1 if share else 0):
            self.fail(what, f"{different.sum()} of {different.size} values differ, by up to "
                            f"{apart}; seed {SEED}")

    def fail(self, what, problem):
        self.failed += 1
        print(f"FAILED: {what}: {problem}")


def images(generator):
    """Noise, and smooth colours; grey ones too."""
    for height, width in SIZES:
        noise = generator.integers(0, 256, (height, width, 3), np.uint8)
        coarse = generator.integers(0, 256, (3, 4, 3), np.uint8)
        yield noise
        yield np.asarray(Image.fromarray(coarse).resize((width, height), Image.BICUBIC))
        yield noise[:, :, 0].copy()


def single_values():
    """(text, what torchvision does to a PIL image)."""
    for by, name in zip(BY, ["nearest", "bilinear", "bicubic"]):
        for size in [(224, 224), (17, 40), (5, 300), (1, 1)]:
            yield (f"resize(({size[0]}, {size[1]}), {name})",
                   lambda image, size=size, by=by: F.resize(image, list(size), by))
        yield (f"resize(50, {name})",
               lambda image, by=by: F.resize(image, [50], by))
        yield (f"resize(20, {name}, max_size=25)",
               lambda image, by=by: F.resize(image, [20], by, max_size=25))
        angles = np.random.default_rng(3).uniform(-720, 720, 20)
        for angle in [0, 13, 45, 90, 133.7, 180, 270, -30, -1e-13, *map(float, angles)]:
            for extra in [{}, {"expand": True}, {"center": (3.5, 20)}]:
                said = "".join(f", {k}={str(v).lower()}" for k, v in extra.items())
                yield (f"random_rotation(({angle}, {angle}), {name}, fill=(9, 120, 250){said})",
                       lambda image, a=angle, by=by, extra=extra: F.rotate(
                           image, a, by, fill=fill(image), **extra))
        for angle, scale, shear in [(0, 1, (0, 0)), (0, 1.3, (0, 0)), (20, 0.7, (0, 0)),
                                    (-75, 1.1, (12, -20)), (45, 2.5, (0, 30)),
                                    *((float(a), 0.9, (float(a) / 50, float(a) / 30))
                                      for a in angles)]:
            yield (f"random_affine(({angle}, {angle}), scale=({scale}, {scale}), "
                   f"shear=({shear[0]}, {shear[0]}, {shear[1]}, {shear[1]}), "
                   f"interpolation={name}, fill=(9, 120, 250))",
                   lambda image, a=angle, s=scale, h=shear, by=by: F.affine(
                       image, a, [0, 0], s, list(h), by, fill=fill(image)))
    for size in [(30, 20), (224, 224), (1, 1), (64, 9)]:
        yield f"center_crop({size})", lambda image, size=size: F.center_crop(image, list(size))
    for factor in [0, 0.3, 1, 1.7, 4]:
        for name in ["brightness", "contrast", "saturation"]:
            yield (f"color_jitter({name}=({factor}, {factor}))",
                   lambda image, f=factor, n=name: getattr(F, "adjust_" + n)(image, f))
    for factor in [-0.5, -0.31, -0.1, 0.002, 0.1, 0.25, 0.5]:
        yield (f"color_jitter(hue=({factor}, {factor}))",
               lambda image, f=factor: F.adjust_hue(image, f))
    yield "random_grayscale(1)", lambda image: F.to_grayscale(
        image, 1 if image.mode == "L" else 3)
    yield "hflip(1)", F.hflip
    yield "vflip(p=1)", F.vflip


def fill(image):
    return 9 if image.mode == "L" else (9, 120, 250)


def compare_single_values(program, verdict, generator):
    asked = [(text, function, image, program.add(text, image))
             for image in images(generator) for text, function in single_values()
             # Of an image of 3 x 200 no row would be left.
             if "max_size" not in text or max(image.shape[:2]) < 20 * min(image.shape[:2])]
    for kernel, sigma in [((3, 3), 0.5), ((5, 1), 2.0), ((23, 9), 1.3)]:
        text = f"gaussian_blur({kernel}, sigma=({sigma}, {sigma}))"
        asked += [(text, lambda image, k=kernel, s=sigma: F.gaussian_blur(
                       image, list(k), [s, s]), image, program.add(text, image))
                  for image in images(generator)
                  if kernel[1] // 2 < image.shape[0] and kernel[0] // 2 < image.shape[1]]

    def judge():
        for text, function, image, number in asked:
            theirs = np.asarray(function(Image.fromarray(image)))
            ours = program.pixels(number, theirs.shape[:2])
            share = LOOSE["blur"] if "blur" in text else 0
            verdict.pixels(f"{text} of {image.shape}", ours, theirs, share)
    return judge


def replay(operation, image):
    """What PIL and torchvision do with drawn parameters, to a PIL image or a tensor."""
    grey = isinstance(image, Image.Image) and image.mode == "L"

    def fill_of():
        return operation["fill"][0] if grey else tuple(operation["fill"])

    def resized(size):
        return F.resize(image, size, BY[operation["by"]])

    def hue():
        h, s, v = image.convert("HSV").split()
        h = Image.fromarray(np.asarray(h) + np.uint8(operation["steps"]))
        return Image.merge("HSV", (h, s, v)).convert("RGB")

    return {
        "pad": lambda: F.pad(image, operation["sides"], fill_of(), MODES[operation["mode"]]),
        "crop": lambda: F.crop(image, *operation["region"]),
        "resize": lambda: resized(operation["size"]),
        "mirror": lambda: (F.vflip if operation["vertical"] else F.hflip)(image),
        "turn": lambda: image.rotate(90 * operation["quarters"], expand=True),
        "affine": lambda: image.transform(
            operation["size"][::-1], Image.Transform.AFFINE, operation["matrix"],
            PIL_BY[operation["by"]], fillcolor=fill_of()),
        "adjust": lambda: [F.adjust_brightness, F.adjust_contrast, F.adjust_saturation][
            operation["property"]](image, operation["factor"]),
        "hue": lambda: image if grey else hue(),
        "gray": lambda: F.to_grayscale(image, 1 if grey else 3),
        "blur": lambda: F.gaussian_blur(image, operation["kernel"][::-1],
                                        [operation["sigma"]] * 2),
        "to_tensor": lambda: F.to_tensor(image),
        "normalize": lambda: F.normalize(image, operation["mean"], operation["std"]),
        "erase": lambda: F.erase(image, *operation["region"],
                                 torch.tensor(operation["value"])[:, None, None]),
    }[operation["is"]]()


PIPELINES = [
    "random_resized_crop(224) | hflip | vflip | random_rotation(45) | random_affine(45) | "
    "color_jitter(0.4, 0.4, 0.4, 0.1) | normalize(imagenet) | random_erasing(value=(1, 2, 3))",
    "random_crop((40, 30), padding=(5, 7), pad_if_needed=true, padding_mode=edge) | hflip",
    "random_crop(64, pad_if_needed=true, padding_mode=constant, fill=(1, 2, 3)) | vflip",
    "resize(80) | random_crop(70, 20, padding_mode=reflect) | random_grayscale(0.5)",
    "resize(80) | random_crop(70, 80, padding_mode=symmetric) | to_tensor | random_erasing(1)",
    "random_affine((-180, 180), (0.3, 0.2), (0.5, 2), (-10, 10, -20, 20), bilinear) | "
    "gaussian_blur(1)",
    "random_resized_crop((30, 50), (0.2, 0.9), (0.3, 5), bicubic) | color_jitter(hue=0.5)",
]


def compare_pipelines(program, verdict, generator):
    asked = []
    for text in PIPELINES:
        for index in range(40):
            size = (int(generator.integers(2, 150)), int(generator.integers(2, 150)))
            image = generator.integers(0, 256, (*size, 3), np.uint8)
            asked.append((text, image, program.add(text, image, index=index)))

    def judge():
        for text, image, number in asked:
            theirs = Image.fromarray(image)
            for operation in program.operations[number]:
                theirs = replay(operation, theirs)
            theirs = theirs.numpy().ravel()
            ours = program.floats(number)
            verdict.compared += 1
            if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=0, atol=1e-6):
                verdict.fail(f"{text} of {image.shape}, index {number}",
                             f"{program.operations[number]}; seed {SEED}")
    return judge


def are_alike(ours, theirs):
    """Whether two samples may come from one distribution, at a level of 1e-4."""
    ours, theirs = np.sort(ours), np.sort(theirs)
    points = np.concatenate([ours, theirs])
    apart = np.abs(np.searchsorted(ours, points, "right") / len(ours)
                   - np.searchsorted(theirs, points, "right") / len(theirs)).max()
    return apart < math.sqrt(-math.log(1e-4 / 2) / 2 * (len(ours) + len(theirs))
                             / (len(ours) * len(theirs)))


def crop_facts(region):
    top, left, height, width = region
    return {"area": height * width, "ratio": width / height, "top": top, "left": left}


def distributions(count, size):
    """(text, what to note of our operations, what torchvision draws), as columns."""
    image = Image.new("RGB", size[::-1])
    jitter = transforms.ColorJitter(0.4, (0.5, 0.9), 0.3, 0.2)

    def drawn_jitter():
        order, *factors = jitter.get_params(jitter.brightness, jitter.contrast,
                                            jitter.saturation, jitter.hue)
        return {"first": int(order[0]), "last": int(order[3]), "brightness": factors[0],
                "contrast": factors[1], "saturation": factors[2],
                "hue": np.uint8(int(factors[3] * 255) % 256)}

    def our_jitter(operations):
        kinds = [3 if one["is"] == "hue" else one["property"] for one in operations[:4]]
        value = {3 if one["is"] == "hue" else one["property"]: one for one in operations[:4]}
        return {"first": kinds[0], "last": kinds[3], "brightness": value[0]["factor"],
                "contrast": value[1]["factor"], "saturation": value[2]["factor"],
                "hue": value[3]["steps"]}

    def crop_of(operations):
        crops = [one["region"] for one in operations if one["is"] == "crop"]
        return crop_facts(crops[0] if crops else (0, 0, *size))

    def matrix_facts(matrix):
        return {f"m{i}": value for i, value in enumerate(matrix)}

    def drawn_affine():
        a, t, s, h = transforms.RandomAffine.get_params(
            [-30, 30], [0.1, 0.2], [0.8, 1.2], [-5, 5, -9, 9], list(size[::-1]))
        return matrix_facts(F._get_inverse_affine_matrix(
            [size[1] * 0.5, size[0] * 0.5], a, t, s, h))

    def drawn_erasing():
        top, left, height, width, _ = transforms.RandomErasing.get_params(
            torch.zeros(3, *size), (0.02, 0.33), (0.3, 3.3), [0.0])
        return crop_facts((top, left, height, width))

    yield ("random_resized_crop(32)", crop_of,
           lambda: crop_facts(transforms.RandomResizedCrop.get_params(
               image, [0.08, 1], [3 / 4, 4 / 3])))
    yield ("random_crop(32)", crop_of,
           lambda: crop_facts(transforms.RandomCrop.get_params(image, (32, 32))))
    yield ("random_affine(30, (0.1, 0.2), (0.8, 1.2), (-5, 5, -9, 9))",
           lambda operations: matrix_facts(operations[0]["matrix"]), drawn_affine)
    yield ("random_rotation((-20, 50))",
           lambda operations: {"sine": operations[0]["matrix"][3]},
           lambda: {"sine": math.sin(math.radians(
               transforms.RandomRotation.get_params([-20, 50])))})
    yield "color_jitter(0.4, (0.5, 0.9), 0.3, 0.2)", our_jitter, drawn_jitter
    yield ("gaussian_blur(3, (0.5, 2))", lambda operations: {"sigma": operations[0]["sigma"]},
           lambda: {"sigma": transforms.GaussianBlur.get_params(0.5, 2)})
    yield ("random_erasing(1)",
           lambda operations: crop_facts(operations[1]["region"]), drawn_erasing)
    yield ("hflip(0.3)", lambda operations: {"flips": operations[0]["is"] == "mirror"},
           lambda: {"flips": float(torch.rand(1)) < 0.3})
    yield ("random_grayscale", lambda operations: {"gray": operations[0]["is"] == "gray"},
           lambda: {"gray": float(torch.rand(1)) < 0.1})


def compare_distributions(program, verdict, count=2000):
    torch.manual_seed(SEED)
    size = (90, 150)
    asked = [(text, note, [draw() for _ in range(count)],
              [program.add(text, size=size, index=i) for i in range(count)])
             for text, note, draw in distributions(count, size)]

    def judge():
        for text, note, theirs, numbers in asked:
            ours = [note(program.operations[number]) for number in numbers]
            for fact in theirs[0]:
                verdict.compared += 1
                if not are_alike(*(np.array([float(one[fact]) for one in drawn])
                                   for drawn in (ours, theirs))):
                    verdict.fail(text, f"{fact} is distributed differently; seed {SEED}")
    return judge


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    generator = np.random.default_rng(SEED)
    program, verdict = Program(sys.argv[1]), Verdict()
    judges = [compare_single_values(program, verdict, generator),
              compare_pipelines(program, verdict, generator),
              compare_distributions(program, verdict)]
    program.run()
    for judge in judges:
        judge()
    print(f"seed {SEED}: {verdict.compared} compared, {verdict.failed} differ")
    sys.exit(1 if verdict.failed or verdict.compared == 0 else 0)


main()
