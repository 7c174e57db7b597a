"""Runs each command of the guides that start jobs, as it stands there.

    scripts/hosts 2 --once -- guide_commands_test.py HOSTS BUILD PYTHON

The hosts are called node-a and node-b, as in the guides. They have an sshd, and a
Slurm of their own. `./program` and the other programs are examples; Fashion-MNIST
is replaced by a few of its images, so that training takes seconds.

A command is an indented line that begins with one of STARTS. In a block that begins
with "$ " the other lines are what the command prints: all must come, in any order, with
any times and process numbers; "…" stands for lines that the guide leaves out.

With "slurm" as the last argument the commands of Slurm run, otherwise all others.
"""
import contextlib
import functools
import gzip
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from slurm import Slurm
from ssh_servers import CANNOT, SshServers, may_become_any_user

# Absolute, since the commands run in a folder of their own.
HOSTS, BUILD, PYTHON = map(os.path.abspath, sys.argv[1:4])
REPOSITORY = Path(__file__).resolve().parents[2]
GUIDES = ("launchers", "slurm", "elastic", "errors")
NODES = ("node-a", "node-b")
STARTS = re.compile(r"(lockstep|torchrun|mpirun(\.mpich)?|srun|sbatch|scancel|export|"
                    r"kill|scripts/hosts|[A-Z_]+=\S+) ")
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
# Far beyond the usual time; a test that takes longer fails.
PATIENCE_SECONDS = 300
# For a job that Slurm put back: longer than a node takes to begin it.
RESTART_SECONDS = 15


SCRIPT = """\
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
print(f"the sum of {dist.get_world_size()} ranks is {int(one)}", flush=True)
dist.barrier()
os._exit(0)  # at a usual end PyTorch 2.13 aborts now and then
"""


class Guide:
    """The commands of a guide, what they print, and its scripts."""

    def __init__(self, name):
        text = (REPOSITORY / f"docs/guides/{name}.md").read_text(encoding="utf-8")
        self.scripts = re.findall(r"^```sh\n(.*?)^```$", text, re.S | re.M)
        text = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
        self.commands = {}
        for block in re.findall(r"(?:^    .*\n)+", text, re.M):
            self.read(re.sub(r"^    ", "", block, flags=re.M))

    def read(self, block):
        if block.startswith("$ "):
            command, *lines = block[2:].splitlines()
            self.commands[command] = [line for line in lines if line != "…"]
            return
        for line in block.replace("\\\n", " ").splitlines():
            if STARTS.match(line):
                command = re.sub(r"\s{2,}# .*", "", line)
                self.commands[" ".join(command.split())] = []


def pattern_of(line):
    """What a printed line must match. Times, process numbers and the names of
    temporary folders differ; and either rank that waits for rank 1 may speak."""
    line = re.sub(r"(\\ )+", r"\\s+", re.escape(line.rstrip()))
    line = re.sub(r"/tmp/lockstep\\-records\\-\w+", r"\\S+/lockstep-records-\\w+", line)
    line = re.sub(r"\d+\\\.\d(?=\\s\+s)", r"\\d+\\.\\d", line)
    line = re.sub(r"\d\d:\d\d:\d\d", r"\\d\\d:\\d\\d:\\d\\d", line)
    line = re.sub(r"\d{4,}", r"\\d+", line)
    return re.sub(r"\brank\\s\+[02]\b", r"rank\\s+[02]", line)


def write_images(folder, images):
    """The first images of each file of Fashion-MNIST."""
    folder.mkdir()
    for file in FASHION_MNIST.glob("*.gz"):
        header, size = (16, 784) if "idx3" in file.name else (8, 1)
        data = bytearray(gzip.decompress(file.read_bytes())[:header + images * size])
        data[4:8] = images.to_bytes(4, "big")
        (folder / file.name).write_bytes(gzip.compress(bytes(data)))


