#!/usr/bin/env python3
"""Runs strategies.cc and strategies.py and compares the mean losses that they
print, which differ because of other random numbers.

    tensorflow_test.py STRATEGIES PYTHON

PYTHON has TensorFlow, which pip installs as tensorflow-cpu.
"""
import pathlib
import re
import subprocess
import sys

STRATEGIES, PYTHON = sys.argv[1:]
SCRIPT = pathlib.Path(__file__).with_name("strategies.py")
# Two seeds of Lockstep differ by less than 0.01.
TOLERANCE = 0.03


def losses_of(*program):
    result = subprocess.run(program, capture_output=True, text=True,
                            check=False, stdin=subprocess.DEVNULL)
    print(f"{program[-1]}:\n{result.stdout}{result.stderr}")
    result.check_returncode()
    found = re.findall(r"^(\w+): mean loss ([\d.]+)$", result.stdout, re.M)
    return {name: float(loss) for name, loss in found}


def main():
    ours, theirs = losses_of(STRATEGIES), losses_of(PYTHON, str(SCRIPT))
    far = [name for name in ours
           if abs(ours[name] - theirs.get(name, 0)) > TOLERANCE]
    return 0 if set(ours) == {"mirrored", "central"} and not far else 1


sys.exit(main())
