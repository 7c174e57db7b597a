"""`lockstep bench` as a program: started alone, under `lockstep run`, under
mpirun where it is installed, and with invalid arguments."""
import json
import os
import shutil
import socket
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

COMMAND = os.environ["LOCKSTEP_COMMAND"]
SVG = "{http://www.w3.org/2000/svg}"
SHORT = ["--bytes", "4..4K", "--step-factor", "32", "--iters", "5"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def lockstep(*arguments, launcher=(), environment=None):
    return subprocess.run(
        [*launcher, COMMAND, *arguments], stdin=subprocess.DEVNULL,
        env=environment, capture_output=True, text=True, check=False,
        timeout=120)


class Bench(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def bench(self, *arguments, **keywords):
        result = lockstep("bench", *arguments, **keywords)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def check_document(self, document, ranks):
        self.assertEqual(document["ranks"], ranks)
        for backend in document["backends"]:
            sizes = [row["bytes"] for row in backend["rows"]]
            self.assertEqual(sizes, [4, 128, 4096], backend)
            for row in backend["rows"]:
                self.assertEqual(row["rounds"], 5)
                self.assertTrue(row["verified"])
                self.assertGreater(row["p50_us"], 0)
                self.assertGreaterEqual(row["p99_us"], row["p50_us"])
                self.assertAlmostEqual(
                    row["bus_gb_per_s"],
                    row["algorithm_gb_per_s"] * 2 * (ranks - 1) / ranks)
                self.assertAlmostEqual(
                    row["algorithm_gb_per_s"] * row["p50_us"] * 1e3,
                    row["bytes"])

    def test_starts_its_ranks_and_prints_one_json_document(self):
        out = self.bench("all_reduce", "--ranks", "2", "--json", *SHORT)
        document = json.loads(out)
        self.check_document(document, 2)
        self.assertEqual(document["collective"], "all_reduce")
        self.assertEqual(document["op"], "sum")
        self.assertEqual(len(document["backends"]), 1)

    def test_the_table_has_a_line_a_size_and_no_tags(self):
        out = self.bench("all_to_all", "--ranks", "2", *SHORT)
        rows = [line.split() for line in out.splitlines()
                if line.startswith("shm")]
        self.assertEqual([row[1] for row in rows], ["8", "128", "4096"])
        self.assertNotIn("[rank", out)

    def test_a_barrier_has_one_row(self):
        out = self.bench("barrier", "-n", "2", "--iters", "5", "--json")
        rows = json.loads(out)["backends"][0]["rows"]
        self.assertEqual([row["bytes"] for row in rows], [0])

    def test_compares_all_backends_and_names_those_left_out(self):
        out = self.bench("all_reduce", "-n", "2", "--backend", "all", "--json",
                         *SHORT)
        document = json.loads(out)
        names = [backend["backend"] for backend in document["backends"]]
        self.assertIn("shm", names)
        self.assertNotIn("reference", names)
        self.assertEqual(document["fastest"][0]["from_bytes"], 4)
        document["backends"] = [backend for backend in document["backends"]
                                if "left_out" not in backend]
        self.check_document(document, 2)

    def test_refuses_a_picture_that_cannot_be_written_before_it_measures(self):
        for plot, why in (("/nope/x.svg", "there is no folder /nope"),
                          (str(self.folder), "that is not a file"),
                          ("/dev/stdout", "that is not a file")):
            result = subprocess.run(
                [COMMAND, "bench", "all_reduce", "-n", "2", "--plot", plot],
                capture_output=True, text=True, check=False)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(f"--plot {plot}: {why}", result.stderr)
            self.assertEqual(result.stdout, "")

    def test_draws_a_well_formed_picture(self):
        plot = self.folder / "plot.svg"
        self.bench("all_reduce", "-n", "2", "--plot", str(plot), *SHORT)
        root = xml.parse(plot).getroot()
        self.assertEqual(root.tag, f"{SVG}svg")
        words = {word.strip() for word in root.itertext()}
        self.assertIn("shm", words)
        self.assertIn("bytes", words)

    def test_takes_part_under_our_launcher(self):
        document = self.folder / "found.json"
        result = lockstep("run", "-n", "3", "--", COMMAND, "bench",
                          "all_reduce", "--json", "-o", str(document), *SHORT)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, "")
        self.check_document(json.loads(document.read_text()), 3)

    def test_refuses_ranks_with_different_flags_on_every_rank(self):
        ranks = [subprocess.Popen(
            [COMMAND, "bench", "all_reduce", *SHORT, "--dtype", dtype],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2",
                 "LOCKSTEP_STORE": f"file://{self.folder}/store"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for rank, dtype in enumerate(("float32", "float64"))]
        for process in ranks:
            _, errors = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 2, errors)
            self.assertIn("--dtype is float32 on rank 0 and float64 on rank 1",
                          errors)

    def test_shows_the_gpus_of_a_list_to_what_takes_part(self):
        program = self.folder / "shows_gpus"
        program.write_text("#!/bin/sh\necho GPUs $CUDA_VISIBLE_DEVICES\n")
        program.chmod(0o755)
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "4,5,6"}
        environment["LOCKSTEP_BENCH_PROGRAM"] = str(program)
        bench = ["bench", "all_reduce", "--gpus", "0,2"]
        for arguments in (bench, ["run", "-n", "2", "--", COMMAND, *bench]):
            result = lockstep(*arguments, environment=environment)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(result.stdout.count("GPUs 4,6"), 2, result.stdout)

    @unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun")
    def test_takes_part_under_mpirun(self):
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2",
                  "-x", "MASTER_ADDR=127.0.0.1",
                  "-x", f"MASTER_PORT={free_port()}"]
        out = self.bench("all_reduce", "--json", *SHORT, launcher=mpirun)
        self.check_document(json.loads(out), 2)

    def test_measures_nothing_on_bad_input(self):
        for arguments, words in (
                (["allreduce"], "did you mean"),
                (["all_reduce", "--backend", "shn"], "did you mean \"shm\""),
                (["all_reduce", "--bytes", "4..1MB"], "MiB"),
                (["all_reduce", "--bytes", "900G"], "memory"),
                ([], "needs a collective")):
            result = lockstep("bench", *arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertIn(words, result.stderr)
            self.assertEqual(result.stdout, "")

    def test_a_file_that_cannot_be_written_is_an_error(self):
        result = lockstep("bench", "all_reduce", "-n", "2", "--output",
                          str(self.folder / "no" / "such"), *SHORT)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("cannot write", result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
