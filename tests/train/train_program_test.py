"""lockstep-train on its own small data: alone, on two ranks, and with errors."""
import ctypes
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import unittest

import plain_safetensors
from train_data import WithSmallData, write_cifar10

TRAIN = os.environ["LOCKSTEP_TRAIN"]
COMMAND = os.environ["LOCKSTEP_COMMAND"]
IN_MODIFY = 2


class TrainProgram(WithSmallData):
    TEST_IMAGES = 101

    def setUp(self):
        super().setUp()
        self.output = self.folder / "out" / "model.safetensors"

    def flags(self, **changed):
        flags = {"data_dir": self.data, "output": self.output, "model": "mlp",
                 "hidden": "32", "epochs": 3, "global_batch_size": 32,
                 **changed}
        return [f"--{name.replace('_', '-')}={value}"
                for name, value in flags.items()]

    def run_program(self, *command):
        return subprocess.run(command, capture_output=True, text=True,
                              check=False, stdin=subprocess.DEVNULL)

    def start_rank(self, rank, store=None, **flags):
        store = store or self.folder / "store"
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2",
                       "LOCKSTEP_STORE": f"file://{store}"}
        return subprocess.Popen([TRAIN, *self.flags(**flags)], env=environment,
                                stderr=subprocess.PIPE, text=True)

    def test_alone_it_trains_saves_and_says_so(self):
        result = self.run_program(TRAIN, *self.flags())
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout,
                         r"(?m)^epoch 1/3  10/10 [^\0]*"
                         r"^test accuracy (9\d|100)\.\d\d % after 3 epochs; "
                         r"the model is in .*model\.safetensors\n$")
        tensors, metadata = plain_safetensors.read(self.output)
        self.assertEqual(tensors["fc1.weight"][:2], ("F32", [32, 784]))
        self.assertEqual(metadata["lockstep.model"], "mlp")

    def test_the_next_command_can_be_pasted_into_a_shell(self):
        output = self.folder / "my model.safetensors"
        data = self.folder / "my data"
        data.symlink_to(self.data)
        result = self.run_program(
            COMMAND, "train", "-n", "1",
            *self.flags(data_dir=data, output=output, epochs=1))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"lockstep evaluate '{output}' --data-dir '{data}'\n",
                      result.stdout)

    def test_the_same_seed_gives_the_same_file_in_another_process(self):
        self.run_program(COMMAND, "train", "-n", "2", *self.flags())
        first = self.output.read_bytes()
        result = self.run_program(COMMAND, "train", "-n", "2", *self.flags())
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.output.read_bytes(), first)
        self.run_program(COMMAND, "train", "-n", "2",
                         *self.flags(seed=1))
        self.assertNotEqual(self.output.read_bytes(), first)

    def launchers(self):
        """The installed launchers of two ranks, by name."""
        found = {"lockstep run": [COMMAND, "run", "-n", "2", "--"]}
        if shutil.which("mpirun"):
            found["mpirun"] = ["mpirun", "--allow-run-as-root", "--oversubscribe",
                               "-n", "2"]
        if shutil.which("mpirun.mpich"):
            found["hydra"] = ["mpirun.mpich", "-n", "2"]
        if importlib.util.find_spec("torch"):
            found["torchrun"] = [
                sys.executable, "-m", "torch.distributed.run", "--standalone",
                "--nproc-per-node=2", "--no-python"]
        return found

    def test_begins_with_the_weights_of_a_file(self):
        self.run_program(TRAIN, *self.flags())
        first, _ = plain_safetensors.read(self.output)
        copy = self.folder / "weights.safetensors"
        shutil.copy(self.output, copy)
        result = self.run_program(
            COMMAND, "train", "-n", "2",
            *self.flags(weights=copy, seed=5, lr="1e-12", epochs=1))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"began with the weights of {copy}\n", result.stdout)
        second, _ = plain_safetensors.read(self.output)
        self.assertEqual(second, first)

        # Weights of a model with other classes.
        first["fc2.weight"] = ("F32", [3, 32], bytes(3 * 32 * 4))
        first["fc2.bias"] = ("F32", [3], bytes(3 * 4))
        plain_safetensors.write(copy, first, {})
        result = self.run_program(TRAIN, *self.flags(weights=copy))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"weights of {copy}; anew: fc2\n", result.stdout)

        result = self.run_program(COMMAND, "train",
                                  *self.flags(weights="/nope/w.safetensors"))
        self.assertEqual(result.returncode, 2)
        self.assertIn('no file "/nope/w.safetensors" for --weights',
                      result.stderr)

    def test_tells_of_a_used_folder_before_ranks_start(self):
        runs = self.folder / "runs"
        command = (COMMAND, "train", "-n", "2", *self.flags(checkpoint_dir=runs))
        result = self.run_program(*command)
        self.assertEqual(result.returncode, 0, result.stderr)
        result = self.run_program(*command)
        self.assertEqual(result.returncode, 2)
        self.assertIn(f'the folder "{runs}" holds checkpoints of a run already',
                      result.stderr)
        self.assertNotIn("rank", result.stderr)

    def test_joins_the_ranks_of_a_launcher(self):
        self.run_program(COMMAND, "train", "-n", "2", *self.flags())
        expected = self.output.read_bytes()
        for name, launcher in self.launchers().items():
            self.output.unlink()
            result = self.run_program(*launcher, COMMAND, "train", *self.flags())
            self.assertEqual(result.returncode, 0, name + result.stderr)
            self.assertEqual(self.output.read_bytes(), expected, name)
            self.assertRegex(result.stdout + result.stderr,
                             f"joins the 2 ranks that .*{name}.* started")
            self.assertIn("2 ranks on this host", result.stdout, name)
            result = self.run_program(*launcher, COMMAND, "evaluate", self.output,
                                      f"--data-dir={self.data}")
            self.assertEqual(result.stdout.count("on 2 ranks"), 1,
                             name + result.stdout + result.stderr)

    def test_ranks_started_by_hand_divide_the_cores_and_give_the_same_file(self):
        self.run_program(COMMAND, "train", "-n", "2", *self.flags())
        expected = self.output.read_bytes()
        self.output.unlink()
        ranks = [self.start_rank(rank) for rank in range(2)]
        for rank in ranks:
            _, errors = rank.communicate()
            self.assertEqual(rank.returncode, 0, errors)
        self.assertEqual(self.output.read_bytes(), expected)

    def test_scales_under_no_launcher(self):
        result = subprocess.run([COMMAND, "scale"], env={
            **os.environ, "RANK": "0", "WORLD_SIZE": "1"}, capture_output=True,
            text=True, check=False, stdin=subprocess.DEVNULL)
        self.assertEqual(result.returncode, 2)
        self.assertIn("run lockstep scale without a launcher", result.stderr)

    def test_logical_shards_give_one_file_on_1_2_and_4_ranks(self):
        files = set()
        for ranks in 1, 2, 4:
            result = self.run_program(
                COMMAND, "train", "-n", str(ranks),
                *self.flags(logical_shards=4, dropout=0.3, epochs=1))
            self.assertEqual(result.returncode, 0, result.stderr)
            files.add(self.output.read_bytes())
        self.assertEqual(len(files), 1)

    def test_checks_of_replicas_are_printed_and_change_no_bit(self):
        self.run_program(COMMAND, "train", "-n", "2", *self.flags())
        plain = self.output.read_bytes()
        result = self.run_program(
            COMMAND, "train", "-n", "2", "--check-consistency",
            *self.flags(fingerprint_every=2, show_values="fc1.bias"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"updated weights +equal +equal +equal\n")
        self.assertRegex(result.stdout, r"fc1\.bias, gradient, reduced +\S")
        self.assertIn("the ranks are consistent, as far as step 3",
                      result.stdout)
        self.assertEqual(self.output.read_bytes(), plain)

    def test_a_value_to_show_that_is_not_there_is_refused(self):
        result = self.run_program(
            TRAIN, "--check-consistency",
            *self.flags(show_values="fc1.bais"))
        self.assertEqual(result.returncode, 1)
        self.assertIn('did you mean "fc1.bias"?', result.stderr)

    def test_pytorch_gets_the_same_accuracy_from_the_file(self):
        try:
            import torch
        except ImportError:
            self.skipTest("this Python has no torch")
        # Few steps at a low rate, so that the model makes mistakes.
        self.run_program(TRAIN, *self.flags(epochs=1, lr=0.002))
        tensors, metadata = plain_safetensors.read(self.output)
        weights = {
            name: torch.frombuffer(bytearray(content), dtype=torch.float32)
            .reshape(shape) for name, (_, shape, content) in tensors.items()}
        raw = (self.data / "t10k-images-idx3-ubyte").read_bytes()[16:]
        labels = (self.data / "t10k-labels-idx1-ubyte").read_bytes()[8:]
        images = torch.tensor(list(raw), dtype=torch.float32).reshape(101, -1)
        # The mean and the deviation of Fashion-MNIST, whatever the images.
        x = (images / 255 - 0.2860) / 0.3530
        linear = torch.nn.functional.linear
        x = linear(x, weights["fc1.weight"], weights["fc1.bias"]).relu()
        x = linear(x, weights["fc2.weight"], weights["fc2.bias"])
        accuracy = (x.argmax(1) == torch.tensor(list(labels))).double().mean()
        self.assertAlmostEqual(float(metadata["lockstep.test_accuracy"]),
                               accuracy.item(), places=5)

    def test_trains_and_evaluates_on_images_of_three_channels(self):
        write_cifar10(self.folder, count=64)
        result = self.run_program(
            COMMAND, "train", "-n", "2", "--augment",
            *self.flags(dataset="cifar10", data_dir=self.folder))
        self.assertEqual(result.returncode, 0, result.stderr)
        result = self.run_program(COMMAND, "evaluate", "-n", "2", self.output,
                                  "--data-dir", self.folder, "--json", "-")
        self.assertEqual(result.returncode, 0, result.stderr)
        found = json.loads(result.stdout)
        self.assertEqual((found["dataset"], found["images"]), ("CIFAR-10", 64))
        self.assertGreater(found["accuracy"], 0.5)

    def test_ranks_with_different_flags_are_refused_on_every_rank(self):
        for number, (flag, values) in enumerate([
                ("lr", (0.1, 0.001)), ("momentum", (0.9, 0)),
                ("seed", (1, 2)), ("dropout", (0.1, 0.2)),
                ("global_batch_size", (32, 64)), ("epochs", (1, 2)),
                ("hidden", (32, 16)), ("dataset", ("mnist", "fashion-mnist"))]):
            store = self.folder / f"store{number}"
            ranks = [self.start_rank(rank, store=store, **{flag: value})
                     for rank, value in enumerate(values)]
            errors = [process.communicate()[1] for process in ranks]
            name = flag.replace("_", "-")
            for process, text in zip(ranks, errors):
                self.assertEqual(process.returncode, 2, text)
                self.assertIn(f"--{name} is {values[0]} on rank 0 and "
                              f"{values[1]} on rank 1\n", text)
            self.assertFalse(self.output.exists())

    def test_what_fails_on_rank_0_alone_is_not_blamed_on_rank_1(self):
        # What the command itself cannot see, which looks at a file's beginning.
        checkpoint = self.folder / "no_checkpoint.safetensors"
        plain_safetensors.write(checkpoint, {}, {})
        for _ in range(5):
            result = self.run_program(
                COMMAND, "train", "-n", "2", *self.flags(resume=checkpoint))
            self.assertEqual(result.returncode, 1)
            self.assertIn("lockstep: rank 0 of 2 exited with code 1",
                          result.stderr)

    def test_wrong_flags_and_variables_are_usage_errors(self):
        for flags in (["--batch-size", "0"], ["--model", "cnm"], ["--nothing"]):
            result = self.run_program(TRAIN, *flags)
            self.assertEqual(result.returncode, 2, flags)
            self.assertTrue(result.stderr.startswith("lockstep-train: "))
        result = subprocess.run([TRAIN], env={**os.environ, "RANK": "x"},
                                capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 2)
        self.assertIn("RANK is \"x\"", result.stderr)
        for command in ([TRAIN], [COMMAND, "train"]):
            result = subprocess.run(command, env={**os.environ, "RANK": "0"},
                                    capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 2)
            self.assertIn("WORLD_SIZE is not", result.stderr)

    def test_missing_data_is_named_with_package_and_flag(self):
        self.data = self.folder / "absent"
        result = self.run_program(TRAIN, *self.flags())
        self.assertEqual(result.returncode, 1)
        for text in (str(self.data), "dataset-fashion-mnist", "--data-dir"):
            self.assertIn(text, result.stderr)

    def test_what_every_rank_would_miss_is_said_before_ranks_start(self):
        folder = self.folder / "tmp"
        folder.mkdir()
        text = self.folder / "text"
        text.write_text("a text that holds no model")
        for changed, said in (({"data_dir": self.folder / "no"}, "no directory"),
                              ({"weights": text}, "holds no model"),
                              ({"resume": text}, "holds no model"),
                              ({"resume": "nowhere"}, "no checkpoint")):
            result = subprocess.run(
                [COMMAND, "train", "-n2", *self.flags(**changed)],
                env={**os.environ, "TMPDIR": str(folder)},
                capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(said, result.stderr)
            self.assertNotIn("rank", result.stderr)
            self.assertEqual(os.listdir(folder), [])

    def test_a_file_too_large_to_write_fails_every_rank_and_loses_nothing(self):
        self.output.parent.mkdir()
        self.output.write_bytes(b"earlier")
        # 8 MiB in its units of 512 bytes: enough for the group's shared memory,
        # not for the 12 of the model.
        result = self.run_program(
            "sh", "-c", "ulimit -f 16384; exec \"$@\"", "sh", COMMAND, "train",
            "-n", "2", *self.flags(epochs=1, hidden=4096))
        self.assertEqual(result.returncode, 1)
        self.assertIn("rank 0 of 2: cannot write", result.stderr)
        self.assertIn("File too large", result.stderr)
        self.assertEqual(self.output.read_bytes(), b"earlier")
        self.assertEqual(os.listdir(self.output.parent), [self.output.name])

    def test_killed_while_it_saves_it_loses_nothing_and_the_other_rank_ends(self):
        self.output.parent.mkdir()
        self.output.write_bytes(b"earlier")
        libc = ctypes.CDLL(None, use_errno=True)
        watch = libc.inotify_init1(os.O_CLOEXEC)
        self.addCleanup(os.close, watch)
        libc.inotify_add_watch(watch, os.fsencode(self.output.parent),
                               IN_MODIFY)
        # Tens of megabytes, so that writing takes a while.
        ranks = [self.start_rank(rank, epochs=1, hidden="4096,4096")
                 for rank in range(2)]
        os.read(watch, 4096)  # the first bytes have been written
        ranks[0].send_signal(signal.SIGKILL)
        errors = [process.communicate()[1] for process in ranks]
        self.assertEqual(ranks[0].returncode, -signal.SIGKILL)
        self.assertEqual(self.output.read_bytes(), b"earlier")
        self.assertEqual(ranks[1].returncode, 1)
        self.assertIn("lockstep-train on rank 1 of 2: ", errors[1])
        self.assertIn("rank 0", errors[1].split(": ", 1)[1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
