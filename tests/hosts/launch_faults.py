"""A job that `lockstep run` starts on the two hosts of scripts/hosts, and the
faults that launch_test.py has it meet.

The job trains with checkpoints and --resume auto. Where a fault ends a launcher,
the round does what its error says: it runs the same command again.
"""
import itertools
import json
import os
import random
import signal
import threading
import time

from host_launcher import PORT, Launcher, NewFiles, pids_on, run, signal_all

# Far beyond the usual time; these limits only keep a failing test from hanging.
PATIENCE_SECONDS = 240
MOST_STARTS = 12
KEPT = 3
MOST_STEPS = 115  # of the 118 of an epoch
TRAIN = ["train", "--model", "mlp", "--epochs", "1", "--global-batch-size", "512",
         "--logical-shards", "4", "--threads", "1", "--no-hints"]
AGAIN = "starts the workers again"
WITHOUT_LOG = "goes on without a log"
LOG_IS_FULL = "is no longer written: No space left on device"


class Round:
    """A job, and one fault that it meets."""

    def __init__(self, programs, folder, chance):
        """`programs`: scripts/hosts and lockstep."""
        (self.hosts_script, self.lockstep), self.folder = programs, folder
        self.chance = chance
        self.pause = threading.Event()
        self.format = chance.choice(["single", "sharded"])
        self.ranks = chance.choice([1, 1, 2])
        self.deadline = time.monotonic() + PATIENCE_SECONDS
        self.last_call = 1  # seconds
        self.log = []  # more flags of lockstep run
        self.environment = {}
        self.fault_at = None  # seconds since 1970; none before the fault
        self.killed = False  # a launcher was
        self.all = []  # launchers, those that have ended too
        self.hosts = [None, None]
        (folder / "checkpoints").mkdir()

    def shape(self):
        return f"{self.format}, {self.ranks} per host"

    def start(self, host):
        endpoint = os.environ["HOST_ADDRESSES"].split(",")[0]
        command = [
            self.lockstep, "run", "-n", str(self.ranks), "--nnodes", "1:2",
            "--rdzv-endpoint", f"{endpoint}:{PORT}",
            "--rdzv-conf", f"last_call_timeout={self.last_call}",
            "--max-restarts", "20",
            "--grace", "1", *self.log, self.lockstep, *TRAIN,
            "--checkpoint-dir", str(self.folder / "checkpoints"),
            "--checkpoint-every", "10", "--keep", str(KEPT),
            "--checkpoint-format", self.format, "--resume", "auto",
            "--log-dir", str(self.folder / "curves"), "--log-interval", "1",
            "--output", str(self.folder / "model.safetensors")]
        self.hosts[host] = Launcher(self.hosts_script, host, command,
                                    self.environment)
        self.all.append(self.hosts[host])

    def start_both(self):
        self.start(0)
        self.start(1)

    def all_ranks(self):
        return [rank for launcher in self.hosts for rank in launcher.ranks()]

    def is_over(self):
        return self.hosts[0].process.poll() == 0

    def runs(self):
        """Whether the job goes on by itself."""
        assert time.monotonic() < self.deadline, "the job does not get on"
        return not self.is_over() and any(
            launcher and launcher.process.poll() is None for launcher in self.hosts)

    def is_said(self, text):
        return any(text in launcher.output for launcher in self.all)

    def until(self, condition, pause=0.01):
        """Waits for the condition; returns False if the launchers end first."""
        while not condition():
            if not self.runs():
                return False
            self.pause.wait(pause)
        return True

    # The faults themselves.

    def note(self):
        self.fault_at = time.time()

    def kill_rank(self):
        # A launcher that has no ranks at this moment starts some soon.
        found = []
        if self.until(lambda: found.extend(self.all_ranks()) or found, 0.001):
            self.note()
            signal_all([self.chance.choice(found)], signal.SIGKILL)

    def kill_launcher_of(self, host):
        self.note()
        self.killed = True
        self.hosts[host].signal(signal.SIGKILL)

    def kill_launcher(self):
        self.kill_launcher_of(1)

    def kill_server(self):
        self.kill_launcher_of(0)

    def kill_host_number(self, host):
        self.note()
        self.killed = True
        while pids := pids_on(host):
            signal_all(pids, signal.SIGKILL)

    def kill_host(self):
        self.kill_host_number(1)

    def kill_servers_host(self):
        self.kill_host_number(0)

    def stop_launcher(self):
        launcher = self.chance.choice(self.hosts)
        self.note()
        launcher.signal(signal.SIGSTOP)
        self.pause.wait(self.chance.uniform(0, 2))
        launcher.signal(signal.SIGCONT)

    def cut_for_a_moment(self):
        self.note()
        run(self.hosts_script, self.chance.choice(["cut", "mute"]), "1")
        self.pause.wait(self.chance.uniform(0, 1))
        run(self.hosts_script, "mend", "1")

    def misses(self, host):
        """Returns a condition: the launcher of this host has said that the other
        host is gone, by its end or a restart, or has not met it yet."""
        launcher, begin = self.hosts[host], len(self.hosts[host].output)
        if host == 1 and not launcher.has_come():
            return lambda: True
        return lambda: (launcher.process.poll() is not None or
                        AGAIN in launcher.output[begin:])

    def cut(self):
        # One launcher may notice before the other.
        noticed = self.misses(self.chance.choice([0, 1]))
        self.note()
        run(self.hosts_script, self.chance.choice(["cut", "mute"]), "1")
        self.until(noticed)
        run(self.hosts_script, "mend", "1")

    def power_off(self):
        """A host ends without a word: no connection of it is closed."""
        host = self.chance.choice([0, 1])
        noticed = self.misses(1 - host)
        run(self.hosts_script, "mute", str(host))
        self.kill_host_number(host)
        self.until(noticed)
        run(self.hosts_script, "mend", str(host))

    def fill_log_disk(self):
        """The launchers go on without logs, and start ranks again without."""
        self.note()
        with open(self.folder / "logs" / "other", "wb", buffering=0) as other:
            self.fill(lambda: other.write(bytes(1 << 12)))
        names = itertools.count()
        self.fill(lambda: (self.folder / "logs" / str(next(names))).touch())
        full_at = self.fault_at
        if not self.until(lambda: self.is_said(LOG_IS_FULL)):
            assert not self.steps_since(full_at), "no launcher says that logs end"
            return
        self.kill_rank()
        if not self.until(lambda: self.is_said(WITHOUT_LOG)):
            assert not self.is_said(AGAIN), "no launcher says that it has no logs"

    @staticmethod
    def fill(write):
        try:
            while True:
                write()
        except OSError:
            pass

    # When a fault comes. Each waits for its moment, and returns False if the job
    # is over first.

    def at_random(self):
        """While the job starts, or a moment after one of its steps."""
        self.start_both()
        if self.chance.random() < 0.25:
            moment = time.monotonic() + self.chance.uniform(0, 2)
            return self.until(lambda: time.monotonic() > moment or
                              self.steps_since(0))
        return self.after_a_step()

    def after_a_step(self):
        steps = self.chance.randrange(1, MOST_STEPS)
        if not self.until(lambda: len(self.steps_since(0)) >= steps):
            return False
        self.pause.wait(self.chance.uniform(0, 0.05))
        return not self.is_over()

    def during_rendezvous(self):
        """The launchers have met and no rank was started. That takes milliseconds,
        so the launcher that serves is stopped until the other one has come, and
        in half of the rounds until a moment later."""
        self.last_call = 5  # so that the first launcher does not begin alone
        self.start(0)
        self.until(self.hosts[0].serves, 0.001)
        self.hosts[0].signal(signal.SIGSTOP)
        self.start(1)
        self.until(self.hosts[1].has_come, 0.001)
        if self.chance.random() < 0.5:
            self.hosts[0].signal(signal.SIGCONT)
            self.pause.wait(self.chance.uniform(0, 0.002))
        for launcher in self.hosts:
            launcher.signal(signal.SIGSTOP)
        if not self.all_ranks():
            return True
        self.go_on()
        return False

    def during_checkpoint(self):
        """A rank has begun to write a checkpoint, and has not completed it: all
        ranks are stopped before the fault, and go on after it."""
        folder = self.folder / "checkpoints"
        names = NewFiles(folder)
        self.start_both()
        left_out = self.chance.randrange(8)
        try:
            while self.runs():
                for name in names.next(0.05):
                    if not name.startswith(".checkpoint-"):
                        continue
                    left_out -= 1
                    if left_out >= 0:
                        continue
                    signal_all(self.all_ranks(), signal.SIGSTOP)
                    if (folder / name).exists():
                        return True
                    self.go_on()
        finally:
            names.close()
        return False

    def during_restart(self):
        """A rank is killed, and the launcher says that it starts the workers again."""
        if not self.at_random():
            return False
        begins = [len(launcher.output) for launcher in self.hosts]
        self.kill_rank()
        return self.until(lambda: any(
            AGAIN in launcher.output[begin:]
            for launcher, begin in zip(self.hosts, begins)), 0.001)

    def on_small_log_disk(self):
        """A moment after a step, with logs on a file system of their own, to which
        the ranks write each operation. Before the first step a full disk is an
        error."""
        (self.folder / "logs").mkdir()
        run("mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=200", "tmpfs",
            str(self.folder / "logs"))
        self.log = ["--log-dir", str(self.folder / "logs"), "-r", "3"]
        self.environment = {"LOCKSTEP_LOG": "debug"}
        self.start_both()
        return self.after_a_step()

    def go_on(self):
        """What a moment has stopped goes on."""
        for launcher in self.hosts:
            launcher.signal(signal.SIGCONT)
        signal_all(self.all_ranks(), signal.SIGCONT)

    def run(self, kind):
        """Starts the job, has it meet the fault, and waits for its end."""
        moment, fault = kind
        if moment(self):
            fault(self)
        self.go_on()
        while not self.is_over():
            assert time.monotonic() < self.deadline, "the job does not end"
            assert len(self.all) < MOST_STARTS, "the job does not get on"
            for host, launcher in enumerate(self.hosts):
                if launcher.process.poll() not in (None, 0):
                    self.start(host)
            self.pause.wait(0.05)
        # A launcher that came too late for this job would wait for the next.
        self.hosts[1].signal(signal.SIGTERM)
        for launcher in self.hosts:
            launcher.process.wait(PATIENCE_SECONDS)

    def end(self):
        for launcher in self.all:
            launcher.end()
        if self.log:
            run("umount", str(self.folder / "logs"))

    def check_ends(self):
        for launcher in self.all:
            launcher.check_end()

    def print(self):
        for launcher in self.all:
            print(f"--- host {launcher.host} ended with "
                  f"{launcher.process.poll()}:\n{launcher.output}")

    def records_since(self, moment):
        """Rank 0's metrics from this time on: (kind, time)."""
        try:
            lines = (self.folder / "curves/metrics.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue  # its writer was killed
            if record["time"] >= moment:
                yield record["record"], record["time"]

    def steps_since(self, moment):
        return [time for kind, time in self.records_since(moment) if kind == "step"]

    def recovery(self):
        """The seconds from the fault to the end of the first step after the next
        start of the ranks; none where no step followed, or the ranks were not
        started again."""
        again = len(self.all) > 2 or self.is_said(AGAIN)
        if self.fault_at is None or not again:
            return None
        starts = [time for kind, time in self.records_since(self.fault_at)
                  if kind == "start"]
        steps = self.steps_since(starts[0]) if starts else []
        return steps[0] - self.fault_at if steps else None


KILLS = [Round.kill_rank, Round.kill_launcher, Round.kill_server, Round.kill_host,
         Round.kill_servers_host]
# Pairs of a moment and a fault; in a rendezvous there are no ranks.
KINDS = [
    *itertools.product([Round.at_random], [
        *KILLS, Round.stop_launcher, Round.cut_for_a_moment, Round.cut,
        Round.power_off]),
    (Round.on_small_log_disk, Round.fill_log_disk),
    *itertools.product([Round.during_rendezvous], KILLS[1:]),
    *itertools.product([Round.during_checkpoint], KILLS),
    *itertools.product([Round.during_restart], [*KILLS, Round.cut, Round.power_off])]
# Consecutive rounds meet unlike faults.
random.Random(0).shuffle(KINDS)


def name_of(kind):
    moment, fault = kind
    if moment in (Round.at_random, Round.on_small_log_disk):
        return fault.__name__
    return f"{fault.__name__} {moment.__name__}"