class Nodes(contextlib.ExitStack):
    """Two hosts on which a user may type the guides' commands."""

    def __init__(self):
        super().__init__()
        self.home = Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.work = self.home / "work"
        self.work.mkdir()
        self.addresses = dict(zip(NODES, os.environ["HOST_ADDRESSES"].split(",")))
        with open("/etc/hosts", "a", encoding="ascii") as names:
            for node, address in self.addresses.items():
                names.write(f"{address} {node}\n")
        self.bring_programs()
        self.bring_few_images()
        self.environment = self.environment_of_a_user()
        ssh = self.enter_context(SshServers(HOSTS, NODES)).client()
        self.add_tool("ssh", f'exec {ssh} "$@"')

    def bring_programs(self):
        examples = Path(BUILD, "examples")
        for name, target in (("program", examples / "reductions"),
                             ("errors", examples / "errors"),
                             ("elastic", examples / "elastic")):
            (self.work / name).symlink_to(target)
        (self.work / "train.py").write_text(SCRIPT)
        (self.work / "hosts").write_text(
            "".join(f"{node} slots=4\n" for node in NODES))

    def bring_few_images(self):
        """In the mount namespace of scripts/hosts."""
        write_images(self.home / "few", 640)
        write_images(self.home / "many", 6400)
        self.images = self.home / "images"
        shutil.copytree(self.home / "few", self.images)
        subprocess.run(["mount", "--bind", self.images, FASHION_MNIST], check=True)

    @contextlib.contextmanager
    def many_images(self):
        """Training takes some seconds then."""
        shutil.copytree(self.home / "many", self.images, dirs_exist_ok=True)
        yield
        shutil.copytree(self.home / "few", self.images, dirs_exist_ok=True)

    def environment_of_a_user(self):
        kept = {name: value for name, value in os.environ.items()
                if name == "LOCKSTEP_HOSTS"
                or not name.startswith(("LOCKSTEP_", "OMP_"))}
        path = [self.home / "bin", Path(BUILD, "bin"), Path(PYTHON).parent,
                kept["PATH"], "/usr/sbin"]
        return kept | {
            "PATH": ":".join(map(str, path)),
            "PYTHONDONTWRITEBYTECODE": "1",
            # Open MPI's mpirun refuses root, and more ranks than cores.
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
        }

    def add_tool(self, name, script):
        tools = self.home / "bin"
        tools.mkdir(exist_ok=True)
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)

    def start(self, node, command):
        """A process group that runs the command on a node."""
        return subprocess.Popen(
            [HOSTS, "exec", str(NODES.index(node)), "--", "sh", "-c",
             'hostname "$0" && exec "$@"', node, "bash", "-c", command],
            cwd=self.work, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True)

    def run(self, command, node=NODES[0]):
        """The exit code and what the command has printed."""
        process = self.start(node, command)
        try:
            out, _ = process.communicate()
        finally:
            end(process)
        return process.returncode, out

    def output(self, command):
        code, out = self.run(command)
        if code != 0:
            raise AssertionError(f"{command} exited with {code}:\n{out}")
        return out


def until(condition):
    """Waits for what another process brings about, as long as the test may."""
    while not (result := condition()):
        time.sleep(0.05)
    return result


