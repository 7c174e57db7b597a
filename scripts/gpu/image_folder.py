"""Makes a folder of images, trains on it with augmentation, and evaluates:

    image_folder.py RANKS DEVICE

prints the accuracy on the folder's other images, which has a least value where a
GPU trains: on the CPU one epoch of a small model only shows that the commands work.
"""
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIZE = "64"
# By device: images, the flags of training, and the least accuracy.
JOBS = {
    "cuda": ("5000", ("--model", "resnet18", "--augment", "imagenet",
                      "--optimizer", "adam", "--epochs", "8"), 0.9),
    "cpu": ("300", ("--model", "convnet", "--augment", "imagenet",
                    "--epochs", "1"), 0.0),
}


def run(*words):
    return subprocess.run(["lockstep", *words], check=True, text=True,
                          stdout=subprocess.PIPE).stdout


def main():
    ranks, device = sys.argv[1:]
    count, training, least = JOBS[device]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        images, model = str(folder / "images"), str(folder / "model.safetensors")
        print(run("data", "make-images", images, "--count", count, "--size", SIZE))
        began = time.monotonic()
        print(run("train", "-n", ranks, "--device", device, "--bind", "none",
                  "--dataset", "imagefolder", "--data-dir", images,
                  "--image-size", SIZE, *training, "--output", model))
        seconds = time.monotonic() - began
        accuracy = json.loads(run("evaluate", model, "--device", device, "--data-dir",
                                  images, "--json", "-"))["accuracy"]
    where = f"{ranks} rank(s), {' '.join(training)}"
    print("RESULT", json.dumps({"what": f"seconds to train on a folder of {count} "
                                f"images, {where}", "unit": "s", "ours": seconds}))
    print("RESULT", json.dumps({"what": f"accuracy then, at least {least}",
                                "ours": accuracy, "met": accuracy >= least}))
    if accuracy < least:
        sys.exit(f"the accuracy is {accuracy}, below {least}")


if __name__ == "__main__":
    main()
