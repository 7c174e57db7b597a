"""What the ranks of lockstep_elastic_rank print, and the undisturbed training with
which theirs is compared."""
import os
import re
import subprocess
import tempfile

MEASURED = "seconds from a death to the end of the next group's first step"
TIMEOUT = 300


def lines_of(kind, text):
    """The numbers of lines such as `begin size=3 step=0`, one dictionary each."""
    return [dict(re.findall(r"(\w+)=(\w+)", line)) for line in
            re.findall(rf"\b{kind} (\w+=.*)", text)]


def recoveries(text):
    """Of each death the seconds until a new group had done a step."""
    deaths, steps = (sorted(int(line["at"]) for line in lines_of(kind, text))
                     for kind in ("death", "stepped"))
    next_steps = (next((step for step in steps if step > death), None)
                  for death in deaths)
    return [(step - death) / 1e9 for death, step in zip(deaths, next_steps)
            if step is not None]


def replay(launcher, program, groups, last):
    """The weights of an undisturbed training with these groups, each a size and a
    first step; `launcher` are words before `-n`."""
    weights, before = None, ""
    ends = [step for _, step in groups[1:]] + [last]
    with tempfile.TemporaryDirectory() as folder:
        for number, ((size, begin), end) in enumerate(zip(groups, ends)):
            if begin == end:
                continue
            after = os.path.join(folder, str(number))
            done = subprocess.run(
                [*launcher, "-n", str(size), program, f"from={begin}", f"to={end}",
                 f"out={after}", *([f"in={before}"] if before else [])],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT)
            assert done.returncode == 0, done.stdout
            weights, before = lines_of("end", done.stdout)[0]["weights"], after
    return weights
