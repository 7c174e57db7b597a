"""Makes a folder of images, trains on it with augmentation, evaluates, and predicts
image by image; then trains an epoch more with images and weights channels-last and,
on several ranks, batch normalization over all of them:

    image_folder.py RANKS DEVICE

prints the accuracies on the folder's other images, which have a least value where
a GPU trains: on the CPU one epoch only shows that the commands work.
"""
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIZE = "64"
TRAINING = ("--model", "resnet18", "--augment", "imagenet", "--optimizer", "adam")
# By device: images, epochs, and the least accuracy.
JOBS = {"cuda": ("5000", "8", 0.9), "cpu": ("300", "1", 0.0)}
# At a low rate, with which a trained model stays one.
ONE_MORE = ("--epochs", "1", "--lr", "0.0001")
# Of the accuracies of evaluate and predict, whose batches differ.
MOST_APART = 0.01


def run(*words):
    return subprocess.run(["lockstep", *words], check=True, text=True,
                          stdout=subprocess.PIPE).stdout


def result(what, ours, **other):
    print("RESULT", json.dumps({"what": what, "ours": ours, **other}), flush=True)


class Job:
    def __init__(self, folder, ranks, device):
        self.count, self.epochs, self.least = JOBS[device]
        self.folder, self.ranks = folder, ranks
        self.images, self.on = str(folder / "images"), ("--device", device)

    def train(self, name, *flags):
        """The path of the model."""
        model = str(self.folder / name)
        print(run("train", "-n", self.ranks, *self.on, "--bind", "none", "--dataset",
                  "imagefolder", "--data-dir", self.images, "--image-size", SIZE,
                  *TRAINING, *flags, "--output", model), flush=True)
        return model

    def evaluate(self, what, model, *flags):
        found = json.loads(run("evaluate", model, *self.on, "--data-dir", self.images,
                               "--json", "-", *flags))
        accuracy = found["accuracy"]
        result(f"accuracy {what}, at least {self.least}", accuracy,
               met=accuracy >= self.least)
        return accuracy, [of["name"] for of in found["classes"]]

    def predict(self, model, classes):
        """The share of the images in the folder of the class that it predicts."""
        table = run("predict", model, *self.on, "--images", f"{self.images}/val",
                    "-o", "-")
        right = [Path(row["path"]).parent.name == classes[int(row["predicted"])]
                 for row in csv.DictReader(table.splitlines())]
        return sum(right) / max(len(right), 1)


def main(ranks, device):
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), ranks, device)
        print(run("data", "make-images", job.images, "--count", job.count, "--size",
                  SIZE), flush=True)
        what = f"{ranks} rank(s), {' '.join(TRAINING)} --epochs {job.epochs}"
        began = time.monotonic()
        model = job.train("model.safetensors", "--epochs", job.epochs)
        # Sockets take most of the time of ranks that share a GPU.
        if "LOCKSTEP_SHARE_GPUS" not in os.environ:
            result(f"seconds to train on a folder of {job.count} images, {what}",
                   time.monotonic() - began, unit="s")
        accuracy, classes = job.evaluate(f"then, {what}", model)
        apart = abs(job.predict(model, classes) - accuracy)
        result("accuracy of lockstep predict", apart, unit="apart", limit=MOST_APART,
               met=apart <= MOST_APART)
        flags = ["--channels-last", *(["--sync-bn"] if int(ranks) > 1 else [])]
        model = job.train("more.safetensors", "--weights", model, *ONE_MORE, *flags)
        job.evaluate(f"after one epoch more, {ranks} rank(s), {' '.join(flags)}", model,
                     "--channels-last")


if __name__ == "__main__":
    main(*sys.argv[1:])
