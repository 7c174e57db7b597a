"""Runs the parts of a stage of gpu_check one after the other, each within its
time limit, and keeps their output.

After each part OUT/STAGE.json has the results of the parts so far, and
OUT/STAGE.tar.gz their complete logs: a killed stage loses only one part.
"""
import ctypes
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import judge

BEGIN = time.monotonic()
STAGE_SECONDS = 540
# The time for a part to end after its time limit.
GRACE_SECONDS = 8


@dataclasses.dataclass
class Part:
    """A command, and the layer that it tests, which is at fault when it fails."""

    name: str
    layer: str
    seconds: int
    command: list
    environment: dict = dataclasses.field(default_factory=dict)
    # Whether a machine without a card has what it needs.
    without_card: bool = False
    # Its output must have a line with this in it, a regex.
    expects: str = ""
    # Reasons of tests that may be skipped on this card: regexes.
    may_skip: tuple = ()


class Deadline:
    def __init__(self, seconds):
        self._end = BEGIN + seconds

    def left(self):
        return self._end - time.monotonic() - GRACE_SECONDS


def adopt_orphans():
    """Makes this process the parent of its children's orphans."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def children_by_parent():
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name before it may contain spaces and parentheses.
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            found.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    return found


def descendants(of=None):
    """All descendants of the process `of`, or of this one."""
    children = children_by_parent()
    found, ahead = [], [of or os.getpid()]
    while ahead:
        mine = children.get(ahead.pop(), [])
        found += mine
        ahead += mine
    return found


def await_end_of_descendants(seconds):
    """The processes that remain after the deadline."""
    end = time.monotonic() + seconds
    while descendants() and time.monotonic() < end:
        time.sleep(0.02)
    return descendants()


def end_descendants():
    """Ends remaining processes: a rank that hangs would hold the card's memory."""
    end = time.monotonic() + GRACE_SECONDS / 2
    while descendants() and time.monotonic() < end:
        for pid in descendants():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            pass
        time.sleep(0.02)


def run_command(part, log, seconds, scratch):
    """The exit status, or None where the command exceeded its time limit. All
    commands of a stage leave their files in `scratch`."""
    shown = " ".join(map(str, part.command))
    settings = " ".join(f"{k}={v}" for k, v in part.environment.items())
    log.write(f"$ {settings} {shown}\n".encode())
    log.flush()
    try:
        process = subprocess.Popen(
            [str(word) for word in part.command], stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True, cwd=scratch,
            env={**os.environ, **part.environment})
    except OSError as error:
        log.write(f"{error}\n".encode())
        return 127
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(GRACE_SECONDS / 2)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return None


def run_part(part, log, scratch, card, deadline):
    """The result in the report's format."""
    begin = time.monotonic()
    seconds = min(part.seconds, deadline.left())
    found = {"name": part.name, "layer": part.layer, "results": [], "seconds": 0,
             "command": " ".join(map(str, part.command)), "log": log.name}
    if seconds <= 0:
        verdict = judge.FAILED, "nine minutes had passed before it began"
    elif not card and not part.without_card:
        verdict = judge.SKIPPED, "it needs a card"
    else:
        with log.open("wb") as file:
            status = run_command(part, file, seconds, scratch)
        end_descendants()
        text = log.read_text(encoding="utf-8", errors="replace")
        found["results"] = judge.results_in(text)
        found["layer"] = judge.layer_in(text) or part.layer
        verdict = judge.verdict(part, status, text, seconds)
    found["outcome"], found["reason"] = verdict
    # A part that the card should have run but skipped has not passed.
    found["failed"] = found["outcome"] == judge.FAILED or (
        card and found["outcome"] == judge.SKIPPED)
    found["seconds"] = round(time.monotonic() - begin, 1)
    return found


def line_of(found):
    outcome = found["outcome"]
    if found["failed"] and outcome == judge.SKIPPED:
        outcome = "skipped = FAILED"
    text = (f"{outcome:<16} {found['seconds']:>6.1f} s  {found['layer']:<10} "
            f"{found['name']}")
    return text + (f": {found['reason']}" if found["reason"] else "")


def write_atomically(path, write):
    part = path.with_name(path.name + ".part")
    write(part)
    part.replace(path)


def keep(out, stage, header, parts, logs):
    document = {**header, "stage": stage, "parts": parts}
    write_atomically(out / f"{stage}.json", lambda path: path.write_text(
        json.dumps(document, indent=1) + "\n", encoding="utf-8"))

    def pack(path):
        with tarfile.open(path, "w:gz") as archive:
            archive.add(logs, f"{stage}-logs")
    write_atomically(out / f"{stage}.tar.gz", pack)


def run_stage(stage, parts, out, header):
    """Whether no part failed."""
    adopt_orphans()
    deadline = Deadline(float(os.environ.get("LOCKSTEP_STAGE_SECONDS",
                                             STAGE_SECONDS)))
    done = []
    with tempfile.TemporaryDirectory() as folder, \
            tempfile.TemporaryDirectory() as scratch:
        for number, part in enumerate(parts):
            name = re.sub(r"[^\w.]+", "-", part.name)
            log = Path(folder) / f"{number:02}-{name}.log"
            print(f"gpu_check: {stage}: {part.name} …", flush=True)
            done.append(run_part(part, log, scratch, header["card"], deadline))
            print(f"gpu_check: {line_of(done[-1])}", flush=True)
            if done[-1]["failed"] and log.exists():
                tail = log.read_text(encoding="utf-8", errors="replace")
                print("\n".join(tail.splitlines()[-20:])[-2000:], flush=True)
            keep(out, stage, header, done, folder)
    return summarize(stage, done, out)


def summarize(stage, done, out):
    failed = [found for found in done if found["failed"]]
    skipped = sum(found["outcome"] == judge.SKIPPED for found in done)
    print(f"\n{stage}:")
    for found in done:
        print(f"  {line_of(found)}")
    layers = sorted({found["layer"] for found in failed})
    print(f"{stage}: {len(done) - len(failed) - (0 if failed else skipped)} of "
          f"{len(done)} parts passed, {len(failed)} failed"
          + (f" (look at: {', '.join(layers)})" if layers else "")
          + (f", {skipped} skipped" if skipped else "")
          + f"; {out}/{stage}.json, {stage}.tar.gz", flush=True)
    return not failed


def fail(message):
    print(f"gpu_check: {message}", file=sys.stderr)
    sys.exit(2)
