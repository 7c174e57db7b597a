"""lockstep evaluate and predict on models of lockstep train: on any number of ranks,
beside PyTorch, and with errors."""
import csv
import io
import json
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

import plain_safetensors
from train_data import WithSmallData, write_images

TRAIN = os.environ["LOCKSTEP_TRAIN"]
COMMAND = os.environ["LOCKSTEP_COMMAND"]
EVALUATE = os.environ["LOCKSTEP_EVALUATE"]


class TrainedModel(WithSmallData):
    # Four full blocks of 250 and a short one: three ranks have unequal parts.
    TEST_IMAGES = 1003
    kept = b""

    def setUp(self):
        super().setUp()
        self.model = self.folder / "m.safetensors"
        self.csv = self.folder / "p.csv"
        self.json = self.folder / "e.json"

    def train(self, *flags, model=("--model=mlp", "--hidden=32,16")):
        """Few steps at a low rate, so that the model makes mistakes."""
        result = self.run_program(
            TRAIN, f"--data-dir={self.data}", f"--output={self.model}",
            "--epochs=1", "--lr=0.01", "--global-batch-size=32", *model,
            *flags)
        self.assertEqual(result.returncode, 0, result.stderr)

    def have_model(self):
        """The same model in every test, trained only once."""
        if not TrainedModel.kept:
            self.train()
            TrainedModel.kept = self.model.read_bytes()
        self.model.write_bytes(TrainedModel.kept)

    def run_program(self, *command):
        return subprocess.run([str(word) for word in command],
                              capture_output=True, text=True, check=False,
                              stdin=subprocess.DEVNULL)

    def ask(self, verb, *flags, model=None):
        return self.run_program(COMMAND, verb, model or self.model,
                                f"--data-dir={self.data}", *flags)

    def evaluate(self, *flags, **model):
        """The printed text, and the JSON without times."""
        result = self.ask("evaluate", f"--json={self.json}", *flags, **model)
        self.assertEqual(result.returncode, 0, result.stderr)
        found = json.loads(self.json.read_text())
        for name in "seconds", "images_per_second", "ranks":
            self.assertGreater(found.pop(name), 0)
        return result.stdout, found

    def predict(self, *flags):
        result = self.ask("predict", f"--output={self.csv}", *flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.csv.read_bytes()

    def refusal(self, verb, *flags, code=1, model=None):
        result = self.ask(verb, *flags, model=model)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, "")
        return result.stderr

    def labels(self):
        return (self.data / "t10k-labels-idx1-ubyte").read_bytes()[8:]


