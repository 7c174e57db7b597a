"""The memory of a simulated card, which card_memory.py watches."""
import contextlib
import io
import os
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "scripts/gpu"))
import card_memory  # noqa: E402

# Prints what is in the file `used` again and again, and says in `read` that it has.
CARD = """#!/bin/bash
while sleep 0.01; do
  used=$(<"{0}/used"); echo "$used"; echo "$used" >"{0}/read"
done
"""
DEADLINE_SECONDS = 60


class Memory(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.card(CARD.format(self.folder))
        self.use(3)
        self.enter(mock.patch.dict(os.environ, {
            "PATH": f"{self.folder}:{os.environ['PATH']}"}))

    def enter(self, context):
        context.start()
        self.addCleanup(context.stop)

    def card(self, body):
        program = self.folder / "nvidia-smi"
        program.write_text(body, encoding="utf-8")
        program.chmod(0o755)

    def use(self, mib):
        part = self.folder / "part"
        part.write_text(f"{mib}\n")
        part.replace(self.folder / "used")

    def use_meanwhile(self, mib):
        """Until nvidia-smi has reported it, of which the watch misses nothing."""
        self.use(mib)
        end = time.monotonic() + DEADLINE_SECONDS
        read = self.folder / "read"
        while not read.exists() or read.read_text() != f"{mib}\n":
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def watch(self, *used):
        """A watch during which the ranks use these."""
        with card_memory.Watch() as watch:
            for mib in used:
                self.use_meanwhile(mib)
        return watch

    def judged(self, theirs, ours, device="cuda"):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            met = card_memory.judged("cnn", 2, theirs, ours, device)
        return met, said.getvalue()

    def test_is_the_peak_above_what_was_in_use_before(self):
        watch = self.watch(1203, 803, "[N/A]", 4)
        self.assertEqual((watch.most, watch.why), (1200, ""))

    def test_may_be_pytorchs_at_most(self):
        small, large = self.watch(803, 3), self.watch(1203, 3)
        met, said = self.judged(theirs=large, ours=small)
        self.assertTrue(met)
        self.assertIn('"ours": 800, "theirs": 1200, "limit": 1200, "met": true', said)
        self.assertTrue(self.judged(small, small)[0])
        met, said = self.judged(theirs=small, ours=large)
        self.assertFalse(met)
        self.assertIn('"met": false', said)

    def assert_not_measured(self, watch, why):
        self.assertIsNone(watch.most)
        met, said = self.judged(watch, watch)
        self.assertFalse(met)
        self.assertRegex(said, f"^compare: the memory of the card was not measured: "
                               f"{why}\n$")
        # Ranks on the CPU take none.
        self.assertTrue(self.judged(watch, watch, "cpu")[0])

    def test_is_not_measured_without_nvidia_smi(self):
        (self.folder / "nvidia-smi").unlink()
        with mock.patch.dict(os.environ, {"PATH": str(self.folder)}):
            self.assert_not_measured(card_memory.Watch().__enter__(),
                                     "there is no nvidia-smi")

    def test_is_not_measured_where_nvidia_smi_has_no_numbers(self):
        self.card("#!/bin/bash\necho '[N/A]'\n")
        self.assert_not_measured(self.watch(),
                                 "nvidia-smi printed no number before the ranks began")

    def test_is_not_measured_where_nvidia_smi_ends(self):
        self.card("#!/bin/bash\necho 3\n")
        self.assert_not_measured(
            self.watch(), "nvidia-smi printed no number after the ranks had ended")

    def test_is_not_measured_beside_other_processes(self):
        self.enter(mock.patch.object(card_memory, "SETTLE_SECONDS", 3))
        self.use(700)
        self.assert_not_measured(
            self.watch(1900), "other processes use the card: 700 MiB were in use "
            "before the ranks began")
        self.use(3)
        self.assert_not_measured(
            self.watch(1900, 703), "other processes use the card: 703 MiB were in use "
            "after the ranks had ended")

    def test_waits_for_the_driver_to_free_it(self):
        self.card(f"""#!/bin/bash
echo 3
until [ -e "{self.folder}/ended" ]; do sleep 0.01; done
echo 1203; echo 1203; while echo 3; do sleep 0.01; done
""")
        with card_memory.Watch() as watch:
            (self.folder / "ended").touch()
        self.assertEqual(watch.most, 1200)


if __name__ == "__main__":
    unittest.main(verbosity=2)
