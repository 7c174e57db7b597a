"""What the benchmarks' drivers share: contenders that run side by side and are
asked in turn, and rows that hold a contender against a peer.

A contender is a group of processes, one a rank, that stay alive and wait. The
driver writes a question to a pipe of each rank and reads rank 0's answer, so
that ours and its peers alternate without starting anew, and whatever disturbs
the machine disturbs both.
"""
import contextlib
import json
import os
import pathlib
import re
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("LOCKSTEP_BUILD", "build/release")).resolve()
# Where tables are written to.
RESULTS = pathlib.Path(
    os.environ.get("LOCKSTEP_RESULTS", BUILD.parent / "bench"))
PYTHON = os.environ.get("LOCKSTEP_PYTHON", "")
CORES = sorted(os.sched_getaffinity(0))
ANSWER_SECONDS = 120
KIB, MIB = 1 << 10, 1 << 20


class NoAnswer(RuntimeError):
    """A contender ended or hung; `reason` is the first line that it left."""

    def __init__(self, contender, question, why, words):
        super().__init__(
            f"{contender} did not answer \"{question}\": {why}\n{words}")
        lines = [line for line in words.splitlines()
                 if line.strip() and "warning" not in line]
        self.reason = lines[0].strip() if lines else why


def program(name):
    return str(BUILD / "benchmarks" / name)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rank_environment(rank, ranks, port):
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }


def start(command, environment, errors, core=None):
    """Starts a process whose standard output is read; pinned when `core` is."""
    pin = (lambda: os.sched_setaffinity(0, {core})) if core is not None else None
    return subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        preexec_fn=pin,
    )


def read_line(process, seconds):
    """The next line of a process's output; None at its end."""
    line = b""
    deadline = time.monotonic() + seconds
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            raise TimeoutError(f"no answer within {seconds} s")
        byte = os.read(process.stdout.fileno(), 1)
        if not byte:
            return None
        line += byte
    return line.decode().rstrip("\n")


class Contender:
    """Processes that answer questions; end it with close()."""

    def __init__(self, name, ranks):
        self.name = name
        self.ranks = ranks
        self.processes = []
        self.folder = tempfile.mkdtemp(prefix="lockstep-bench-")
        self.prefix = f"{self.folder}/requests"
        self.errors = open(f"{self.folder}/errors", "w+b")
        self._pipes = []
        for rank in range(ranks):
            os.mkfifo(f"{self.prefix}.{rank}")
            # For reading too: opening does not wait for a reader.
            self._pipes.append(os.open(f"{self.prefix}.{rank}", os.O_RDWR))

    def ask(self, question):
        for pipe in self._pipes:
            os.write(pipe, f"{question}\n".encode())
        try:
            line = read_line(self.processes[0], ANSWER_SECONDS)
        except TimeoutError as error:
            raise self._failure(question, error) from error
        if line is None:
            raise self._failure(question, "it ended")
        return json.loads(line)

    def _failure(self, question, why):
        self.errors.seek(0)
        words = self.errors.read().decode(errors="replace")[-4000:]
        return NoAnswer(self.name, question, why, words)

    def close(self):
        for pipe in self._pipes:
            os.close(pipe)
        self._pipes = []
        for process in self.processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        self.errors.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        # A process that has not opened its pipe yet would not see its end.
        for process in self.processes if failure else []:
            process.terminate()
        self.close()


def start_ranks(name, command, ranks, environment=None, pinned=True):
    """Starts `command` once a rank, each pinned to a core or none. The pipes'
    prefix takes the place of "REQUESTS" in it."""
    contender = Contender(name, ranks)
    port = free_port()
    command = [contender.prefix if c == "REQUESTS" else c for c in command]
    for rank in range(ranks):
        variables = {**rank_environment(rank, ranks, port), **(environment or {})}
        core = CORES[rank % len(CORES)] if pinned else None
        contender.processes.append(
            start(command, variables, contender.errors, core)
        )
    return contender


