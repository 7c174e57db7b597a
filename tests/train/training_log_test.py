"""TensorBoard, PyTorch and Python's json read the files of `lockstep train
--log-dir`; and the schedules of the learning rate, which they show."""
import json
import os
import re
import subprocess
import sys
import unittest

import event_records
from train_data import WithSmallData

TRAIN = os.environ["LOCKSTEP_TRAIN"]
COMMAND = os.environ["LOCKSTEP_COMMAND"]
STEPS = 10  # 320 images, 32 a step


class TrainingLog(WithSmallData):
    def setUp(self):
        super().setUp()
        self.logs = self.folder / "logs"

    def train(self, *program, **flags):
        """Runs lockstep-train, or another `program`. A flag that is None is
        omitted, one that is True has no value."""
        flags = {"data_dir": self.data, "output": self.folder / "model",
                 "log_dir": self.logs, "log_interval": 4, "model": "mlp",
                 "hidden": 8, "epochs": 3, "global_batch_size": 32, **flags}
        texts = [f"--{name.replace('_', '-')}"
                 + ("" if value is True else f"={value}")
                 for name, value in flags.items() if value is not None]
        return subprocess.run([*(program or [TRAIN]), *texts],
                              capture_output=True, text=True, check=False,
                              stdin=subprocess.DEVNULL)

    def trained(self, *program, **flags):
        result = self.train(*program, **flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def trained_on_two(self, **flags):
        return self.trained(COMMAND, "train", "-n2", **flags)

    def event_files(self):
        return sorted(self.logs.glob("events.out.tfevents.*"))

    def lines(self, kind):
        text = (self.logs / "metrics.jsonl").read_text()
        records = [json.loads(line) for line in text.splitlines()]
        return [record for record in records if record["record"] == kind]

    def rates(self, **flags):
        self.trained(log_interval=1, **flags)
        return [record["learning_rate"] for record in self.lines("step")]

    def test_two_ranks_write_one_log_of_all_that_was_promised(self):
        self.trained_on_two()
        file, = self.event_files()
        self.assertRegex(file.name,
                         r"^events\.out\.tfevents\.\d{10}\..+\.\d+\.\d+$")
        scalars, begins = event_records.read(file)
        self.assertEqual(begins, 1)
        a_step = {"train/loss", "train/accuracy", "train/learning_rate",
                  "train/images_per_second", "train/gradient_norm",
                  "wait/rank_0", "wait/rank_1"}
        an_epoch = {"train/epoch_loss", "train/epoch_accuracy",
                    "train/epoch_seconds", "test/loss", "test/accuracy"}
        self.assertEqual(set(scalars), a_step | an_epoch)
        for tag in a_step:
            self.assertEqual(list(scalars[tag]),
                             [4, 8, 10, 14, 18, 20, 24, 28, 30], tag)
        for tag in an_epoch:
            self.assertEqual(list(scalars[tag]), [10, 20, 30], tag)
        for tag in "train/loss", "train/images_per_second", \
                "train/gradient_norm":
            self.assertTrue(all(v > 0 for v in scalars[tag].values()), tag)
        # The rank that arrives last at all operations does not wait.
        for waits in zip(*(scalars[f"wait/rank_{rank}"].values()
                           for rank in range(2))):
            self.assertTrue(min(waits) >= 0 < max(waits), waits)
        self.assertGreater(scalars["test/accuracy"][30], 0.5)

    def test_json_lines_say_the_same_as_the_event_file(self):
        self.trained_on_two()
        scalars, _ = event_records.read(self.event_files()[0])
        start, = self.lines("start")
        self.assertEqual((start["step"], start["ranks"], start["model"]),
                         (0, 2, "mlp"))
        names = {"loss": "train/loss", "accuracy": "train/accuracy",
                 "learning_rate": "train/learning_rate",
                 "images_per_second": "train/images_per_second",
                 "gradient_norm": "train/gradient_norm"}
        steps = self.lines("step")
        self.assertEqual([record["epoch"] for record in steps],
                         [1] * 3 + [2] * 3 + [3] * 3)
        for record in steps:
            for name, tag in names.items():
                self.close(scalars[tag][record["step"]], record[name])
            for rank, wait in enumerate(record["wait"]):
                self.close(scalars[f"wait/rank_{rank}"][record["step"]], wait)
        for record in self.lines("epoch"):
            for name in "train_loss", "train_accuracy", "seconds":
                self.close(scalars[f"train/epoch_{name.split('_')[-1]}"]
                           [record["step"]], record[name])
            for name in "loss", "accuracy":
                self.close(scalars[f"test/{name}"][record["step"]],
                           record[f"test_{name}"])

    def close(self, single, double):
        self.assertLessEqual(abs(single - double), 1e-6 * abs(double))

    def test_every_image_counts_once_and_an_epoch_is_its_steps(self):
        self.trained_on_two(epochs=1, log_interval=5)
        first, second = self.lines("step")
        epoch, = self.lines("epoch")
        for name in "loss", "accuracy":
            mean = (first[name] + second[name]) / 2
            self.assertAlmostEqual(mean, epoch[f"train_{name}"], places=9)

    def test_logging_changes_no_bit(self):
        for flags in {}, {"precision": "float16"}, {"clip_norm": 0.5}, \
                {"sharded": True}:
            self.trained_on_two(**flags)
            model = (self.folder / "model").read_bytes()
            self.trained_on_two(**flags, log_dir=None)
            self.assertEqual((self.folder / "model").read_bytes(), model)

    def test_a_clipped_run_and_one_that_is_not_have_one_first_norm(self):
        norms = []
        for flags in {}, {"clip_norm": 1e9}, {"precision": "float16"}, \
                {"clip_norm": 1e9, "sharded": True}, {"logical_shards": 2}:
            self.trained_on_two(log_interval=1, epochs=1, **flags)
            norms.append(self.lines("step")[-STEPS]["gradient_norm"])
        for norm in norms:
            self.assertAlmostEqual(norm / norms[0], 1, delta=1e-2)

    def test_a_sharded_run_has_no_norm_unless_it_clips(self):
        self.trained_on_two(sharded=True)
        for record in self.lines("step"):
            self.assertNotIn("gradient_norm", record)

    def resumed(self):
        """A run of three epochs that lost the second half of the second."""
        self.trained(checkpoint_dir=self.folder / "runs", checkpoint_every=5,
                     keep=9)
        checkpoint = self.folder / "runs" / "checkpoint-000015.safetensors"
        self.trained(resume=checkpoint, log_interval=5)

    def test_a_resumed_run_goes_on_in_the_same_folder(self):
        self.resumed()
        first, second = self.event_files()
        self.assertEqual(max(event_records.read(first)[0]["train/loss"]), 30)
        scalars, begins = event_records.read(second)
        self.assertEqual(begins, 16)
        self.assertEqual(list(scalars["train/loss"]), [20, 25, 30])
        self.assertEqual([record["step"] for record in self.lines("start")],
                         [0, 15])
        rates = {}
        for record in self.lines("step"):
            rates.setdefault(record["step"], set()).add(
                record["learning_rate"])
        for step, seen in rates.items():
            self.assertEqual(len(seen), 1, f"rates of step {step}")

    def test_an_epoch_without_a_step_of_its_run_has_no_speed(self):
        runs = self.folder / "runs"
        self.trained(epochs=1, checkpoint_dir=runs)
        self.trained(epochs=2, resume=next(runs.glob("*.safetensors")))
        self.assertEqual([("seconds" in record, "images_per_second" in record)
                          for record in self.lines("epoch")],
                         [(True, True), (False, False), (True, True)])
        scalars, _ = event_records.read(self.event_files()[1])
        self.assertEqual(list(scalars["train/epoch_loss"]), [10, 20])
        self.assertEqual(list(scalars["train/epoch_seconds"]), [20])

    def test_a_line_that_a_kill_cut_short_spoils_no_other(self):
        self.trained(epochs=1)
        lines = self.logs / "metrics.jsonl"
        lines.write_bytes(lines.read_bytes()[:-9])
        self.trained(epochs=1)
        broken = [line for line in lines.read_text().splitlines()
                  if not line.endswith("}")]
        self.assertEqual(len(broken), 1)

    def test_tensorboards_reader_reads_all_of_it_and_each_step_once(self):
        try:
            from tensorboard.backend.event_processing import \
                event_accumulator
        except ImportError:
            self.skipTest("this Python has no tensorboard")
        self.resumed()
        reader = event_accumulator.EventAccumulator(str(self.logs))
        reader.Reload()
        tags = reader.Tags()["scalars"]
        self.assertIn("wait/rank_0", tags)
        (before, _), (after, begins) = map(event_records.read,
                                           self.event_files())
        self.assertEqual(set(tags), set(before) | set(after))
        for tag in tags:
            # TensorBoard discards the first run's points of repeated steps,
            # also where the second run has no points there.
            kept = {step: value for step, value in before[tag].items()
                    if step < begins}
            self.assertEqual([(point.step, point.value)
                              for point in reader.Scalars(tag)],
                             sorted({**kept, **after[tag]}.items()), tag)

    def test_a_folder_that_cannot_be_written_is_refused_before_training(self):
        self.logs.write_text("a file in the way")
        environment = {**os.environ, "WORLD_SIZE": "2",
                       "LOCKSTEP_STORE": f"file://{self.folder}/store"}
        ranks = [subprocess.Popen(
            [TRAIN, f"--data-dir={self.data}", f"--log-dir={self.logs}",
             "--model=mlp", f"--output={self.folder / 'model'}"],
            env={**environment, "RANK": str(rank)},
            stderr=subprocess.PIPE, text=True) for rank in range(2)]
        for process in ranks:
            _, errors = process.communicate()
            self.assertEqual(process.returncode, 1)
            self.assertIn(f'"{self.logs}" for the log', errors)
            self.assertIn("next:    name another folder", errors)
        self.assertFalse((self.folder / "model").exists())

    def test_a_disk_that_fills_up_costs_the_log_but_not_the_run(self):
        self.trained(epochs=1)
        lines = self.logs / "metrics.jsonl"
        start = len(lines.read_bytes().splitlines()[0])
        # Room only for the line of the start. 8 MiB, in units of 512
        # bytes, are enough for the group's shared memory.
        lines.write_bytes(b"\n" * (16384 * 512 - start - 50))
        result = self.trained("sh", "-c", 'ulimit -f 16384; exec "$@"', "sh",
                              TRAIN, epochs=1)
        warnings = result.stderr.split("lockstep warning: ")
        warning, = (text for text in warnings if "metrics.jsonl" in text)
        self.assertRegex(warning, r"training continues.*ulimit -f.*"
                                  r"File too large")
        self.assertTrue(lines.read_bytes().endswith(b"}\n"))
        self.assertTrue((self.folder / "model").exists())

    def test_the_schedules_are_those_of_pytorch(self):
        try:
            import torch
        except ImportError:
            self.skipTest("this Python has no torch")
        from torch.optim import lr_scheduler as theirs

        def sequence(optimizer, after):
            warm_up = theirs.LinearLR(optimizer, 0.1, total_iters=5)
            return theirs.SequentialLR(optimizer, [warm_up, after(optimizer)],
                                       milestones=[5])

        def step(optimizer):
            return theirs.StepLR(optimizer, STEPS, 0.3)

        def cosine(optimizer, steps=3 * STEPS):
            return theirs.CosineAnnealingLR(optimizer, steps, eta_min=0.01)

        steps = {"schedule": "step", "lr_step_size": 1, "lr_gamma": 0.3}
        cosines = {"schedule": "cosine", "lr_min": 0.01}
        warm_up = {"lr_warmup_epochs": 0.5, "lr_warmup_decay": 0.1}
        cases = [
            (steps, step),
            (cosines, cosine),
            ({"schedule": "constant", **warm_up}, lambda optimizer: sequence(
                optimizer, lambda o: theirs.ConstantLR(o, 1))),
            ({**steps, **warm_up}, lambda optimizer: sequence(
                optimizer, step)),
            ({**cosines, **warm_up}, lambda optimizer: sequence(
                optimizer, lambda o: cosine(o, 3 * STEPS - 5))),
        ]
        for flags, make in cases:
            with self.subTest(flags=flags):
                optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.2)
                scheduler = make(optimizer)
                ours = self.rates(lr=0.2, **flags)[-3 * STEPS:]
                self.assertEqual(len(ours), 3 * STEPS)
                for number, rate in enumerate(ours):
                    self.assertAlmostEqual(
                        rate, optimizer.param_groups[0]["lr"], places=9,
                        msg=f"step {number}")
                    optimizer.step()
                    scheduler.step()


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
