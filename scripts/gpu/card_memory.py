"""The memory that processes take on the first card, as nvidia-smi reports it: of
all processes together, because a container may not see which are its own."""
import json
import os
import subprocess
import threading

# A process takes more by its mere context, a driver without processes less.
IDLE_MIB = 100
# The time within which the driver frees what a process had.
SETTLE_SECONDS = float(os.environ.get("LOCKSTEP_SETTLE_SECONDS", 10))
COMMAND = ["nvidia-smi", "--id=0", "--query-gpu=memory.used",
           "--format=csv,noheader,nounits", "-lms", "100"]


class Watch:
    """The peak of the memory in use meanwhile, in MiB above that before. `most` is
    None where other processes use the card before or after, or where nvidia-smi
    does not report it; `why` says so."""

    def __enter__(self):
        self.most, self.why = None, ""
        self._seen, self._ended = [], False
        self._changed = threading.Condition()
        try:
            self._process = subprocess.Popen(
                COMMAND, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True)
        except OSError:
            self._process, self.why = None, "there is no nvidia-smi"
            return self
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        self._begin = self._wait_until_idle(0, "before the ranks began")
        return self

    def _read(self):
        for line in self._process.stdout:
            if line.strip().isdigit():
                with self._changed:
                    self._seen.append(int(line))
                    self._changed.notify()
        with self._changed:
            self._ended = True
            self._changed.notify()

    def _wait_until_idle(self, first, when):
        """The number of a sample, from `first` on, that has an idle card. `why` says
        why there is none."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._ended or (
                    len(self._seen) > first and self._seen[-1] <= IDLE_MIB),
                SETTLE_SECONDS)
            new = self._seen[first:]
        if not new:
            self.why = f"nvidia-smi printed no number {when}"
        elif new[-1] > IDLE_MIB:
            self.why = (f"other processes use the card: {new[-1]} MiB were in use "
                        f"{when}")
        return first + len(new) - 1

    def __exit__(self, *_):
        if self._process is None:
            return
        if not self.why:
            end = self._wait_until_idle(len(self._seen), "after the ranks had ended")
        self._process.kill()
        self._process.wait()
        self._thread.join()
        self._process.stdout.close()
        if not self.why:
            self.most = max(self._seen[self._begin:end]) - self._seen[self._begin]


def judged(case, ranks, theirs, ours, device):
    """Prints the row of two watches, and returns whether the target is met. Without
    a row it is not, except for ranks on the CPU, which take no such memory."""
    why = theirs.why or ours.why
    if why:
        print(f"compare: the memory of the card was not measured: {why}", flush=True)
        return device == "cpu"
    met = ours.most <= theirs.most
    print("RESULT", json.dumps(
        {"what": f"{case}: memory of the card, {ranks} ranks", "unit": "MiB",
         "ours": ours.most, "theirs": theirs.most, "limit": theirs.most,
         "met": met}), flush=True)
    return met