def start_mpi(name, ranks, options, command=None, around=()):
    """Starts a program, by default the MPI peer, with mpirun, which places the
    ranks. `around` is what mpirun itself runs under."""
    contender = Contender(name, ranks)
    words = [*around, "mpirun", "-np", str(ranks), "--allow-run-as-root"]
    # Two that begin and end at the same time disagree about a folder in /tmp.
    words += ["--mca", "orte_tmpdir_base", contender.folder]
    words += [*options, *(command or [program("mpi_collectives")])]
    contender.processes.append(
        start([*words, contender.prefix], {"OMP_NUM_THREADS": "1"},
              contender.errors)
    )
    return contender


def alternate(contenders, question, rounds):
    """Asks all contenders in turn, `rounds` times. Returns, for each key of the
    answers, a contender's median by its name."""
    answers = {contender.name: [] for contender in contenders}
    for _ in range(rounds):
        for contender in contenders:
            answers[contender.name].append(contender.ask(question))
    return {name: medians(several) for name, several in answers.items()}


def medians(answers):
    """The median of each number in a list of answers; other values: the last."""
    last = answers[-1]
    return {
        key: statistics.median(answer[key] for answer in answers)
        if isinstance(value, (int, float)) and not isinstance(value, bool)
        else value
        for key, value in last.items()
    }


class Table:
    """Rows of a benchmark, printed as they come and written as JSON."""

    WIDTHS = (40, 21, 10, 10, 32, 7, 7)

    def __init__(self, name):
        self.name = name
        self.rows = []
        self._begin = time.monotonic()
        self._print("case", "metric", "ours", "peer", "", "ratio", "target", "")

    def add(self, case, metric, unit, ours, peer, peer_name, **judged):
        """`better` is "lower" or "higher"; `target`, if there is one, bounds
        ours / peer. Without `ours`, which could not be measured, or `peer`,
        nothing is judged; `peer_name` says why. A difference of two times that
        comes out below 0 says nothing: it is shown, and not judged."""
        better, target = judged.get("better", "lower"), judged.get("target")
        ratio = ours / peer if ours is not None and peer else None
        met = None
        below_zero = ratio is not None and min(ours, peer) < 0
        if target is not None and ratio is not None and not below_zero:
            met = ratio <= target if better == "lower" else ratio >= target
        self.rows.append(
            {
                "case": case,
                "metric": metric,
                "unit": unit,
                "ours": ours,
                "peer": peer,
                "peer_name": peer_name,
                "ratio": ratio,
                "better": better,
                "target": target,
                "met": met,
            }
        )
        bound = "" if target is None else ("≤" if better == "lower" else "≥")
        self._print(
            case,
            f"{metric}, {unit}",
            number(ours),
            number(peer),
            peer_name,
            number(ratio),
            bound + ("" if target is None else number(target)),
            "not judged: below 0" if below_zero
            else {None: "", True: "met", False: "MISSED"}[met],
        )

    def _print(self, *cells):
        first, second, *rest, last = cells
        text = f"{first:<{self.WIDTHS[0]}} {second:<{self.WIDTHS[1]}}"
        for cell, width in zip(rest, self.WIDTHS[2:]):
            text += f" {cell:>{width}}"
        print(f"{text}  {last}".rstrip(), flush=True)

    def save(self):
        """Writes NAME.json, whose path it returns."""
        path = RESULTS / f"{self.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.rows, indent=1) + "\n")
        return path

    def write(self):
        """Writes NAME.json, and prints what misses its target."""
        path = self.save()
        missed = sum(row["met"] is False for row in self.rows)
        if missed:
            print("missed:")
        for row in self.rows:
            if row["met"] is False:
                print(f"  {row['case']}, {row['metric']}: {number(row['ratio'])}"
                      f" of {row['peer_name']}, target {number(row['target'])}")
        judged = sum(row["met"] is not None for row in self.rows)
        took = time.monotonic() - self._begin
        print(
            f"{judged - missed} of {judged} targets met; {took:.0f} s; "
            f"rows written to {path}"
        )

    def draw(self, peer, title):
        """Draws NAME.png: how many times as fast as `peer` each case is."""
        rows = [row for row in self.rows
                if row["peer_name"] == peer and row["ratio"] is not None]
        top = 1.1 * max(row["ratio"] for row in rows)
        bars = "\n".join(f'{i} {row["ratio"]:.4g} "{row["case"].split("(")[0]}"'
                         for i, row in enumerate(rows))
        path = RESULTS / f"{self.name}.png"
        script = f"""
set terminal pngcairo noenhanced size 900,420 font "sans,11"
set rmargin 8
set output {str(path)!r}
set title "{title}"
set ylabel "times as fast as {peer}"
set yrange [0:{top}]
set xtics rotate by -35
set grid ytics
set boxwidth 0.6
set style fill solid
set key off
$bars << END
{bars}
END
plot $bars using 1:2:xtic(3) with boxes linecolor rgb "#0072b2", \\
  $bars using 1:2:(sprintf("%.1f", $2)) with labels offset 0,0.7, \\
  1 with lines linecolor rgb "#d55e00" dashtype 2
"""
        drawn = subprocess.run(["gnuplot"], input=script, text=True, check=False)
        if drawn.returncode == 0:
            print(f"drawn in {path}")


