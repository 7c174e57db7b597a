#!/usr/bin/env python3
"""Runs quickstart.cc and quickstart.py and compares their output: the mean losses
of every epoch.

    pytorch_test.py QUICKSTART PYTHON LAUNCHER…

LAUNCHER starts both; it may be `lockstep run -n 2`, or PyTorch's.
"""
import pathlib
import subprocess
import sys

QUICKSTART, PYTHON, *LAUNCHER = sys.argv[1:]
SCRIPT = pathlib.Path(__file__).with_name("quickstart.py")
CANNOT = 77


def losses_of(*program):
    result = subprocess.run([*LAUNCHER, *program], capture_output=True,
                            text=True, check=False, stdin=subprocess.DEVNULL)
    print(f"{program[-1]}:\n{result.stdout}{result.stderr}")
    result.check_returncode()
    return [line[line.index("epoch"):] for line in result.stdout.splitlines()
            if "mean loss" in line]


def main():
    probe = "import numpy, torch, torch.distributed as d; d.init_process_group"
    if subprocess.run([PYTHON, "-c", probe], check=False,
                      stderr=subprocess.DEVNULL).returncode != 0:
        print("skipped: this Python has no PyTorch with torch.distributed")
        return CANNOT
    ours, theirs = losses_of(QUICKSTART), losses_of(PYTHON, str(SCRIPT))
    return 0 if len(ours) == 2 and ours == theirs else 1


sys.exit(main())
