#!/usr/bin/env python3
"""`lockstep run` beside the torchrun of this Python: its flags, its variables,
and the errors that scripts record for it.

The environment names the built command: LOCKSTEP_COMMAND.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

try:
    from torch.distributed.run import get_args_parser
except ImportError:
    print("skipped: this Python has no PyTorch with torch.distributed")
    sys.exit(77)

COMMAND = os.environ["LOCKSTEP_COMMAND"]
TIMEOUT = 120  # seconds; the tests take a few
# Of a flag whose default says too little.
VALUES = {"nnodes": "1:1", "rdzv_endpoint": "localhost:29400", "log_dir": "logs",
          "local_ranks_filter": "0", "node_rank": "0", "master_port": "29500",
          "rdzv_conf": "join_timeout=5", "shutdown_timeout": "5",
          "duplicate_stdout_filters": "a", "duplicate_stderr_filters": "a",
          "logs_specs": "mine", "local_addr": "127.0.0.1"}
# Each launcher has its own.
OF_ONE_START = {"MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID",
                "TORCHELASTIC_USE_AGENT_STORE"}
# The shell sets them; the last one torchrun sets for itself.
NOT_OF_RANKS = {"_", "SHLVL", "PWD", "TORCHELASTIC_SIGNALS_TO_HANDLE"}
FOREIGN = "a flag of torchrun that lockstep run does not have"


def lockstep(*arguments, **variables):
    return subprocess.run([COMMAND, "run", *arguments], capture_output=True, text=True,
                          check=False, timeout=TIMEOUT, stdin=subprocess.DEVNULL,
                          env={**os.environ, **variables})


def flags_of_torchrun():
    # pylint: disable-next=protected-access
    return [action for action in get_args_parser()._actions
            if action.option_strings and action.dest != "help"]


def value_for(action):
    if action.choices:
        return str(list(action.choices)[0])
    return VALUES.get(action.dest) or str(action.default)


class Flags(unittest.TestCase):
    def check(self, action, result):
        if result.returncode == 0:
            return
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn(FOREIGN, result.stderr)
        self.assertIn(action.option_strings[-1].replace("_", "-"), result.stderr)

    def test_each_is_taken_or_refused_by_a_text_that_says_what_to_use(self):
        self.assertGreater(len(flags_of_torchrun()), 20)
        for action in flags_of_torchrun():
            for flag in action.option_strings:
                with self.subTest(flag=flag):
                    value = [] if action.nargs == 0 else [value_for(action)]
                    self.check(action, lockstep(flag, *value, "--dry-run", "true"))

    def test_each_has_its_default_from_torchruns_variable(self):
        for action in flags_of_torchrun():
            if type(action) is argparse._StoreAction:  # pylint: disable=W0212,C0123
                continue  # torchrun has no variable for it
            with self.subTest(flag=action.dest):
                value = "1" if action.nargs == 0 else value_for(action)
                name = f"PET_{action.dest.upper()}"
                self.check(action, lockstep("--dry-run", "true", **{name: value}))
                # A variable that is not read cannot be wrong.
                bad = lockstep("--dry-run", "true", **{name: "\x01"})
                if action.dest not in ("role", "rdzv_id", "log_dir", "master_addr",
                                       "rdzv_endpoint", "local_addr"):
                    self.assertEqual(bad.returncode, 2, name)
                    self.assertIn(name, bad.stderr)


def environment_of_ranks(*launcher):
    """The variables that `launcher` gives each of its ranks, by rank."""
    with tempfile.TemporaryDirectory() as folder:
        script = f"env -0 > {folder}/$RANK"
        subprocess.run([*launcher, "--nproc-per-node", "2", "--no-python", "sh", "-c", script],
                       check=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL,
                       capture_output=True)
        return [dict(entry.split("=", 1)
                     for entry in (pathlib.Path(folder) / rank).read_text().split("\0") if entry)
                for rank in ("0", "1")]


class Variables(unittest.TestCase):
    def compare(self, *flags):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", *flags]
        for theirs, ours in zip(environment_of_ranks(*torchrun),
                                environment_of_ranks(COMMAND, "run", *flags)):
            added = {name: value for name, value in theirs.items()
                     if os.environ.get(name) != value and name not in NOT_OF_RANKS}
            self.assertIn("TORCHELASTIC_ERROR_FILE", added)
            for name, value in added.items():
                with self.subTest(name=name):
                    self.assertIn(name, list(ours))  # shows no values
                    if name == "MASTER_ADDR":  # the host's name, or its loopback address
                        continue
                    if name not in OF_ONE_START:
                        self.assertEqual(ours[name], value)

    def test_are_torchruns(self):
        self.compare("--role", "trainer", "--max-restarts", "1")

    def test_show_each_rank_one_gpu_where_asked(self):
        self.compare("--virtual-local-rank")


SCRIPT = """
import os, sys
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("the batch \\x1b[31mis empty")
    sys.stdin.read()

main()
"""


class Record(unittest.TestCase):
    def test_gives_the_report_the_exception(self):
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder) / "train.py"
            script.write_text(SCRIPT)
            report = pathlib.Path(folder) / "error.json"
            temporary = pathlib.Path(folder) / "tmp"
            temporary.mkdir()
            result = lockstep("-n", "2", "--error-file", str(report), sys.executable, str(script),
                              TMPDIR=str(temporary))
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn("likely:  it raised ValueError: the batch ?[31mis empty", result.stderr)
            exception = json.loads(report.read_text())["exception"]
            self.assertEqual(exception["message"], "ValueError: the batch \x1b[31mis empty")
            self.assertIn("in main", exception["traceback"])
            self.assertEqual(list(temporary.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