class EvaluateAndPredict(TrainedModel):
    def test_every_number_of_ranks_finds_what_training_reported(self):
        self.have_model()
        _, metadata = plain_safetensors.read(self.model)
        found = [self.evaluate("-n", n)[1] for n in (1, 2, 3)]
        self.assertAlmostEqual(found[0]["accuracy"],
                               float(metadata["lockstep.test_accuracy"]),
                               places=6)
        self.assertEqual(found[0]["images"], self.TEST_IMAGES)
        self.assertEqual(sum(map(sum, found[0]["confusion_matrix"])),
                         self.TEST_IMAGES)
        self.assertEqual(found[1:], [found[0]] * 2)

    def test_ranks_with_different_flags_are_refused_on_every_rank(self):
        self.have_model()
        for number, (words, difference) in enumerate([
                ((("evaluate",), ("predict", f"--output={self.csv}")),
                 "the command is lockstep evaluate on rank 0 and lockstep "
                 "predict on rank 1"),
                ((("evaluate", "--split=test"), ("evaluate", "--split=train")),
                 "--split is test on rank 0 and train on rank 1")]):
            ranks = [subprocess.Popen(
                [EVALUATE, verb, str(self.model), f"--data-dir={self.data}",
                 *flags],
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2",
                     "LOCKSTEP_STORE": f"file://{self.folder}/store{number}"},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for rank, (verb, *flags) in enumerate(words)]
            for process in ranks:
                _, errors = process.communicate()
                self.assertEqual(process.returncode, 2, errors)
                self.assertIn(difference, errors)

    def test_channels_last_finds_the_same_but_for_rounding(self):
        self.train(model=("--model=cnn",))
        _, usual = self.evaluate()
        _, last = self.evaluate("--channels-last")
        self.assertAlmostEqual(last["loss"], usual["loss"], places=5)
        self.assertAlmostEqual(last["accuracy"], usual["accuracy"], places=2)

    def test_predictions_have_the_same_bytes_on_every_number_of_ranks(self):
        self.have_model()
        for flags in [], ["--probabilities"]:
            with self.subTest(flags=flags):
                files = {self.predict("-n", n, *flags) for n in (1, 2, 3)}
                self.assertEqual(len(files), 1)

    def test_predictions_are_those_that_the_confusion_matrix_counts(self):
        self.have_model()
        _, found = self.evaluate("-n", 2)
        rows = list(csv.DictReader(io.StringIO(self.predict().decode())))
        self.assertEqual([int(row["index"]) for row in rows],
                         list(range(self.TEST_IMAGES)))
        self.assertEqual(bytes(int(row["label"]) for row in rows),
                         self.labels())
        counts = [[0] * 10 for _ in range(10)]
        for row in rows:
            counts[int(row["label"])][int(row["predicted"])] += 1
        self.assertEqual(found["confusion_matrix"], counts)
        for i, row in enumerate(found["classes"]):
            self.assertEqual(row["images"], sum(counts[i]))
            self.assertAlmostEqual(row["recall"], counts[i][i] / sum(counts[i]))

    def test_the_guides_python_predicts_the_same_from_the_file(self):
        try:
            import torch
        except ImportError:
            self.skipTest("this Python has no torch")
        guide = Path(__file__).parents[2] / "docs/guides/evaluate.md"
        code = re.search(r"```python\n(.*?)```", guide.read_text(), re.S)[1]
        self.assertIn("model.safetensors", code)
        raw = (self.data / "t10k-images-idx3-ubyte").read_bytes()[16:]
        pixels = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        for model in ["--model=mlp", "--hidden=32,16"], ["--model=cnn"], []:
            with self.subTest(model=model):
                self.train(model=model)
                names = {}
                exec(code.replace("model.safetensors", str(self.model)), names)
                with torch.no_grad():
                    expected = names["logits"](
                        pixels.reshape(-1, 1, 28, 28)).softmax(1)
                self.compare(expected, torch)

    def compare(self, expected, torch):
        rows = list(csv.reader(io.StringIO(
            self.predict("-n", 2, "--probabilities").decode())))
        self.assertEqual(rows[0][:7],
                         ["index", "label", "predicted", "class", "probability",
                          "T-shirt/top", "Trouser"])
        names = rows[0][5:]
        self.assertEqual([row[3] for row in rows[1:]],
                         [names[int(row[2])] for row in rows[1:]])
        found = torch.tensor([[float(field) for field in row[4:]]
                              for row in rows[1:]])
        self.assertLess((found[:, 0] - expected.max(1).values).abs().max(), 1e-5)
        self.assertLess((found[:, 1:] - expected).abs().max(), 1e-5)

    def test_images_without_labels_are_predicted_alike(self):
        self.have_model()
        rows = csv.DictReader(io.StringIO(self.predict("-n", 2).decode()))
        expected = [{name: row[name] for name in row if name != "label"}
                    for row in rows]
        idx = self.data / "t10k-images-idx3-ubyte"
        pixels = idx.read_bytes()[16:]
        tensor = self.folder / "images.safetensors"
        plain_safetensors.write(
            tensor, {"images": ("U8", [self.TEST_IMAGES, 1, 28, 28], pixels)},
            {})
        for images in idx, tensor:
            with self.subTest(images=images):
                result = self.run_program(
                    COMMAND, "predict", self.model, "-n", 2,
                    f"--images={images}", f"--output={self.csv}")
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(
                    result.stdout,
                    f"1,003 predictions of mlp are in {self.csv}\n")
                found = csv.DictReader(io.StringIO(self.csv.read_text()))
                self.assertEqual(list(found), expected)

    def test_the_report_names_classes_and_says_what_it_is_of(self):
        self.have_model()
        text, found = self.evaluate("-n", 2)
        self.assertIn(f"mlp from {self.model}\n"
                      "Fashion-MNIST, test set: 1,003 images on 2 ranks\n",
                      text)
        self.assertIn(f"accuracy {100 * found['accuracy']:.2f} %", text)
        self.assertRegex(text, r"\nAnkle boot +\d+ +\S+ %")
        row = found["confusion_matrix"][9]
        self.assertIn(" ".join(["9 Ankle boot", *map(str, row)]),
                      re.sub(" +", " ", text))
        self.assertLessEqual(max(map(len, text.splitlines()[2:])), 80)

    def test_the_training_set_is_asked_about_as_well(self):
        self.have_model()
        _, found = self.evaluate("--split=train")
        self.assertEqual((found["split"], found["images"]), ("train", 320))

    def test_results_go_to_standard_output_if_wanted(self):
        self.have_model()
        result = self.ask("evaluate", "--json=-", "-n", "2")
        self.assertEqual(json.loads(result.stdout)["dataset"], "Fashion-MNIST")
        result = self.ask("predict", "--output=-", "-n", "2")
        self.assertEqual(result.stdout.encode(), self.predict())

    def test_results_for_a_closed_standard_output_are_an_error(self):
        self.have_model()
        for program, verb, flag in ((COMMAND, "evaluate", "--json=-"),
                                    (COMMAND, "predict", "--output=-"),
                                    (EVALUATE, "predict", "--output=-")):
            result = self.run_program(
                "sh", "-c", 'exec "$@" >&-', "sh", program, verb, self.model,
                f"--data-dir={self.data}", flag)
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn("Bad file descriptor", result.stderr)

    def test_checkpoints_of_a_run_are_models_too(self):
        runs = self.folder / "runs"
        self.train(f"--checkpoint-dir={runs}")
        _, expected = self.evaluate()
        for path in runs, next(runs.glob("checkpoint-*")):
            _, found = self.evaluate(model=path)
            self.assertEqual(found.pop("file"),
                             str(runs / "checkpoint-000010.safetensors"))
            self.assertEqual(found, {name: value for name, value
                                     in expected.items() if name != "file"})

    def test_batch_normalization_uses_the_saved_statistics(self):
        # The last block is one image, which has no statistics.
        write_images(self.data, "train", 64, seed=1)
        write_images(self.data, "t10k", 251, seed=2)
        self.train(model=["--model=resnet18"])
        _, metadata = plain_safetensors.read(self.model)
        found = [self.evaluate("-n", n)[1] for n in (1, 2)]
        self.assertEqual(found[0], found[1])
        self.assertAlmostEqual(found[0]["accuracy"],
                               float(metadata["lockstep.test_accuracy"]),
                               places=6)

    def test_alone_the_program_is_one_rank(self):
        self.have_model()
        result = self.run_program(EVALUATE, "evaluate", self.model,
                                  f"--data-dir={self.data}")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("1,003 images on 1 rank\n", result.stdout)


