"""Training, evaluation and prediction on folders of image files."""
import csv
import io
import json
import os
import random
import struct
import subprocess
import tempfile
import unittest
import zlib
from pathlib import Path

import plain_safetensors

TRAIN = os.environ["LOCKSTEP_TRAIN"]
COMMAND = os.environ["LOCKSTEP_COMMAND"]
CLASSES = ("blue", "green", "red")


def png(width, height, pixels):
    """A PNG file of 8-bit RGB pixels."""
    def chunk(name, data):
        return (struct.pack(">I", len(data)) + name + data
                + struct.pack(">I", zlib.crc32(name + data)))
    rows = b"".join(b"\0" + pixels[3 * width * y:3 * width * (y + 1)]
                    for y in range(height))
    return (b"\x89PNG\r\n\x1a\n"
            + chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def write_folder(folder, per_class, seed):
    """Noise in which a class's color is brighter, in images of many sizes."""
    draw = random.Random(seed)
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for i in range(per_class):
            width, height = draw.randrange(20, 60), draw.randrange(20, 60)
            pixels = bytearray(draw.randrange(120)
                               for _ in range(3 * width * height))
            for at in range(2 - label, len(pixels), 3):
                pixels[at] += 110
            (folder / name / f"{i:03}.png").write_bytes(
                png(width, height, bytes(pixels)))


class ImageFolders(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.data = cls.folder / "data"
        write_folder(cls.data / "train", 32, seed=1)
        write_folder(cls.data / "val", 11, seed=2)
        cls.model = cls.folder / "model.safetensors"
        cls.trained = cls.train("-n", 2, "--augment=imagenet", output=cls.model)

    @classmethod
    def train(cls, *flags, output, data=None, size=24):
        return cls.run_program(
            COMMAND, "train", "--dataset=imagefolder", f"--image-size={size}",
            f"--data-dir={data or cls.data}", "--model=convnet", "--epochs=3",
            "--global-batch-size=16", "--lr=0.02", f"--output={output}",
            *flags)

    @staticmethod
    def run_program(*command):
        return subprocess.run([str(word) for word in command], text=True,
                              capture_output=True, check=False,
                              stdin=subprocess.DEVNULL, timeout=600)

    def predict(self, *flags):
        result = self.run_program(COMMAND, "predict", self.model, "--output=-",
                                  *flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def copy(self):
        """A folder with links to the images, to be changed by a test."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = Path(folder.name)
        for file in self.data.rglob("*.png"):
            link = root / file.relative_to(self.data)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file)
        return root

    def refusal(self, *flags, data=None, size=24):
        output = self.folder / "refused.safetensors"
        result = self.train("-n", 1, *flags, output=output, data=data, size=size)
        self.assertNotEqual(result.returncode, 0)
        self.assertFalse(output.exists())
        return result.stderr

    def test_a_model_learns_and_its_file_says_of_what(self):
        self.assertEqual(self.trained.returncode, 0, self.trained.stderr)
        _, metadata = plain_safetensors.read(self.model)
        self.assertEqual(metadata["lockstep.dataset"], "Image folder")
        self.assertEqual(metadata["lockstep.images"], "3 x 24 x 24")
        self.assertEqual(json.loads(metadata["lockstep.classes"]),
                         list(CLASSES))
        self.assertGreater(float(metadata["lockstep.test_accuracy"]), 0.9)

    def test_augment_without_a_value_is_the_standard_one(self):
        files = []
        for flags in (), ("--augment",), ("--augment=imagenet",):
            output = self.folder / "augmented.safetensors"
            result = self.train("-n", 1, *flags, output=output)
            self.assertEqual(result.returncode, 0, result.stderr)
            files.append(output.read_bytes())
        self.assertNotEqual(files[0], files[1])
        self.assertEqual(files[1], files[2])

    def test_the_number_of_workers_changes_no_bit(self):
        found = set()
        for workers in 1, 3:
            output = self.folder / f"workers-{workers}.safetensors"
            result = self.train("-n", 1, "--augment", f"--workers={workers}",
                                output=output)
            self.assertEqual(result.returncode, 0, result.stderr)
            found.add(output.read_bytes())
        self.assertEqual(len(found), 1)

    def test_evaluation_is_the_same_on_any_number_of_ranks(self):
        found = []
        for ranks in 1, 2:
            result = self.run_program(
                COMMAND, "evaluate", self.model, "-n", ranks,
                f"--data-dir={self.data}", "--json=-")
            self.assertEqual(result.returncode, 0, result.stderr)
            report = json.loads(result.stdout)
            for name in "seconds", "images_per_second", "ranks":
                report.pop(name)
            found.append(report)
        self.assertEqual(found[0], found[1])
        self.assertEqual(found[0]["images"], 33)
        self.assertGreater(found[0]["accuracy"], 0.9)

    def test_predictions_name_the_files(self):
        text = self.predict("-n", 1, f"--data-dir={self.data}")
        self.assertEqual(text, self.predict("-n", 2, f"--data-dir={self.data}"))
        rows = list(csv.DictReader(io.StringIO(text)))
        self.assertEqual([row["path"] for row in rows],
                         [str(file) for file in
                          sorted((self.data / "val").rglob("*.png"))])
        self.assertEqual([int(row["label"]) for row in rows],
                         [label for label in range(3) for _ in range(11)])

    def test_images_without_labels_are_predicted_alike(self):
        labelled = csv.DictReader(io.StringIO(
            self.predict("-n", 1, f"--data-dir={self.data}")))
        expected = [{name: row[name] for name in row if name != "label"}
                    for row in labelled]
        text = self.predict("-n", 2, f"--images={self.data / 'val'}")
        self.assertEqual(list(csv.DictReader(io.StringIO(text))), expected)

    def test_one_photo_is_predicted_like_a_folder(self):
        photo = self.data / "val" / "red" / "000.png"
        rows = list(csv.DictReader(io.StringIO(
            self.predict("-n", 1, f"--images={photo.parent}"))))
        alone = list(csv.DictReader(io.StringIO(
            self.predict("-n", 1, f"--images={photo}"))))
        self.assertEqual(alone, rows[:1])

    def test_broken_photos_are_named_and_skipped_on_request(self):
        photos = self.copy() / "val"
        names = [photos / name / "000.png" for name in ("green", "red")]
        for name in names:
            self.cut(name)
        result = self.run_program(COMMAND, "predict", self.model, "-n", 1,
                                  "--output=-", f"--images={photos}")
        self.assertEqual(result.returncode, 1)
        self.assertIn("cannot predict: 2 samples are broken\n", result.stderr)
        for name in names:
            self.assertIn(str(name), result.stderr)
        self.assertIn("--max-broken 2", result.stderr)
        text = self.predict("-n", 1, f"--images={photos}", "--max-broken=2")
        rows = list(csv.DictReader(io.StringIO(text)))
        self.assertEqual(len(rows), 33)
        self.assertEqual([row["path"] for row in rows if not row["predicted"]],
                         [str(name) for name in names])

    def test_a_folder_called_valid_is_measured_and_said(self):
        data = self.copy()
        (data / "val").rename(data / "valid")
        output = self.folder / "valid.safetensors"
        result = self.train("-n", 1, output=output, data=data)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("Image folder (train + valid) 96 + 33 images",
                      result.stdout)
        result = self.run_program(COMMAND, "evaluate", output, "-n", 1,
                                  f"--data-dir={data}")
        self.assertIn("Image folder, valid set: 33 images", result.stdout)

    def test_classes_in_another_order_are_refused(self):
        data = self.copy()
        (data / "val" / "blue").rename(data / "val" / "zebra")
        result = self.run_program(COMMAND, "evaluate", self.model, "-n", 1,
                                  f"--data-dir={data}")
        self.assertEqual(result.returncode, 1)
        self.assertIn('knows class 0 as "blue", but these images have "green"',
                      result.stderr)

    def test_a_checkpoint_knows_its_classes_too(self):
        checkpoints = self.folder / "of_classes"
        result = self.train("-n", 1, f"--checkpoint-dir={checkpoints}",
                            output=self.folder / "other.safetensors")
        self.assertEqual(result.returncode, 0, result.stderr)
        evaluate = (COMMAND, "evaluate", checkpoints, "-n", 1)
        same = self.run_program(*evaluate, f"--data-dir={self.data}")
        self.assertEqual(same.returncode, 0, same.stderr)
        data = self.copy()
        (data / "val" / "blue").rename(data / "val" / "zebra")
        other = self.run_program(*evaluate, f"--data-dir={data}")
        self.assertIn('knows class 0 as "blue"', other.stderr)

    def test_class_names_may_be_any_bytes(self):
        data = self.copy()
        for split in "train", "val":
            os.rename(data / split / "red", bytes(data / split) + b"/r\xe9d")
        output = self.folder / "bytes.safetensors"
        result = self.train("-n", 1, output=output, data=data)
        self.assertEqual(result.returncode, 0, result.stderr)
        result = self.run_program(COMMAND, "evaluate", output, "-n", 1,
                                  f"--data-dir={data}", "--json=-")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([row["name"] for row in
                          json.loads(result.stdout)["classes"]],
                         ["blue", "green", "r?d"])

    def test_the_folder_test_comes_before_val_in_an_evaluation(self):
        data = self.copy()
        (data / "test").mkdir()
        for name in CLASSES:
            (data / "test" / name).mkdir()
            file = data / "val" / name / "000.png"
            file.rename(data / "test" / name / "000.png")
        result = self.run_program(COMMAND, "evaluate", self.model, "-n", 1,
                                  f"--data-dir={data}", "--json=-")
        self.assertEqual(json.loads(result.stdout)["images"], 3)

    def test_a_data_set_that_is_normalised_otherwise_is_refused(self):
        data = self.folder / "cifar"
        data.mkdir()
        for name in *(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin":
            (data / name).write_bytes(b"")
        result = self.run_program(COMMAND, "evaluate", self.model, "-n", 1,
                                  "--dataset=cifar10", f"--data-dir={data}")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("are normalised otherwise", result.stderr)

    def test_images_of_a_size_that_the_model_does_not_take_are_refused(self):
        result = self.run_program(COMMAND, "evaluate", self.model, "-n", 1,
                                  "--image-size=32", f"--data-dir={self.data}")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(f'--image-size is 32, but the model in "{self.model}" '
                      "takes images of 3 x 24 x 24", result.stderr)

    def test_a_file_of_images_is_not_for_a_model_of_folders(self):
        images = self.folder / "images.idx"
        images.write_bytes(b"")
        result = self.run_program(COMMAND, "predict", self.model, "-n", 1,
                                  f"--images={images}", "--output=-")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("is neither a folder nor a .jpg, .jpeg or .png file, which "
                      "the model in", result.stderr)

    def test_erasing_follows_the_normalisation(self):
        files = set()
        for text in ("random_resized_crop(24) | random_erasing(1)",
                     "random_resized_crop(24) | normalize(imagenet) | "
                     "random_erasing(1)"):
            output = self.folder / "erased.safetensors"
            result = self.train("-n", 1, f"--augment={text}", output=output)
            self.assertEqual(result.returncode, 0, result.stderr)
            files.add(output.read_bytes())
        self.assertEqual(len(files), 1)

    def test_splits_with_different_classes_are_refused(self):
        data = self.copy()
        (data / "val" / "red").rename(data / "val" / "rose")
        self.assertIn('only one of its two splits has the class "red"',
                      self.refusal(data=data))

    def test_a_test_folder_without_classes_is_not_a_split(self):
        data = self.copy()
        (data / "test").mkdir()
        result = self.run_program(COMMAND, "evaluate", self.model, "-n", 1,
                                  f"--data-dir={data}", "--json=-")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["images"], 33)

    def test_a_folder_without_splits_is_refused(self):
        self.assertIn("it has no folder train",
                      self.refusal(data=self.data / "val"))

    def test_transforms_that_do_not_fit_are_refused(self):
        for transforms, problem in (
                ("random_resized_crop(20) | hflip",
                 "augmented images have 20 x 20 pixels, but test images 24"),
                ("random_crop(24, pad_if_needed=True) | normalize((0.5,), (1,))",
                 "leave normalize out of --augment"),
                ("hflip | no_such(1)", 'no_such'),
                ("hflip", "outputs differ in size"),
                ("hflip | color_jitter(0.1)", "outputs differ in size")):
            with self.subTest(transforms=transforms):
                self.assertIn(problem,
                              self.refusal(f"--augment={transforms}"))
        self.assertIn('unknown augmentation "imagnet"',
                      self.refusal("--augment", "imagnet"))

    @staticmethod
    def cut(file):
        whole = file.read_bytes()
        file.unlink()
        file.write_bytes(whole[:len(whole) // 2])

    def test_a_damaged_file_ends_the_run_and_is_named(self):
        data = self.copy()
        broken = data / "train" / "green" / "007.png"
        self.cut(broken)
        self.assertIn(str(broken), self.refusal(data=data))

    def test_damaged_files_are_replaced_and_counted_on_request(self):
        # Without --augment, a copy of a file trains like the file.
        data, expected = self.copy(), self.copy()
        for name, next_whole in (("007", "009"), ("008", "009"), ("000", "001")):
            file = Path("train", "green", f"{name}.png")
            self.cut(data / file)
            (expected / file).unlink()
            (expected / file).symlink_to(data / "train" / "green"
                                         / f"{next_whole}.png")
        files = []
        for folder, flags in (data, ["--max-broken=3"]), (expected, []):
            output = self.folder / "replaced.safetensors"
            result = self.train("-n", 2, *flags, output=output, data=folder)
            self.assertEqual(result.returncode, 0, result.stderr)
            files.append(output.read_bytes())
            said = ("3 training images were broken and replaced by the next, "
                    "the first: ")
            self.assertEqual(said in result.stdout, folder == data,
                             result.stdout)
        self.assertEqual(files[0], files[1])
        self.refusal("--max-broken=2", data=data)

    def test_pixels_are_exact_on_request_and_throughout_a_run(self):
        data = self.folder / "photos"
        result = self.run_program(
            COMMAND, "data", "make-images", data, "--classes=3", "--count=24",
            "--test-count=6")
        self.assertEqual(result.returncode, 0, result.stderr)
        checkpoints = self.folder / "pixels"
        files = []
        # Sides of 64 to 96 pixels become 14.
        for flags in ((f"--checkpoint-dir={checkpoints}",), (),
                      ("--exact-pixels",)):
            output = self.folder / "pixels.safetensors"
            result = self.train("-n", 1, *flags, output=output, data=data,
                                size=12)
            self.assertEqual(result.returncode, 0, result.stderr)
            files.append(output.read_bytes())
        self.assertEqual(files[0], files[1])
        self.assertNotEqual(files[1], files[2])
        self.assertIn("decoding", self.refusal(
            f"--checkpoint-dir={checkpoints}", "--resume=auto",
            "--exact-pixels", data=data, size=12))

    def test_a_cut_test_image_is_found_before_training(self):
        data = self.copy()
        broken = data / "val" / "red" / "000.png"
        self.cut(broken)
        errors = self.refusal(data=data)
        self.assertIn("cannot train: 1 of the test images cannot be read\n",
                      errors)
        self.assertIn(str(broken), errors)
        self.assertIn("--max-broken 1", errors)

    def test_damaged_test_images_are_left_out_on_request(self):
        data = self.copy()
        for name in "red", "blue":
            self.cut(data / "val" / name / "000.png")
        output = self.folder / "left_out.safetensors"
        result = self.train("-n", 1, "--max-broken=2", output=output, data=data)
        self.assertEqual(result.returncode, 0, result.stderr)
        said = "2 test images were broken and left out, the first: "
        self.assertIn(said, result.stdout)
        _, metadata = plain_safetensors.read(output)
        result = self.run_program(
            COMMAND, "evaluate", output, "-n", 1, "--max-broken=2",
            f"--data-dir={data}", f"--json={self.folder / 'e.json'}")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("2 images were broken and left out, the first: ",
                      result.stdout)
        found = json.loads((self.folder / "e.json").read_text())
        self.assertEqual(found["images"], 31)
        self.assertAlmostEqual(found["accuracy"],
                               float(metadata["lockstep.test_accuracy"]),
                               places=6)
        result = self.run_program(COMMAND, "evaluate", output, "-n", 1,
                                  "--max-broken=1", f"--data-dir={data}")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("more than 1 samples", result.stderr)
        self.refusal("--max-broken=1", data=data)

    def test_the_commands_to_try_next_name_the_same_data(self):
        output = self.folder / "hints.safetensors"
        result = self.train("-n", 1, output=output)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"lockstep evaluate {output} --data-dir {self.data}\n",
                      result.stdout)
        self.assertIn(f"lockstep train --dataset imagefolder --data-dir "
                      f"{self.data} --image-size 24 --augment --epochs 15\n",
                      result.stdout)

    def test_ranks_with_different_files_are_refused(self):
        other = self.copy()
        (other / "train" / "red" / "000.png").rename(
            other / "train" / "red" / "0000.png")
        store = self.folder / "store"
        ranks = []
        for rank, data in enumerate((self.data, other)):
            environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2",
                           "LOCKSTEP_STORE": f"file://{store}"}
            ranks.append(subprocess.Popen(
                [TRAIN, "--dataset=imagefolder", f"--data-dir={data}",
                 "--image-size=24", f"--output={self.folder / 'none'}"],
                env=environment, stderr=subprocess.PIPE, text=True))
        for rank in ranks:
            _, errors = rank.communicate(timeout=600)
            self.assertNotEqual(rank.returncode, 0)
            self.assertIn("the checksum of the files' names is", errors)

    def test_a_run_goes_on_only_with_the_same_files(self):
        data = self.copy()
        checkpoints = self.folder / "checkpoints"
        output = self.folder / "resumed.safetensors"
        flags = ("-n", 1, f"--checkpoint-dir={checkpoints}", "--resume=auto")
        result = self.train(*flags, output=output, data=data)
        self.assertEqual(result.returncode, 0, result.stderr)
        (data / "train" / "red" / "000.png").rename(
            data / "train" / "red" / "0000.png")
        self.assertIn("files", self.refusal(*flags[2:], data=data))


if __name__ == "__main__":
    unittest.main()
