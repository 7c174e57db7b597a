"""gpu_check on a simulated machine: see made_up_card.py."""
import json
import os
import signal
import subprocess
import sys
import tarfile
import unittest
from pathlib import Path

from made_up_card import SKIPPED, MadeUpCard


class Smoke(MadeUpCard):
    def test_passes_where_all_is_well(self):
        found = self.run_stage("smoke")
        for part in found.values():
            self.assertEqual((part["outcome"], part["failed"]),
                             ("passed", False), part)
        self.assertIn("13 of 13 parts passed, 0 failed", self.said)
        self.assertEqual(len(found), 13)

    def test_has_a_log_of_every_part_that_ran(self):
        found = self.run_stage("smoke")
        with tarfile.open(self.out / "smoke.tar.gz") as archive:
            self.assertEqual(len(archive.getnames()), len(found) + 1)

    def test_unpacks_the_bundle_once(self):
        with tarfile.open(self.bundle / "lockstep.tar.gz", "w:gz") as archive:
            archive.add(self.bundle / "lockstep", ".")
        subprocess.run(["rm", "-r", self.bundle / "lockstep"], check=True)
        self.run_stage("smoke", "doctor")
        (self.bundle / "lockstep.tar.gz").unlink()
        self.run_stage("smoke", "doctor")

    def test_says_that_a_folder_is_no_bundle(self):
        subprocess.run(["rm", "-r", self.bundle / "lockstep"], check=True)
        result = self.check(self.out, "smoke")
        self.assertEqual(result.returncode, 2)
        self.assertIn("this is no bundle", result.stderr)

    def test_tells_the_driver_from_the_rest(self):
        self.card("echo no driver; exit 9")
        found = self.run_stage("smoke", status=1)
        self.assert_failed(found["nvidia-smi"], "status 9: no driver", "driver")
        self.assertEqual(sum(part["failed"] for part in found.values()), 1)

    def test_tells_pytorch_from_the_rest(self):
        self.write_torch(available=False, total=1.0)
        found = self.run_stage("smoke", status=1)
        self.assert_failed(found["PyTorch"], "PyTorch sees no card", "PyTorch")
        pair = found["two ranks of PyTorch share the card"]
        self.assert_failed(pair, "cannot share this card", "PyTorch")
        self.assertFalse(found["the plug-in"]["failed"])
        self.assertIn("(look at: PyTorch)", self.said)

    def test_wants_the_doctor_to_find_nccl(self):
        self.stub("doctor", "  --  backend nccl     not here")
        found = self.run_stage("smoke", status=1)
        self.assert_failed(found["lockstep doctor"], "nothing it printed")


class Skips(MadeUpCard):
    def run_tests(self, reason, **keywords):
        self.stub("tests", SKIPPED.format(reason=reason))
        return self.run_stage("ranks", "Cuda, 2 ranks", **keywords)[
            "Cuda, 2 ranks"]

    def test_are_failures_where_there_is_a_card(self):
        part = self.run_tests("there is no GPU: no driver", status=1)
        self.assert_failed(part, r"there is no GPU: no driver \(2\)", "Lockstep")
        self.assertEqual(part["outcome"], "skipped")
        self.assertIn("skipped = FAILED", self.said)

    def test_pass_for_reasons_of_a_single_card(self):
        for reason in ("only the fake tells", "there is one GPU",
                       "for 2 GPUs, of which there are 1",
                       "for 4 ranks, of which there are 2"):
            part = self.run_tests(reason)
            self.assertRegex(part["reason"],
                             f"1 tests, 2 skipped as they may: {reason}")

    def test_for_ranks_that_there_are_are_failures(self):
        part = self.run_tests("for 2 ranks, of which there are 2", status=1)
        self.assert_failed(part, "for 2 ranks")

    def test_for_more_ranks_than_any_part_has_are_failures(self):
        part = self.run_tests("for 8 ranks, of which there are 2", status=1)
        self.assert_failed(part, "for 8 ranks")

    def test_of_all_tests_are_failures(self):
        self.stub("tests", SKIPPED.format(reason="only the fake tells")
                  + 'echo "[  PASSED  ] 0 tests."; exit')
        part = self.run_stage("ranks", "Cuda, 2 ranks", status=1)
        self.assert_failed(part["Cuda, 2 ranks"], "no test ran; skipped: only")

    def test_of_tests_that_a_filter_leaves_out_are_failures(self):
        self.stub("tests", 'echo "[  PASSED  ] 0 tests."; exit')
        part = self.run_stage("ranks", "Cuda, 2 ranks", status=1)
        self.assert_failed(part["Cuda, 2 ranks"], "no test ran")

    def test_hide_no_failure(self):
        self.stub("tests", SKIPPED.format(reason="only the fake tells") +
                  'echo "[  FAILED  ] Cuda.Adds (1 ms)"; exit 1')
        part = self.run_stage("ranks", "Cuda, 2 ranks", status=1)
        self.assert_failed(part["Cuda, 2 ranks"], "status 1: Cuda.Adds")

    def test_pass_without_a_card(self):
        self.no_card()
        self.stub("doctor", "  ok  backend shm      two ranks added")
        found = self.run_stage("smoke", options=["--no-card"])
        self.assertEqual(found["the plug-in"]["outcome"], "skipped")
        self.assertEqual(found["lockstep doctor"]["outcome"], "passed")
        self.assertIn("0 failed, 7 skipped", self.said)

    def test_are_not_to_be_asked_for_where_there_is_a_card(self):
        result = self.check("--no-card", self.out, "smoke")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--no-card, but there is NVIDIA H200", result.stderr)


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return state[0] != "Z"