class Pace:
    """Keeps a benchmark within its time: every case gets one round, and more
    while the time that is left allows them."""

    def __init__(self, cases, rounds, seconds):
        self._cases = cases
        self._most_rounds = rounds
        self._seconds = seconds
        self._done = 0
        self._begin = time.monotonic()

    def rounds(self):
        """The numbers of the rounds of the next case."""
        self._done += 1
        for round_number in range(self._most_rounds):
            share = self._seconds * self._done / self._cases
            if round_number and time.monotonic() - self._begin > share:
                return
            yield round_number

    def tell(self, what):
        """A line about how far it is; not part of the table."""
        took = time.monotonic() - self._begin
        print(f"[{took:.0f} s of some {self._seconds}; case {self._done + 1} of"
              f" {self._cases}] {what}", file=sys.stderr, flush=True)


def google_medians(name, time="real_time", repetitions=9, min_time=0.2):
    """What a program of Google Benchmark's measures, of benchmarks that are
    called CASE/CONTENDER: medians by case and contender."""
    said = subprocess.run(
        [
            program(name),
            f"--benchmark_repetitions={repetitions}",
            "--benchmark_enable_random_interleaving=true",
            f"--benchmark_min_time={min_time}",
            "--benchmark_report_aggregates_only=true",
            "--benchmark_format=json",
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    return {
        tuple(row["run_name"].rsplit("/", 1)): row[time]
        for row in json.loads(said)["benchmarks"]
        if row["aggregate_name"] == "median"
    }


def size_name(size):
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def question(collective, memory, size):
    """As collective_answers.h reads it."""
    seconds, least = (0.05, 10) if size < 4 * MIB else (0.25, 3)
    return f"{collective} {memory} {size} {seconds} {least}"


def number(value):
    if value is None:
        return "-"
    for limit, digits in ((0.995, 3), (99.5, 2), (999.5, 1)):
        if abs(value) < limit:
            return f"{value:.{digits}f}"
    return f"{value:,.0f}"


def openmpi_version():
    try:
        said = subprocess.run(
            ["mpirun", "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        fail("there is no mpirun; ./dev bench installs it")
    if not os.path.exists(program("mpi_collectives")):
        fail("mpi_collectives was not built: CMake found no MPI")
    return re.search(r"\d+(\.\d+)+", said).group()


def describe_machine():
    load = os.getloadavg()[0]
    print(f"{len(CORES)} cores, load {load:.1f} when starting", flush=True)
    if load > len(CORES) / 2:
        print("the machine is busy: ratios still mean something, times do not")


@contextlib.contextmanager
def all_of(contenders):
    """Closes them all, whatever happens."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contender) for contender in contenders]


def fail(message):
    print(f"benchmark: {message}", file=sys.stderr)
    sys.exit(1)
