"""lockstep train with each of its frontends: the same weights in the saved files,
and errors that say what to do."""
import json
import os
import socket
import struct
import subprocess
import unittest

import plain_safetensors
from train_data import WithSmallData

TRAIN = os.environ["LOCKSTEP_TRAIN"]
COMMAND = os.environ["LOCKSTEP_COMMAND"]
TOLERANCE = 1e-5
# Strategies that add up the gradients of each rank in the same order.
SAME_BITS = "ddp", "horovod", "mirrored", "multi-worker", "central"


def largest_difference(one, other):
    """The largest difference of two files' tensors, all float32."""
    most = 0
    left, _ = plain_safetensors.read(one)
    right, _ = plain_safetensors.read(other)
    for name, (_, shape, content) in left.items():
        assert right[name][1] == shape
        numbers = f"<{len(content) // 4}f"
        pairs = zip(struct.unpack(numbers, content),
                    struct.unpack(numbers, right[name][2]))
        most = max(most, max(abs(a - b) for a, b in pairs))
    return most


def free_port():
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


class Strategies(WithSmallData):
    def flags(self, output, **changed):
        flags = {"data_dir": self.data, "output": self.folder / output,
                 "model": "mlp", "hidden": "16", "dropout": 0.2, "epochs": 1,
                 "global_batch_size": 48, "clip_norm": 0.5, **changed}
        return [f"--{name.replace('_', '-')}={value}"
                for name, value in flags.items()]

    def start(self, *command, **variables):
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables})

    def run_program(self, *command, **variables):
        process = self.start(*command, **variables)
        out, _ = process.communicate()
        return process.returncode, out

    def train(self, strategy, ranks, output, **flags):
        """The file that the run saved."""
        code, out = self.run_program(
            COMMAND, "train", "--strategy", strategy, "-n", str(ranks),
            *self.flags(output, **flags))
        self.assertEqual(code, 0, out)
        self.assertIn(f"{ranks} rank", out)
        self.assertEqual("memory at most: cpu 0." in out,
                         strategy == "data-parallel", out)
        return self.folder / output

    def test_all_save_the_same_weights(self):
        # 320 images: the last batch is short, and padded on 3 ranks.
        for ranks in 2, 3:
            ddp = self.train("ddp", ranks, f"ddp-{ranks}")
            for strategy in (*SAME_BITS[1:], "data-parallel"):
                other = self.train(strategy, ranks, f"{strategy}-{ranks}")
                self.assertLess(largest_difference(ddp, other), TOLERANCE,
                                f"{strategy} on {ranks}")
                if strategy in SAME_BITS and ranks == 2:
                    self.assertEqual(ddp.read_bytes(), other.read_bytes(),
                                     strategy)

    def test_all_save_what_one_rank_alone_does(self):
        flags = {"dropout": 0, "accumulate": 2, "optimizer": "adam"}
        alone = self.train("ddp", 1, "alone", **flags)
        for strategy in (*SAME_BITS, "data-parallel"):
            self.assertLess(
                largest_difference(alone, self.train(strategy, 2, strategy,
                                                     **flags)),
                TOLERANCE, strategy)

    def test_compute_threads_are_those_of_a_rank(self):
        ddp = self.train("ddp", 2, "ddp", threads=2, hidden=512)
        mirrored = self.train("mirrored", 2, "mirrored", threads=2, hidden=512)
        self.assertEqual(ddp.read_bytes(), mirrored.read_bytes())

    def test_a_run_goes_on_by_another_strategy_to_the_same_file(self):
        whole = self.train("ddp", 2, "whole", epochs=2, schedule="constant")
        runs = {"checkpoint_dir": self.folder / "runs", "schedule": "constant"}
        self.train("mirrored", 2, "half", **runs)
        rest = self.train("horovod", 2, "rest", epochs=2, resume="auto",
                          **runs)
        self.assertEqual(plain_safetensors.read(whole)[0],
                         plain_safetensors.read(rest)[0])

    def tf_config(self, index, port):
        return json.dumps({
            "cluster": {"chief": [f"127.0.0.1:{port}"],
                        "worker": ["127.0.0.1:1"]},
            "task": {"type": "worker" if index else "chief", "index": 0}})

    def test_workers_of_tf_config_train_as_those_of_the_launcher(self):
        ddp = self.train("ddp", 2, "ddp")
        port = free_port()
        workers = [
            self.start(COMMAND, "train", "--strategy=multi-worker",
                       *self.flags("workers"),
                       TF_CONFIG=self.tf_config(index, port))
            for index in range(2)]
        outputs = [worker.communicate()[0] for worker in workers]
        self.assertEqual([worker.returncode for worker in workers], [0, 0],
                         outputs)
        self.assertIn("test accuracy", outputs[0])
        self.assertEqual(outputs[1], "")
        self.assertEqual(ddp.read_bytes(),
                         (self.folder / "workers").read_bytes())

    def test_a_tf_config_that_cannot_be_is_a_usage_error(self):
        for program in [COMMAND, "train"], [TRAIN]:
            for text, problem in (
                    ("{", "it is not a JSON object"),
                    ('{"cluster": {"worker": ["a:1"]}}', "which worker")):
                code, out = self.run_program(
                    *program, "--strategy=multi-worker",
                    *self.flags("none"), TF_CONFIG=text)
                self.assertEqual(code, 2, out)
                self.assertIn("TF_CONFIG: ", out)
                self.assertIn(problem, out)
                self.assertIn("next:    set it to", out)

    def test_a_tf_config_that_contradicts_the_launcher_is_a_usage_error(self):
        code, out = self.run_program(
            COMMAND, "run", "-n", "2", TRAIN, "--strategy=multi-worker",
            *self.flags("none"), TF_CONFIG=self.tf_config(1, free_port()))
        self.assertEqual(code, 2, out)
        self.assertIn("TF_CONFIG: it makes the rank 1, but torchrun or lockstep run "
                      "says 0", out)
        self.assertIn("or unset TF_CONFIG", out)
        self.assertFalse((self.folder / "none").exists())

    def test_threads_of_several_processes_are_a_usage_error(self):
        code, out = self.run_program(
            COMMAND, "run", "-n", "2", TRAIN, "--strategy=mirrored",
            *self.flags("none"))
        self.assertEqual(code, 2, out)
        self.assertIn("has all ranks in one process, but this program was "
                      "started as one of 2", out)


if __name__ == "__main__":
    unittest.main()
