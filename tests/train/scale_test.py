"""lockstep scale on small data: its output, files, plots and errors."""
import json
import os
import re
import subprocess
import xml.etree.ElementTree

from train_data import WithSmallData

COMMAND = os.environ["LOCKSTEP_COMMAND"]
PEER = ("test {ranks} = \"$PET_NPROC_PER_NODE\" && "
        "echo epoch 1: 1 images/s && echo epoch 2: {ranks}00.5 images/s")


class Scale(WithSmallData):
    def scale(self, *flags, job=("--model=mlp", "--hidden=8"), **variables):
        return subprocess.run(
            [COMMAND, "scale", *flags, *job, f"--data-dir={self.data}"],
            capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL, env={**os.environ, **variables})

    def test_prints_a_row_for_each_number_of_ranks(self):
        result = self.scale("-n", "1,2", "--repeats=2")
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        self.assertRegex(lines[0], r"^Lockstep: mlp on fashion-mnist, global "
                         r"batch 128, on \d+ cores?\b")
        rows = [line.split() for line in lines[3:5]]
        self.assertEqual([row[0] for row in rows], ["1", "2"])
        self.assertEqual(rows[0][1], rows[1][1], "threads of a rank")
        self.assertEqual([row[2:4] for row in rows],
                         [["128", "128"], ["128", "64"]])
        self.assertEqual(rows[0][6:8], ["1.00", "100"])
        self.assertIn("scale: Lockstep on 2 ranks, run 2 of 2:", result.stderr)

    def test_divides_the_cores_in_every_way_and_names_the_fastest(self):
        result = self.scale("--layouts")
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        cores = int(re.search(r"on (\d+) core", lines[0])[1])
        rows = [line.split() for line in lines[3:lines.index("", 3)]]
        self.assertEqual([(int(row[0]), int(row[1])) for row in rows],
                         [(ranks, cores // ranks)
                          for ranks in range(1, cores + 1)
                          if cores % ranks == 0])
        self.assertRegex(lines[-1], r"^fastest: \d+ ranks? x \d+ thread")
        self.assertNotIn("lockstep evaluate", result.stderr)

    def test_writes_what_it_found_and_draws_it(self):
        prefix = self.folder / "it's"
        result = self.scale("--ranks=1,2", f"--report={prefix}", "--json",
                            "--against", PEER)
        self.assertEqual(result.returncode, 0, result.stderr)
        written = (self.folder / "it's.json").read_text()
        self.assertEqual(written, result.stdout)
        ours, theirs = json.loads(written)["series"]
        self.assertEqual([row["ranks"] for row in ours["rows"]], [1, 2])
        self.assertEqual(theirs["name"], PEER)
        self.assertEqual([row["images_per_second"] for row in theirs["rows"]],
                         [100.5, 200.5])
        self.assertAlmostEqual(theirs["rows"][1]["efficiency"],
                               200.5 / 100.5 / 2)
        self.assertIn("| ranks |", (self.folder / "it's.md").read_text())
        drawing = xml.etree.ElementTree.parse(self.folder / "it's.svg")
        self.assertTrue(drawing.getroot().tag.endswith("svg"))
        self.assertTrue((self.folder / "it's.png").read_bytes()
                        .startswith(b"\x89PNG\r\n"))

    def test_ends_as_the_first_job_that_fails(self):
        result = self.scale("-n", "1", job=("--model=convnet", "--lr=1e30"),
                            LOCKSTEP_TRAIN_PROGRAM="/bin/false")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stdout, "")

    def test_reports_what_it_has_when_a_job_fails(self):
        result = self.scale("-n", "1", "--against",
                            "test $WORLD_SIZE || exit 7 # {ranks}")
        self.assertEqual(result.returncode, 7)
        self.assertRegex(result.stdout, r"^Lockstep: mlp .*, on \d+ core")
        self.assertNotIn("test $WORLD_SIZE", result.stdout)

    def test_says_what_a_command_beside_it_must_print(self):
        result = self.scale("-n", "1", "--against", "echo {ranks} done")
        self.assertEqual(result.returncode, 1)
        self.assertIn("`echo 1 done` printed no line with its images per "
                      "second\n  next:    make it print them", result.stderr)

    def test_runs_nothing_for_a_report_that_cannot_be_written(self):
        result = self.scale(f"--report={self.folder}/none/at-all")
        self.assertEqual(result.returncode, 2)
        self.assertIn("at-all cannot be written", result.stderr)
        self.assertNotIn("run 1", result.stderr)
        result = self.scale(f"--report={self.folder}/r", PATH=str(self.folder))
        self.assertEqual(result.returncode, 2)
        self.assertIn("apt-get install gnuplot-nox", result.stderr)


if __name__ == "__main__":
    import unittest
    unittest.main(verbosity=2)
