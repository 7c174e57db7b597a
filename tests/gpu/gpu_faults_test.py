"""gpu_check's verdicts on ranks that are killed or that run into faults, with
simulated ranks that answer as the real ones do, or wrongly."""
import unittest

from made_up_card import MadeUpCard

DEATH = 'rank 1 died in all_reduce #4'


def rank(number, body):
    return f'if [ "$RANK" = {number} ]; then {body}; fi'


def gets(error):
    return f'echo "after 12: {error}"; echo left'


class Faults(MadeUpCard):
    def fault(self, kind, rank_0, rank_1, **keywords):
        self.stub(kind, rank(0, rank_0) + "\n" + rank(1, rank_1))
        return self.run_stage("faults", kind, **keywords)[kind]

    def test_a_hang_ends_at_the_deadline_of_those_who_wait(self):
        # The culprit reads its input until the others have ended.
        stays = "read line; echo no error; echo left"
        part = self.fault("hang", gets("Timeout missing: rank 1"), stays)
        self.assertEqual(part["outcome"], "passed", part)
        self.assertEqual(part["results"][0]["ours"], 12)
        part = self.fault("hang", gets("Timeout missing: rank 0"), stays, status=1)
        self.assert_failed(part, r'rank 0 printed nothing like "rank 1')
        part = self.fault("hang", "sleep 1000", stays, status=1,
                          LOCKSTEP_FAULT_SECONDS="1")
        self.assertIn("rank 0 did not end", self.log("faults", part))

    def test_a_death_is_told_to_the_rank_that_is_left(self):
        part = self.fault("death", gets(f"PeerFailure {DEATH}"), "kill -9 $$")
        self.assertEqual(part["outcome"], "passed", part)
        part = self.fault("death", gets(f"Timeout {DEATH}"), "kill -9 $$", status=1)
        self.assert_failed(part, "PeerFailure")
        part = self.fault("death", gets(f"PeerFailure {DEATH}"), "true", status=1)
        self.assert_failed(part, "rank 1 ended with 0, not -9")

    def test_both_hear_of_a_mismatch(self):
        error = gets("Mismatch in all_reduce #4")
        self.assertFalse(self.fault("mismatch", error, error)["failed"])
        part = self.fault("mismatch", error, "echo no error; echo left", status=1)
        self.assert_failed(part, "rank 1 printed nothing like .*Mismatch")

    def test_memory_that_runs_out_is_told_with_its_rank(self):
        full = gets("SystemError a pass ran out of memory on rank 1 of 2")
        others = gets("PeerFailure rank 1 gave up: a pass ran out of memory")
        self.assertFalse(self.fault("memory", others, full)["failed"])
        part = self.fault("memory", "sleep 1000", full, status=1,
                          LOCKSTEP_FAULT_SECONDS="1")
        self.assertIn("rank 0 did not end", self.log("faults", part))

    def test_ranks_go_on_after_a_capture_that_fails(self):
        refused = gets("InvalidArgument what the host reads cannot be captured")
        on = "echo reduced after it; " + refused
        self.assertFalse(self.fault("capture", on, on)["failed"])
        part = self.fault("capture", on, refused, status=1)
        self.assert_failed(part, "rank 1 printed nothing like .*reduced after")

    def test_a_rank_that_does_not_leave_has_failed(self):
        error = "echo 'after 12: Mismatch in all_reduce'"
        part = self.fault("mismatch", error, error, status=1)
        self.assert_failed(part, "left")

    def test_what_a_device_has_not_is_skipped(self):
        self.no_card()
        skip = "echo skipped: the CPU has no such fault"
        part = self.fault("capture", skip, skip, options=["--no-card"])
        self.assertEqual(part["outcome"], "skipped")

    def test_ours_tells_nccl_that_ranks_are_hosts_and_not_the_script(self):
        own = 'echo "host ${NCCL_HOSTID-unset}, shared $LOCKSTEP_SHARE_GPUS"'
        part = self.fault("hang", own, own, status=1)
        self.assertIn("host unset, shared 1", self.log("faults", part))


# Ranks that train until they are killed, and the launcher that waits for them.
# Their environment, which a process has after exec, identifies them.
TRAIN = """
for r in 0 1; do RANK=$r setsid sleep 1000 & pids[r]=$!; done
for r in 0 1; do
  until grep -qz "^RANK=$r$" "/proc/${{pids[r]}}/environ"; do :; done
done
echo "epoch 1/1000  1/94  loss 2.3"
wait "${{pids[1]}}"
{ends}
"""
SAYS = 'echo "lockstep: rank 1 of 2 was killed by signal 9 (SIGKILL)"; '
KILL = "kill -9 of a rank in training"


class Kill(MadeUpCard):
    def kill(self, ends, **keywords):
        self.stub("train", TRAIN.format(ends=ends))
        return self.run_stage("ranks", "kill -9", **keywords)[KILL]

    def test_is_told_by_the_launcher_which_leaves_nothing(self):
        part = self.kill("kill -9 ${pids[0]}; " + SAYS + "exit 137")
        self.assertEqual(part["outcome"], "passed", part)
        self.assertEqual(len(part["results"]), 1)

    def test_fails_where_a_rank_is_left(self):
        part = self.kill(SAYS + "exit 137", status=1)
        self.assert_failed(part, "processes were left")

    def test_fails_where_the_launcher_says_nothing_or_that_all_is_well(self):
        part = self.kill("kill -9 ${pids[0]}; exit 137", status=1)
        self.assert_failed(part, "does not say which rank")
        part = self.kill("kill -9 ${pids[0]}; " + SAYS + "exit 0", status=1)
        self.assert_failed(part, "the launcher ended with 0, not 137")

    def test_fails_where_the_ranks_do_not_train(self):
        self.stub("train", "echo no GPU; exit 1")
        part = self.run_stage("ranks", "kill -9", status=1)[KILL]
        self.assert_failed(part, "the ranks did not begin to train")
        self.assertIn("no GPU", self.log("ranks", part))

    def test_fails_where_the_launcher_does_not_end(self):
        part = self.kill("sleep 1000", status=1, LOCKSTEP_FAULT_SECONDS="2")
        self.assert_failed(part, "the launcher did not end within 2 s")


if __name__ == "__main__":
    unittest.main(verbosity=2)