def end(process):
    """Ends what is left of a command."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def runs(*commands):
    """Passes these commands of a guide to a test, which runs them."""
    def mark(test):
        @functools.wraps(test)
        def run(self):
            test(self, *commands)
        run.commands = commands
        return run
    return mark


def time_is_up(*_):
    raise AssertionError("the test takes too long")


class Commands(unittest.TestCase):
    """A test names the commands of the guides that it runs, as they stand there."""

    @classmethod
    def setUpClass(cls):
        cls.nodes = cls.enterClassContext(Nodes())
        cls.guides = {name: Guide(name) for name in GUIDES}

    def setUp(self):
        signal.signal(signal.SIGALRM, time_is_up)
        signal.alarm(PATIENCE_SECONDS)
        self.addCleanup(signal.alarm, 0)

    def start(self, node, command):
        process = self.nodes.start(node, command)
        self.addCleanup(end, process)
        return process

    def expect(self, command, *patterns, code=0):
        """Runs the command on the first node; its output has the patterns."""
        ended, out = self.nodes.run(command)
        self.assertEqual(ended, code, out)
        for pattern in patterns:
            self.assertRegex(out, pattern)
        return out

    def expect_as_shown(self, command, code):
        out = self.expect(command, code=code)
        self.compare(command, out)
        return out

    def compare(self, command, out):
        """With what the guide about errors shows."""
        for line in self.guides["errors"].commands[command]:
            self.assertRegex(out, "(?m)^" + pattern_of(line) + r"\s*$")

    def expect_on_both(self, first, second, *patterns):
        """The nodes run a command each, which belong to one job."""
        started = [self.start(node, command)
                   for node, command in zip(NODES, (first, second))]
        ended = [(process.communicate()[0], process.returncode)
                 for process in started]
        self.assertEqual([code for _, code in ended], [0, 0], ended)
        for pattern in patterns:
            self.assertRegex("".join(out for out, _ in ended), pattern)

    def forget_runs(self):
        shutil.rmtree(self.nodes.work / "runs", ignore_errors=True)

    def checkpoints(self):
        return list((self.nodes.work / "runs/1").glob("checkpoint-*"))


class CommandsWithoutSlurm(Commands):
    def test_each_command_of_the_guides_is_run_by_a_test(self):
        run = {command for tests in (CommandsWithoutSlurm, CommandsOfSlurm)
               for name in dir(tests)
               for command in getattr(getattr(tests, name), "commands", ())}
        there = {command for guide in self.guides.values()
                 for command in guide.commands}
        self.assertEqual(there - run, set(), "a test has to run these")
        self.assertEqual(run - there, set(), "no guide has these")

    # One host.

    @runs("lockstep run -n 4 ./program --its-flag")
    def test_one_host(self, command):
        self.expect(command, r"\[rank 3\] all_reduce sum: +6 4")

    @runs("lockstep run -n 4 train.py")
    def test_a_pytorch_script(self, command):
        self.expect(command, "the sum of 4 ranks is 4")

    # Several hosts.

    @runs("lockstep run -H node-a:4,node-b:4 ./program",
          "lockstep run --hostfile hosts ./program")
    def test_several_hosts_over_ssh(self, *commands):
        for command in commands:
            self.expect(command, r"\[rank 7\] all_reduce sum: +28 8")

    @runs('scripts/hosts 2 --once -- scripts/hosts exec 0 -- lockstep run -H '
          'host0:2,host1:2 --ssh "scripts/hosts rsh" ./program')
    def test_several_hosts_of_one_machine(self, command):
        """Other hosts than those of this test, in a folder that they share. No file
        can be mounted over this test's /etc/hosts, which has no name any more."""
        with tempfile.TemporaryDirectory(dir=BUILD) as folder:
            Path(folder, "scripts").symlink_to(REPOSITORY / "scripts")
            Path(folder, "program").symlink_to(Path(BUILD, "examples/reductions"))
            ended = subprocess.run(
                ["unshare", "--mount", "sh", "-c",
                 'umount /etc/hosts && exec bash -c "$0"', command],
                cwd=folder, env=self.nodes.environment, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, check=False)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertRegex(ended.stdout, r"\[rank 3\] all_reduce sum: +6 4")

    @runs("export LOCKSTEP_TOKEN=...",
          "lockstep run --nnodes 2 --rdzv-endpoint node-a:29400 -n 4 ./program")
    def test_a_command_per_host(self, *commands):
        both = "\n".join(commands)
        self.expect_on_both(both, both, r"all_reduce sum: +28 8")

    @runs("lockstep run --nnodes 1:2 --rdzv-endpoint node-a:29400 --max-restarts 20 "
          "-n 1 lockstep train --logical-shards 2 --checkpoint-dir runs/1 "
          "--checkpoint-every 10 --resume auto")
    def test_training_through_the_loss_of_a_host(self, command):
        self.forget_runs()
        self.enterContext(self.nodes.many_images())
        first, second = [self.start(node, command) for node in NODES]
        until(self.checkpoints)
        os.killpg(second.pid, signal.SIGKILL)
        out, _ = first.communicate()
        self.assertEqual(first.returncode, 0, out)
        self.assertRegex(out, "(?s)starts the workers again .*node-b.* accuracy ")

    # Before the first job, and while one runs.

    @runs("lockstep doctor", "lockstep doctor --host-only")
    def test_the_doctor_of_a_host(self, alone, in_a_job):
        self.expect(alone, "Training on this host works")
        self.expect("export WORLD_SIZE=2 RANK=0\n" + in_a_job,
                    "Training on this host works")

    @runs("lockstep run -H node-a,node-b lockstep doctor")
    def test_the_doctor_of_several_hosts(self, command):
        self.expect(command, r"node-a to node-b +[\d.]+ [GM]bit/s",
                    "Training on these hosts works")

    @runs("lockstep status", "kill -USR1 4711")
    def test_a_job_that_hangs(self, status, ask):
        job = self.start(NODES[0], "exec lockstep run -n 3 ./errors hang")
        lines = [pattern_of(line) for line in self.guides["errors"].commands[status]]
        until(lambda: all(re.search(f"(?m)^{line}\\s*$", self.nodes.output(status))
                          for line in lines))
        number = re.search(r"job (\d+) ", self.nodes.output(status))[1]
        ask = ask.replace("4711", number)
        # A rank counts as waiting once it has waited for a second.
        out = until(lambda: self.blame(job, ask))
        self.assertIn("Rank 1 of 3 did not come to all_reduce #3", out)
        self.nodes.output(f"kill {number}")
        self.assertEqual(job.wait(), 128 + signal.SIGTERM)

    def blame(self, job, ask):
        """What the records of the running job show; nothing where they do not."""
        self.nodes.output(ask)
        folder = next(found[1] for line in job.stdout
                      if (found := re.search(r"next: lockstep blame (\S+)", line)))
        code, out = self.nodes.run(f"lockstep blame {folder}")
        return out if code == 0 else ""

    # Under other launchers.

    @runs("torchrun --nproc-per-node 2 --no-python lockstep train --epochs 5",
          "mpirun -n 2 lockstep train --epochs 5",
          "lockstep run -n 2 lockstep train --epochs 5")
    def test_other_launchers(self, *commands):
        mpich = commands[1].replace("mpirun", "mpirun.mpich")
        for command in (*commands, mpich):
            with self.subTest(command):
                self.expect(command, "2 ranks", " accuracy ")

    @runs("mpirun.mpich -genv MASTER_ADDR node-a -genv MASTER_PORT 29500 -n 2 "
          "./program",
          "mpirun -x MASTER_ADDR=node-a -x MASTER_PORT=29500 -n 2 ./program")
    def test_mpirun_with_the_address_of_rank_0(self, *commands):
        for command in commands:
            self.expect(command, "all_reduce sum: +1 2")

    @runs("RANK=0 WORLD_SIZE=2 MASTER_ADDR=node-a MASTER_PORT=29500 lockstep train")
    def test_variables_alone(self, command):
        self.expect_on_both(command, command.replace("RANK=0", "RANK=1"),
                            "2 ranks on 2 hosts", " accuracy ")

    # Elastic training.

    @runs("lockstep run -n 3 --in-place --min-ranks 2 ./elastic 55",
          "lockstep run -n 3 --in-place --max-restarts 1 ./elastic 55")
    def test_elastic_training(self, *commands):
        for command in commands:
            self.expect(command, "rank 2 was killed by signal 9",
                        "200 steps, in 2 groups")

    @runs("lockstep run -n 2 --nnodes 1:2 --rdzv-endpoint node-a:29400 --in-place "
          "--min-ranks 2 ./elastic 55")
    def test_elastic_training_on_two_hosts(self, command):
        self.expect_on_both(command, command, r"rank 3 was killed by signal 9",
                            "rank 2 of 3: 200 steps, in 2 groups")

    # Reading an error.

    @runs("lockstep run -n 3 ./errors exception", "lockstep run -n 3 ./errors crash",
          "lockstep run -n 3 ./errors killed", "lockstep run -n 3 ./errors mismatch",
          "lockstep run -n 3 ./errors leave")
    def test_errors_are_reported_as_shown(self, *commands):
        for command, code in zip(commands, (134, 139, 137, 1, 1)):
            with self.subTest(command):
                self.expect_as_shown(command, code)

    @runs("LOCKSTEP_TIMEOUT=2 lockstep run -n 3 ./errors hang",
          "lockstep blame /tmp/lockstep-records-g1c5VK")
    def test_blame_names_the_rank_that_did_not_come(self, hang, blame):
        out = self.expect_as_shown(hang, 1)
        folder = re.search(r"lockstep blame (\S+)", out)[1]
        self.compare(blame, self.expect(f"lockstep blame {folder}"))


