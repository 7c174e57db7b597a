"""What a job must not leave on this machine: processes, listening ports, files in
/dev/shm and temporary files.

For tests that scripts/hosts runs: there the numbers of processes, /dev/shm and
TMPDIR belong to the run, so all that is new comes from the job.
"""
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
# docs/formats/running_jobs.md
JOB_LIST = re.compile(r"lockstep-\d+")
# docs/formats/record.md
RECORD_FOLDER = re.compile(r"lockstep-records-\w{6}")
RECORD = re.compile(r"(job|rank-\d+)\.json|\.(job|rank-\d+)\.json\.\d+\.tmp")
# docs/formats/fault_note.md: the launcher reads a rank's note and removes it.
FAULT_NOTE = re.compile(r"fault-\d+\.json|\.fault-\d+\.json\.\d+\.tmp")
# The kernel takes a moment to end processes whose launcher was killed.
PATIENCE_SECONDS = 30


def processes():
    """The processes that have not ended, with their commands."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            command = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue  # it ends at this moment
        if state not in "XZ":
            found[int(folder.name)] = command
    return found


def listening_ports(namespace):
    """Of a network namespace; without one, of this process."""
    words = ["ss", "-H", "-ltn"] + (["-N", namespace] if namespace else [])
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return set(done.stdout.splitlines())


def names_in(folder):
    return {entry.name for entry in Path(folder).iterdir()}


class Leftovers:
    """Remembers what is there before a job; check() looks for what is new."""

    def __init__(self, lockstep, namespaces=(None,)):
        self.lockstep, self.namespaces = lockstep, namespaces
        self.processes = processes()
        self.ports = {name: listening_ports(name) for name in namespaces}
        self.shared = names_in(SHARED_MEMORY)
        self.temporary = names_in(tempfile.gettempdir())

    def check(self, killed, own=None):
        """`killed`: a launcher of the job was killed, so the kernel ends its
        processes, and its folder stays with the records and with the fault notes
        that it has not read. `own`: the name of a folder of the test, which is no
        leftover."""
        self._check_processes(killed)
        for name in self.namespaces:
            ports = listening_ports(name) - self.ports[name]
            assert not ports, f"ports are left on {name or 'this host'}: {ports}"
        self._check_shared_memory()
        self._check_temporary_files(killed, own)

    def _check_processes(self, killed):
        deadline = time.monotonic() + PATIENCE_SECONDS
        pause = threading.Event()
        while True:
            left = {pid: command for pid, command in processes().items()
                    if pid not in self.processes}
            if not left or not killed or time.monotonic() > deadline:
                break
            pause.wait(0.05)
        assert not left, f"processes are left: {left}"

    def _check_shared_memory(self):
        # A reader of the list removes the files of launchers that were killed.
        subprocess.run([self.lockstep, "status"], check=True,
                       stdout=subprocess.DEVNULL)
        for name in names_in(SHARED_MEMORY):
            if JOB_LIST.fullmatch(name):
                left = names_in(SHARED_MEMORY / name)
                assert not left, f"files are left in {SHARED_MEMORY / name}: {left}"
            else:
                assert name in self.shared, f"{name} is left in {SHARED_MEMORY}"

    def _check_temporary_files(self, killed, own):
        folder = Path(tempfile.gettempdir())
        for name in names_in(folder) - self.temporary - {own}:
            assert RECORD_FOLDER.fullmatch(name), f"{name} is left in {folder}"
            records = names_in(folder / name)
            others = {each for each in records if not RECORD.fullmatch(each)
                      and not (killed and FAULT_NOTE.fullmatch(each))}
            assert not others, f"{name} has other files than records: {others}"
            assert records or killed, f"{name} is empty, and was not removed"
            shutil.rmtree(folder / name)


def check_checkpoints(folder, most):
    """A killed writer leaves a temporary file, which the next save deletes before
    it writes its own (docs/formats/checkpoint.md): one that got its name before
    the newest checkpoint got its own must not be there. A writer that is killed
    before it deletes old checkpoints leaves one more than `most`."""
    changed = {name: (folder / name).stat().st_ctime for name in names_in(folder)}
    whole = {name for name in changed if name.startswith("checkpoint-")}
    temporary = {name for name in changed
                 if re.fullmatch(r"\.checkpoint-.*\.tmp", name)}
    others = set(changed) - whole - temporary - {".lock"}
    assert not others, f"other files than checkpoints: {others}"
    assert 1 <= len(whole) <= most + 1, f"checkpoints: {whole}"
    newest = max(changed[name] for name in whole)
    old = {name for name in temporary if changed[name] < newest}
    assert not old, f"no save has deleted {old}; in the folder are {set(changed)}"