class Deadlines(MadeUpCard):
    def test_end_what_hangs_and_all_that_it_has_started(self):
        # Ignores SIGTERM, and has a child in another session.
        self.stub("tests", 'trap "" TERM; setsid sleep 1000 & '
                  'echo $! >"$STUBS/left"; while :; do sleep 1000; done')
        found = self.run_stage("ranks", "Cuda", status=1,
                               LOCKSTEP_STAGE_SECONDS="20")
        self.assertIn("Cuda, 2 ranks", found)
        self.assert_failed(found["Cuda, 2 ranks"], r"did not end within \d+ s")
        self.assert_failed(found["TrainerOnCuda, 4 ranks"],
                           "nine minutes had passed before it began")
        self.assertFalse(alive(int((self.stubs / "left").read_text())))

    def test_keep_what_is_done_when_the_stage_itself_is_killed(self):
        self.stub("train", "echo up; sleep 1000")
        environment = {
            **os.environ, "STUBS": str(self.stubs),
            "PYTHONPATH": str(self.folder / "python"),
            "PATH": f"{self.folder / 'path'}:{os.environ['PATH']}"}
        with subprocess.Popen(
                [sys.executable, self.bundle / "gpu_check", self.out, "smoke",
                 "doctor", "lockstep train"], env=environment,
                stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                if "lockstep train …" in line:
                    break
            os.kill(process.pid, signal.SIGKILL)
        self.assertIn("the plug-in", json.loads(
            (self.out / "smoke.json").read_text())["whole"])
        with tarfile.open(self.out / "smoke.tar.gz") as archive:
            self.assertTrue(archive.getnames()[-1].endswith("doctor.log"))
        self.end_sleeper()

    def end_sleeper(self):
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"STUBS={self.stubs}" in environ.read_text(errors="replace"):
                    os.kill(int(environ.parent.name), signal.SIGKILL)
            except OSError:
                continue

    def test_logs_are_kept_whole(self):
        self.stub("tests", "seq 100000")
        part = self.run_stage("ranks", "Cuda, 2 ranks")["Cuda, 2 ranks"]
        text = self.log("ranks", part)
        self.assertIn("[rank 0] 1\n", text)
        self.assertIn("[rank 1] 100000\n", text)


class Stages(MadeUpCard):
    def test_ranks_share_the_card(self):
        found = self.run_stage("ranks", "CapturedPass")
        self.assertEqual(list(found), ["CapturedPass, 2 ranks",
                                       "CapturedPass, 4 ranks"])
        text = self.log("ranks", found["CapturedPass, 4 ranks"])
        self.assertIn("[rank 3] shared 1, --gtest_filter=CapturedPassOnCuda.*",
                      text)

    def test_ranks_without_torch_use_no_fake(self):
        found = self.run_stage("ranks", "Nccl")
        self.assertEqual(list(found), ["Nccl, 2 ranks", "Nccl, 4 ranks"])
        self.assertIn("--gtest_filter=Nccl.*:NcclMemory.*, real\n",
                      self.log("ranks", found["Nccl, 4 ranks"]))

    def test_conformance_has_no_wrong_case(self):
        self.run_stage("ranks", "conformance")
        found = self.run_stage("ranks", "conformance", status=1, WRONG="1")
        self.assertEqual(list(found), ["conformance, 2 ranks",
                                       "conformance, 4 ranks"])
        self.assert_failed(found["conformance, 2 ranks"], "0 wrong", "Lockstep")

    def test_training_that_learns_nothing_has_failed(self):
        self.stub("train", 'echo "trained in 1 s · test accuracy 10.0 %"')
        self.stub("evaluate", """echo '{"accuracy": 0.1}'""")
        found = {**self.run_stage("smoke", "lockstep train",
                                   "lockstep evaluate", status=1),
                 **self.run_stage("ranks", "lockstep train", status=1)}
        self.assertEqual(len(found), 4)
        for part in found.values():
            self.assert_failed(part, "nothing it printed is like .*accuracy")

    def test_a_folder_of_images_is_also_predicted_and_trained_on_channels_last(self):
        for ranks, stage in ((1, "smoke"), (2, "ranks")):
            part, = self.run_stage(stage, "folder of images").values()
            # The time of ranks that share a card is no figure.
            self.assertEqual(
                [row["ours"] for row in part["results"] if row.get("unit") != "s"],
                [0.97, 0, 0.97])
            self.assertEqual(len(part["results"]), 4 if ranks == 1 else 3)
            first, more = [line for line in self.log(stage, part).splitlines()
                           if line.startswith(f"train -n {ranks} ")]
            self.assertNotIn("--channels-last", first)
            self.assertIn("--channels-last", more)
            self.assertEqual("--sync-bn" in more, ranks > 1)

    def test_a_folder_of_images_fails_where_predict_is_wrong(self):
        self.stub("predict", "echo index,path,predicted; echo 0,val/ring/0.jpg,0")
        part, = self.run_stage("smoke", "folder of images", status=1).values()
        self.assert_failed(part, "^missed: accuracy of lockstep predict$")

    def test_a_folder_of_images_fails_where_the_model_learned_nothing(self):
        self.stub("evaluate", """echo '{"accuracy": 0.89, "classes": []}'""")
        self.stub("predict", "echo index,path,predicted")
        part, = self.run_stage("ranks", "folder of images", status=1).values()
        self.assert_failed(part, "^missed: accuracy then, 2 rank")

    def test_compare_tells_numbers_and_whose_failure_it_is(self):
        found = self.run_stage("compare")
        self.assertEqual(found["cnn, float32"]["results"][0]["ours"], 1e-7)
        self.assertEqual(len(found), 6)
        self.stub("compare", "echo LAYER PyTorch; echo ended; exit 1")
        found = self.run_stage("compare", "mlp, float32", status=1)
        self.assert_failed(found["mlp, float32"], "status 1: ended", "PyTorch")

    def test_compare_watches_the_card_that_has_all_ranks(self):
        self.stub("compare", 'echo "on card $CUDA_VISIBLE_DEVICES"')
        part, = self.run_stage("compare", "mlp, float32").values()
        self.assertIn("on card 0\n", self.log("compare", part))

    def test_a_part_that_misses_a_target_has_failed(self):
        self.stub("compare", 'echo \'RESULT {"what": "memory", "ours": 2, "met": '
                  'false}\'; echo \'RESULT {"what": "loss", "ours": 0}\'')
        found = self.run_stage("compare", "mlp, float32", status=1)
        self.assert_failed(found["mlp, float32"], "^missed: memory$")

    def test_compare_without_torchvision_is_a_failure(self):
        self.stub("compare", "echo 'skipped: No module torchvision'; exit 77")
        found = self.run_stage("compare", "resnet18, float32", status=1)
        self.assert_failed(found["resnet18, float32"], "No module torchvision")

    def test_speed_leaves_the_rows(self):
        self.run_stage("speed")
        self.assertEqual((self.out / "gpu.json").read_text(), "[]\n")
        self.stub("benchmark", "exit 3")
        self.run_stage("speed", status=1)

    def test_an_unknown_part_is_named(self):
        result = self.check(self.out, "speed", "spede")
        self.assertEqual(result.returncode, 2)
        self.assertIn("speed has no part like spede", result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
