"""Python reads checkpoints of lockstep-train, and Lockstep reads Python's; and a run
that is killed repeatedly."""
import ctypes
import os
import random
import select
import signal
import struct
import subprocess
import sys
import unittest
import zlib

import plain_safetensors
from train_data import WithSmallData

TRAIN = os.environ["LOCKSTEP_TRAIN"]
COMMAND = os.environ["LOCKSTEP_COMMAND"]
COPY = os.environ["LOCKSTEP_ARCHIVE_COPY"]
IN_MOVED_TO = 0x80


def checksum(tensors, metadata):
    """The checksum of docs/formats/checkpoint.md."""
    def number(n):
        return struct.pack("<q", n)

    def text(t):
        return number(len(t.encode())) + t.encode()

    crc = 0
    for name in sorted(tensors, key=str.encode):
        dtype, shape, content = tensors[name]
        head = text(name) + text(dtype) + number(len(shape))
        crc = zlib.crc32(head + b"".join(map(number, shape)) + content, crc)
    for key in sorted(metadata, key=str.encode):
        if key != "lockstep.checksum":
            crc = zlib.crc32(text(key) + text(metadata[key]), crc)
    return f"{crc:08x}"


class Checkpoints(WithSmallData):
    def setUp(self):
        super().setUp()
        self.runs = self.folder / "runs"

    def start(self, output, *flags, rank=0, ranks=1, store="", epochs=3,
              cwd=None):
        environment = {**os.environ}
        if ranks > 1:
            environment.update(RANK=str(rank), WORLD_SIZE=str(ranks),
                               LOCKSTEP_STORE=f"file://{self.folder}/{store}")
        return subprocess.Popen(
            [TRAIN, f"--data-dir={self.data}", f"--output={output}",
             "--model=mlp", "--hidden=32", "--dropout=0.2", f"--epochs={epochs}",
             "--global-batch-size=32", "--accumulate=2", *flags],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, cwd=cwd)

    def train(self, output, *flags, epochs=3):
        process = self.start(output, *flags, epochs=epochs)
        out, errors = process.communicate()
        return process.returncode, out, errors

    def checkpoint(self):
        """The newest checkpoint of a complete run, with its tensors and metadata."""
        code, _, errors = self.train(self.folder / "m",
                                     f"--checkpoint-dir={self.runs}")
        self.assertEqual(code, 0, errors)
        path = max(self.runs.iterdir())
        return path, *plain_safetensors.read(path)

    def test_the_format_is_as_the_document_says(self):
        path, tensors, metadata = self.checkpoint()
        self.assertEqual(path.name, "checkpoint-000030.safetensors")
        self.assertEqual(metadata["lockstep.checkpoint"], "1")
        self.assertEqual(metadata["lockstep.checksum"],
                         checksum(tensors, metadata))
        self.assertEqual(metadata["lockstep.optimizer"], "sgd")
        self.assertEqual(metadata["lockstep.job.model"], "mlp")
        trained, _ = plain_safetensors.read(self.folder / "m")
        for name, tensor in trained.items():
            self.assertEqual(tensors["model." + name], tensor)
            self.assertEqual(
                tensors[f"optimizer.state.{name}.momentum_buffer"][:2],
                tensor[:2])
        self.assertEqual(tensors["counter.epoch"],
                         ("I64", [], struct.pack("<q", 2)))
        self.assertEqual(tensors["counter.step"],
                         ("I64", [], struct.pack("<q", 10)))
        self.assertEqual(tensors["rank.0.own.metrics"][:2], ("F64", [3]))

    def test_what_python_writes_we_go_on_from_and_what_it_changes_we_find(self):
        path, tensors, metadata = self.checkpoint()
        name = "optimizer.state.fc1.bias.momentum_buffer"
        dtype, shape, content = tensors[name]
        tensors[name] = (dtype, shape, b"\x01" + content[1:])
        plain_safetensors.write(path, tensors, metadata)
        code, _, errors = self.train(self.folder / "n", f"--resume={path}")
        self.assertEqual(code, 1)
        self.assertIn("is damaged: its checksum", errors)
        metadata["lockstep.checksum"] = checksum(tensors, metadata)
        plain_safetensors.write(path, tensors, metadata)
        code, out, errors = self.train(self.folder / "n", f"--resume={path}")
        self.assertEqual(code, 0, errors)
        self.assertIn(f"went on from {path}", out)

    def copy(self, source, target):
        result = subprocess.run([COPY, source, target], capture_output=True,
                                text=True, check=False)
        self.assertEqual(result.stderr, "")

    def test_the_reference_implementation_reads_it_and_we_what_it_writes(self):
        try:
            import torch
            from safetensors.torch import load_file, save_file
        except ImportError:
            self.skipTest("this Python has no safetensors or no torch")
        path, tensors, _ = self.checkpoint()
        loaded = load_file(path)
        self.assertEqual(set(loaded), set(tensors))
        model = torch.nn.Sequential(torch.nn.Linear(784, 32),
                                    torch.nn.Linear(32, 10))
        model.load_state_dict(
            {name.replace("fc1", "0").replace("fc2", "1"): loaded[f"model.{name}"]
             for name in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")})
        theirs, ours = self.folder / "t.safetensors", self.folder / "o.safetensors"
        save_file(loaded, theirs, metadata={"format": "pt"})
        self.copy(theirs, ours)
        again = load_file(ours)
        self.assertEqual(set(again), set(loaded))
        for name, tensor in loaded.items():
            self.assertTrue(torch.equal(tensor, again[name]), name)

    def test_libtorchs_archive_opens_in_python_and_pythons_here(self):
        try:
            import torch
        except ImportError:
            self.skipTest("this Python has no torch")
        path, tensors, _ = self.checkpoint()
        archive = self.folder / "a.pt"
        self.copy(path, archive)
        loaded = torch.jit.load(archive)
        state = loaded.state_dict()
        self.assertEqual(set(state), set(tensors))
        for name, (_, shape, content) in tensors.items():
            self.assertEqual(list(state[name].shape), shape)
            self.assertEqual(
                state[name].detach().flatten().view(torch.uint8).numpy()
                .tobytes() if shape else
                state[name].detach().numpy().tobytes(), content, name)
        with self.assertRaises(Exception):
            torch.load(archive, weights_only=True)
        back = self.folder / "b.safetensors"
        self.copy(archive, back)
        self.assertEqual(back.read_bytes(), path.read_bytes())

        model = torch.nn.Sequential(torch.nn.Linear(3, 2),
                                    torch.nn.BatchNorm1d(2))
        torch.jit.script(model).save(archive)
        self.copy(archive, back)
        theirs, _ = plain_safetensors.read(back)
        self.assertEqual(set(theirs), set(model.state_dict()))
        for name, tensor in model.state_dict().items():
            self.assertEqual(theirs[name][2], tensor.numpy().tobytes())

    def lockstep(self, *arguments):
        result = subprocess.run([COMMAND, *map(str, arguments)],
                                capture_output=True, text=True, check=False)
        return result.returncode, result.stdout, result.stderr

    def shards(self, *flags):
        """The newest checkpoint of a run of 2 ranks in shards."""
        ranks = [self.start(self.folder / "m", *flags,
                            f"--checkpoint-dir={self.runs}",
                            "--checkpoint-format=sharded", rank=rank, ranks=2,
                            store="store") for rank in range(2)]
        ended = [rank.communicate() for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], ended)
        return max(path for path in self.runs.iterdir() if path.is_dir())

    def test_merged_shards_are_a_file_as_the_document_says(self):
        path = self.shards("--sharded", "--optimizer=adam")
        self.assertEqual(path.name, "checkpoint-000030")
        merged = self.folder / "merged.safetensors"
        code, out, errors = self.lockstep("checkpoint", "merge", path, merged)
        self.assertEqual(code, 0, errors)
        self.assertIn("of step 30", out)
        tensors, metadata = plain_safetensors.read(merged)
        self.assertEqual(metadata["lockstep.checksum"],
                         checksum(tensors, metadata))
        self.assertEqual(metadata["lockstep.optimizer"], "adam")
        trained, _ = plain_safetensors.read(self.folder / "m")
        for name, tensor in trained.items():
            self.assertEqual(tensors["model." + name], tensor)
            self.assertEqual(tensors[f"optimizer.state.{name}.exp_avg"][:2],
                             tensor[:2])
        # The shards are files that Python reads too, without a tensor twice.
        total = 0
        for shard in path.glob("shard-*"):
            parts, _ = plain_safetensors.read(shard)
            total += sum(len(content) for _, _, content in parts.values())
        self.assertEqual(
            total, sum(len(content) for _, _, content in tensors.values()))
        try:
            from safetensors.torch import load_file
            self.assertEqual(set(load_file(merged)), set(tensors))
        except ImportError:
            pass
        outputs = []
        for source in merged, path, self.runs:
            code, out, errors = self.train(
                self.folder / "n", "--sharded", "--optimizer=adam",
                f"--resume={source}", epochs=4)
            self.assertEqual(code, 0, errors)
            outputs.append((self.folder / "n").read_bytes())
        self.assertEqual(outputs[1:], outputs[:1] * 2)

    def test_evaluates_and_predicts_from_shards(self):
        path = self.shards()
        for verb, flags in ("evaluate", ()), ("predict", ("-o", "-")):
            results = []
            for model in self.folder / "m", path, self.runs:
                code, out, errors = self.lockstep(
                    verb, model, "--data-dir", self.data, "-n", 2,
                    "--dataset", "fashion-mnist", *flags)
                self.assertEqual(code, 0, errors)
                # Without the lines on the file and the speed.
                results.append([line for line in out.splitlines()
                                if str(self.folder) not in line
                                and "images/s" not in line])
            self.assertGreater(len(results[0]), 5)
            self.assertEqual(results[1:], results[:1] * 2)

    def test_says_where_the_output_cannot_be_written(self):
        path = self.shards()
        merged = self.folder / "merged.safetensors"
        for action in ("show", path), ("merge", path, merged):
            with open("/dev/full", "w", encoding="utf-8") as full:
                result = subprocess.run(
                    [COMMAND, "checkpoint", *action], stdout=full,
                    stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual(result.returncode, 1, action)
            self.assertIn("the output cannot be written", result.stderr)

    def test_shows_shards_and_refuses_what_is_not_whole(self):
        path = self.shards()
        code, out, errors = self.lockstep("checkpoint", "show", path)
        self.assertEqual(code, 0, errors)
        self.assertRegex(out, r"step +30\nranks +2\noptimizer +sgd\nmodel +mlp")
        self.assertEqual(out.count("checksum right"), 2)
        shard = path / "shard-00001-of-00002.safetensors"
        content = shard.read_bytes()
        merged = self.folder / "merged.safetensors"
        merged.write_text("earlier")

        def refuses(*reasons):
            for action in ("show", path), ("merge", path, merged):
                code, out, errors = self.lockstep("checkpoint", *action)
                self.assertEqual(code, 2, out + errors)
                for reason in reasons:
                    self.assertIn(reason, errors)
            self.assertEqual(merged.read_text(), "earlier")
            self.assertEqual(list(self.folder.glob(".merged*")), [])

        shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        refuses(shard.name, "its checksum is")
        self.assertIn("damaged", self.lockstep("checkpoint", "show", path)[1])
        shard.write_bytes(content[:-1])
        refuses(shard.name, "bytes, expected")
        shard.unlink()
        refuses(shard.name, "it is missing")
        (path / "manifest.json").unlink()
        refuses("it has no manifest.json")
        code, _, errors = self.lockstep("checkpoint", "show", merged)
        self.assertEqual((code, "it is one file" in errors), (2, True), errors)
        for wrong, reason in (
                (("merge", path), "merge SET OUT"),
                (("show", path, merged), "merge SET OUT"),
                (("merge", path, self.folder / "m.pt"), "must end in"),
                (("merge", path, "/nope/m.safetensors"), "no folder /nope"),
                (("merge", path, path / "m.safetensors"),
                 "is in the folder of the shards"),
                (("sho", path), 'did you mean "show"'),
                (("show", path, "--fast"), 'unknown flag "--fast"')):
            code, _, errors = self.lockstep("checkpoint", *wrong)
            self.assertEqual(code, 2, errors)
            self.assertIn(reason, errors)

    def test_names_a_rank_that_does_not_see_the_folder_of_shards(self):
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        ranks = [self.start(self.folder / "m", "--checkpoint-dir=runs",
                            "--checkpoint-format=sharded", rank=rank, ranks=2,
                            store="store", cwd=cwd)
                 for rank, cwd in enumerate((self.folder, elsewhere))]
        ended = [rank.communicate() for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [1, 1], ended)
        for _, errors in ended:
            self.assertIn('rank 1 does not see "runs/.checkpoint-',
                          errors)
        self.assertEqual(list(self.runs.glob("checkpoint-*")), [])

    def saves(self):
        """Reads one event per checkpoint that becomes visible."""
        libc = ctypes.CDLL(None, use_errno=True)
        watch = libc.inotify_init1(os.O_CLOEXEC)
        self.addCleanup(os.close, watch)
        self.runs.mkdir(exist_ok=True)
        libc.inotify_add_watch(watch, os.fsencode(self.runs), IN_MOVED_TO)
        return watch

    def wait_for(self, watch, process):
        """Waits until the process has saved something, or ended."""
        end = os.pidfd_open(process.pid)
        try:
            ready, _, _ = select.select([watch, end], [], [])
            if watch in ready:
                os.read(watch, 4096)
        finally:
            os.close(end)

    def wait_for_end(self, process, seconds):
        end = os.pidfd_open(process.pid)
        select.select([end], [], [], seconds)
        os.close(end)

    def test_killed_again_and_again_it_ends_with_the_file_of_a_whole_run(self):
        seed = random.randrange(2**32)
        draw = random.Random(seed)
        for ranks, file_format in (1, "single"), (2, "single"), (2, "sharded"):
            with self.subTest(ranks=ranks, format=file_format, seed=seed):
                self.runs = self.folder / f"runs{ranks}{file_format}"
                self.kill_until_it_ends(ranks, file_format, draw)

    def test_asked_to_stop_every_rank_saves_the_run_and_says_start_again(self):
        for file_format in "single", "sharded":
            with self.subTest(format=file_format):
                self.runs = self.folder / file_format
                self.stop_and_start_again(file_format)

    def stop_and_start_again(self, file_format):
        def start_all(name, *flags):
            return [self.start(self.folder / name, *flags, rank=rank, ranks=2,
                               store=name + file_format, epochs=100)
                    for rank in range(2)]

        flags = (f"--checkpoint-dir={self.runs}", "--checkpoint-every=50",
                 f"--checkpoint-format={file_format}", "--resume=auto")
        whole = [rank.communicate() + (rank.returncode,)
                 for rank in start_all("whole")]
        self.assertEqual([code for *_, code in whole], [0, 0], whole)
        watch = self.saves()
        ranks = start_all("part", *flags)
        self.wait_for(watch, ranks[0])
        ranks[1].send_signal(signal.SIGTERM)
        ended = [rank.communicate() for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [75, 75], ended)
        self.assertRegex(ended[0][0], r"stopped after \d+ steps, as asked")
        self.assertFalse((self.folder / "part").exists())
        rest = start_all("rest", *flags)
        ended = [rank.communicate() for rank in rest]
        self.assertEqual([rank.returncode for rank in rest], [0, 0], ended)
        self.assertEqual((self.folder / "rest").read_bytes(),
                         (self.folder / "whole").read_bytes())
        for output in "whole", "rest":
            (self.folder / output).unlink()

    def kill_until_it_ends(self, ranks, file_format, draw):
        def start_all(name, *flags):
            return [self.start(self.folder / name, *flags, rank=rank,
                               ranks=ranks, store=f"{name}{self.runs.name}")
                    for rank in range(ranks)]

        def finish(processes):
            for process in processes:
                _, errors = process.communicate()
                self.assertEqual(process.returncode, 0, errors)

        finish(start_all("whole"))
        flags = (f"--checkpoint-dir={self.runs}", "--checkpoint-every=2",
                 f"--checkpoint-format={file_format}", "--resume=auto")
        watch = self.saves()
        for round_number in range(3):
            processes = start_all(f"part{round_number}", *flags)
            for _ in range(draw.randrange(1, 4)):
                self.wait_for(watch, processes[0])
            # Within the next steps, and while something is written.
            self.wait_for_end(processes[0], draw.random() / 50)
            draw.shuffle(processes)
            for process in processes:
                process.send_signal(signal.SIGKILL)
            for process in processes:
                process.communicate()
        finish(start_all("last", *flags))
        self.assertEqual((self.folder / "last").read_bytes(),
                         (self.folder / "whole").read_bytes())


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