class CommandsOfSlurm(Commands):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.slurm = cls.enterClassContext(Slurm(cls.nodes.start, cls.nodes.addresses))
        cls.nodes.environment["SLURM_CONF"] = str(cls.slurm.conf)

    def setUp(self):
        super().setUp()
        until(lambda: self.nodes.run("sinfo -h -o %T") == (0, "idle\n"))

    @runs("srun -n 8 lockstep train --epochs 5")
    def test_srun(self, command):
        self.expect(command, "8 ranks", " accuracy ")

    @runs("srun --nodes 2 --ntasks-per-node 2 ./program",
          "srun --nodes 2 --ntasks-per-node 2 lockstep train --epochs 5")
    def test_srun_of_two_nodes(self, program, train):
        self.expect(program, r"all_reduce sum: +6 4")
        self.expect(train, "4 ranks", " accuracy ")

    def submit(self, command, script):
        """Submits the guide's script; returns the number of the job, and a function
        that reads its output."""
        (self.nodes.work / command.split()[-1]).write_text(script)
        job = re.search(r"\d+", self.nodes.output(command))[0]
        log = self.nodes.work / f"slurm-{job}.out"
        return job, lambda: log.read_text() if log.exists() else ""

    def state_of(self, job):
        return re.search(r"JobState=(\w+)",
                         self.nodes.output(f"scontrol show job {job}"))[1]

    def wait_for(self, job, state, log, start_again=False):
        """Waits until the job is in the state, or ends otherwise. `start_again`: the
        job was put back. Slurm lets it wait for two minutes then, and once more if a
        node refuses it, as it does in the second in which it ended the job:
        credentials count seconds. So the wait is cut short, as often as it begins."""
        started = 0

        def found():
            nonlocal started
            now = self.state_of(job)
            if (start_again and now == "PENDING"
                    and time.monotonic() > started + RESTART_SECONDS):
                started = time.monotonic()
                self.nodes.output(f"scontrol update JobId={job} StartTime=now+2")
            return now in (state, *ENDED) and now
        try:
            self.assertEqual(until(found), state)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{log()}{self.slurm.log()}") from error

    @runs("sbatch job.sh", "scancel --signal=TERM 1")
    def test_a_batch_job_that_is_preempted(self, submit, preempt):
        self.forget_runs()
        self.enterContext(self.nodes.many_images())
        self.expect("lockstep train --logical-shards 2 --ranks 1 --output right")
        job, log = self.submit(submit, self.guides["slurm"].scripts[0])
        until(self.checkpoints)
        self.nodes.output(preempt.replace(" 1", f" {job}"))
        self.wait_for(job, "PENDING", log)
        before = log()
        self.wait_for(job, "COMPLETED", log, start_again=True)
        self.assertIn("went on from runs/1/checkpoint-", log()[len(before):])
        self.assertEqual(
            (self.nodes.work / "right").read_bytes(),
            (self.nodes.work / "convnet-fashion-mnist.safetensors").read_bytes())

    @runs("sbatch launchers.sh")
    def test_a_launcher_per_node_of_a_batch_job(self, submit):
        job, log = self.submit(submit, self.guides["slurm"].scripts[1])
        self.wait_for(job, "COMPLETED", log)
        self.assertRegex(log(), r"\[rank 3\] all_reduce sum: +6 4")


def main(which="", *tests):
    if not may_become_any_user():
        print("only root may become another user, as sshd and Slurm do")
        return CANNOT
    suite = CommandsOfSlurm if which == "slurm" else CommandsWithoutSlurm
    names = tests or unittest.defaultTestLoader.getTestCaseNames(suite)
    result = unittest.TextTestRunner(verbosity=2).run(
        unittest.TestSuite(map(suite, names)))
    return 0 if result.wasSuccessful() else 1


sys.exit(main(*sys.argv[4:]))