class WhatCannotBe(TrainedModel):
    def test_no_model_is_a_usage_error_before_anything_is_launched(self):
        errors = self.refusal("evaluate", code=2)
        self.assertIn(f'there is no file "{self.model}"', errors)
        self.assertIn("lockstep train", errors)

    def test_a_file_cut_short_is_named(self):
        self.have_model()
        whole = self.model.read_bytes()
        for size in 4, 200, len(whole) - 1:
            self.model.write_bytes(whole[:size])
            errors = self.refusal("evaluate", "-n", 2)
            self.assertIn(str(self.model), errors)
            self.assertIn("cut short", errors)

    def test_images_of_another_size_are_refused(self):
        self.have_model()
        path = self.data / "t10k-images-idx3-ubyte"
        head = (0x803, self.TEST_IMAGES, 14, 14)
        path.write_bytes(b"".join(number.to_bytes(4, "big") for number in head)
                         + bytes(self.TEST_IMAGES * 14 * 14))
        errors = self.refusal("evaluate")
        self.assertIn("takes images of 1 x 28 x 28, but those of "
                      "Fashion-MNIST are 1 x 14 x 14", errors)
        self.assertIn("  next:    ", errors)

    def test_a_size_for_images_of_one_size_is_refused(self):
        self.have_model()
        errors = self.refusal("evaluate", "-n", 1, "--image-size=14")
        self.assertIn("--image-size is 14, but only images of a folder are "
                      "resized; those of Fashion-MNIST have one size", errors)
        self.assertIn("1 x 28 x 28", errors)

    def test_a_file_of_another_program_needs_names(self):
        self.have_model()
        tensors, _ = plain_safetensors.read(self.model)
        plain_safetensors.write(self.model, tensors, {})
        self.assertIn("name the data set with --dataset",
                      self.refusal("evaluate", "-n", 1))
        self.assertIn("name the model with --model",
                      self.refusal("evaluate", "-n", 1, "--dataset=mnist"))
        result = self.ask("evaluate", "--dataset=mnist", "--model=mlp")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("MNIST, test set", result.stdout)

    def test_a_file_of_a_model_that_nobody_knows_lists_those_known(self):
        self.have_model()
        tensors, metadata = plain_safetensors.read(self.model)
        del metadata["lockstep.checksum"]
        plain_safetensors.write(self.model, tensors,
                                {**metadata, "lockstep.model": "mpl"})
        self.assertIn('unknown model "mpl": did you mean "mlp"?',
                      self.refusal("evaluate"))

    def test_files_of_earlier_versions_are_read(self):
        self.have_model()
        tensors, metadata = plain_safetensors.read(self.model)
        del metadata["lockstep.images"], metadata["lockstep.checksum"]
        plain_safetensors.write(self.model, tensors, metadata)
        self.assertEqual(self.ask("evaluate").returncode, 0)

    def test_an_output_that_cannot_be_written_is_found_before_computing(self):
        self.have_model()
        blocker = self.folder / "file"
        blocker.write_bytes(b"")
        for verb, flag in ("predict", "--output"), ("evaluate", "--json"):
            errors = self.refusal(verb, f"{flag}={blocker}/x", "-n", 2)
            self.assertIn(f'cannot write "{blocker}/x"', errors)

    def test_a_disk_that_is_full_leaves_the_earlier_file(self):
        self.have_model()
        self.csv.write_bytes(b"earlier")
        result = self.run_program(
            "sh", "-c", "ulimit -f 1; exec \"$@\"", "sh", EVALUATE, "predict",
            self.model, f"--data-dir={self.data}", f"--output={self.csv}",
            "--probabilities")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("File too large", result.stderr)
        self.assertEqual(self.csv.read_bytes(), b"earlier")
        self.assertEqual([path.name for path in self.folder.glob(".*")], [])

    def test_a_model_is_never_overwritten_by_its_results(self):
        self.have_model()
        before = self.model.read_bytes()
        self.assertIn("would overwrite the model",
                      self.refusal("predict", f"--output={self.model}", code=2))
        self.assertEqual(self.model.read_bytes(), before)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
