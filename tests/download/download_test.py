"""`lockstep data download` beside a server of this test, on this machine alone:
each call names it with --from, and none reaches a network.

The files are Fashion-MNIST's, from Debian's package.
"""
import contextlib
import fcntl
import gzip
import os
import pty
import resource
import shutil
import signal
import ssl
import struct
import subprocess
import tempfile
import termios
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMAND = os.environ["LOCKSTEP_COMMAND"]
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
# When the published files were compressed. Debian's package leaves that and the
# names out of the headers, so its files have other checksums.
COMPRESSED_AT = {"train-images-idx3-ubyte": 1504176606,
                 "train-labels-idx1-ubyte": 1504176606,
                 "t10k-images-idx3-ubyte": 1504176627,
                 "t10k-labels-idx1-ubyte": 1504176627}
IMAGES = "t10k-images-idx3-ubyte.gz"
LABELS = "t10k-labels-idx1-ubyte.gz"
NOWHERE = "http://127.0.0.1:1/"  # where no server listens
WAIT_S = 300


def published(name):
    """The file as it was published."""
    header = struct.pack("<4sI2s", b"\x1f\x8b\x08\x08", COMPRESSED_AT[name],
                         b"\0\3") + name.encode() + b"\0"
    return header + (DEBIAN / f"{name}.gz").read_bytes()[10:]


FILES = {f"{name}.gz": published(name) for name in COMPRESSED_AT}


class Answer(BaseHTTPRequestHandler):
    """The answer to a request; `server.how` may change it."""
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        name = self.path.rsplit("/", 1)[-1]
        asked = self.headers.get("Range")
        self.server.requests.append((name, asked))
        try:
            if not self.server.how(self, name, asked):
                self.send_part(self.server.files.get(name), asked)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def send_part(self, contents, asked):
        """All, or from the place that the range says."""
        if contents is None:
            return self.send_error(404)
        first = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if first >= len(contents) > 0:
            return self.send_error(416)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-"
                             f"{len(contents) - 1}/{len(contents)}")
        self.send_header("Content-Length", len(contents) - first)
        self.end_headers()
        self.wfile.write(contents[first:])

    def send_some(self, contents, asked, count):
        """`count` bytes of what was asked for, and no more."""
        first = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-"
                             f"{len(contents) - 1}/{len(contents)}")
        self.send_header("Content-Length", len(contents) - first)
        self.end_headers()
        self.wfile.write(contents[first:first + count])
        self.wfile.flush()
        self.close_connection = True

    def send_whole(self, status, body, *headers):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", len(body))
        self.end_headers()
        self.wfile.write(body)

    def redirect(self, target):
        self.send_whole(302, b"", ("Location", target))

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.files = dict(FILES)
        self.requests = []
        self.released = threading.Event()  # ends the waits of `how`
        self.how = lambda answer, name, asked: False

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_):
        pass


def command(folder, base, *flags, dataset="fashion-mnist"):
    return [COMMAND, "data", "download", dataset, f"--from={base}",
            f"--data-dir={folder}", *flags]


def environment():
    kept = {name: value for name, value in os.environ.items()
            if "proxy" not in name.lower()}
    return {**kept, "no_proxy": "*"}


def take_interrupts():
    """A shell starts programs in the background without them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def small_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


class Download(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name) / "data"
        self.server = self.serve(Server())

    def serve(self, server):
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        self.addCleanup(server.server_close)
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown)
        self.addCleanup(server.released.set)
        return server

    def download(self, *flags, base=None, folder=None, variables=None, **options):
        options = {"stdout": subprocess.PIPE, **options}
        return subprocess.run(
            command(folder or self.folder, base or self.server.address, *flags),
            env={**environment(), **(variables or {})}, text=True, check=False,
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=WAIT_S,
            **options)

    @contextlib.contextmanager
    def started(self, *flags, stdout=subprocess.PIPE, variables=None):
        with subprocess.Popen(
                command(self.folder, self.server.address, *flags),
                env={**environment(), **(variables or {})}, text=True,
                stdout=stdout, stderr=subprocess.PIPE,
                preexec_fn=take_interrupts) as process:
            try:
                yield process
            finally:
                process.kill()

    def have_all_but(self, *missing):
        self.folder.mkdir()
        for name, contents in FILES.items():
            if name not in missing:
                (self.folder / name).write_bytes(contents)

    def refusal(self, *flags, code=1, **options):
        result = self.download(*flags, **options)
        self.assertEqual(result.returncode, code, result.stdout)
        self.assertIn("\n  next:", result.stderr)
        return result.stderr

    def expect_all(self, result):
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "")
        self.assertEqual({path.name: path.read_bytes()
                          for path in self.folder.iterdir()}, FILES)

    def ranges(self, name):
        return [asked for asked_name, asked in self.server.requests
                if asked_name == name]

    def test_files_are_fetched_once_and_loaded(self):
        result = self.download()
        self.expect_all(result)
        lines = result.stdout.splitlines()
        self.assertEqual(len(lines), 4)
        self.assertRegex(lines[0], r"train-images-idx3-ubyte\.gz: 26\.4 MB, "
                         r"[\d.]+ [kM]B/s$")
        shown = subprocess.run(
            [COMMAND, "data", "show", "fashion-mnist",
             f"--data-dir={self.folder}"], text=True, capture_output=True,
            check=False, timeout=WAIT_S)
        self.assertIn("Fashion-MNIST", shown.stdout, shown.stderr)
        again = self.download()
        self.expect_all(again)
        self.assertEqual(again.stdout.count(": already there\n"), 4)
        self.assertEqual(len(self.server.requests), 4)

    def test_files_that_were_compressed_anew_are_right(self):
        result = self.download(base=DEBIAN.as_uri())
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual((self.folder / LABELS).read_bytes(),
                         (DEBIAN / LABELS).read_bytes())
        self.assertEqual(self.download(base=NOWHERE).returncode, 0)

    def test_plain_files_and_those_of_torchvision_are_right(self):
        self.have_all_but(LABELS, IMAGES)
        (self.folder / LABELS).with_suffix("").write_bytes(
            gzip.decompress(FILES[LABELS]))
        inner = self.folder / "FashionMNIST/raw"
        inner.mkdir(parents=True)
        (inner / IMAGES).write_bytes(FILES[IMAGES])
        result = self.download(base=NOWHERE)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.count("already there"), 4)

    def test_a_connection_that_is_cut_is_resumed_while_the_file_grows(self):
        self.have_all_but(IMAGES)
        piece = len(FILES[IMAGES]) // 5

        def cut(answer, name, asked):
            if len(self.server.requests) > 4:
                return False
            answer.send_some(FILES[name], asked, piece)
            return True
        self.server.how = cut
        self.expect_all(self.download())
        self.assertEqual(self.ranges(IMAGES), [
            None, *(f"bytes={i * piece}-" for i in range(1, 5))])

    def test_a_connection_that_is_cut_again_and_again_leaves_its_part(self):
        self.have_all_but(IMAGES)

        def cut(answer, name, asked):
            answer.send_some(FILES[name], asked, 0 if asked else 1000)
            return True
        self.server.how = cut
        self.assertIn("3 times", self.refusal())
        part = self.folder / f"{IMAGES}.part"
        self.assertEqual(part.read_bytes(), FILES[IMAGES][:1000])
        self.server.how = lambda *_: False
        self.expect_all(self.download())
        self.assertEqual(self.ranges(IMAGES)[-1], "bytes=1000-")

    def test_a_short_part_is_continued(self):
        self.have_all_but(IMAGES)
        (self.folder / f"{IMAGES}.part").write_bytes(FILES[IMAGES][:3000])

        def send_short_part(answer, name, asked):
            if asked != "bytes=3000-":
                return False
            answer.send_whole(206, FILES[name][3000:5000], (
                "Content-Range", f"bytes 3000-4999/{len(FILES[name])}"))
            return True
        self.server.how = send_short_part
        self.expect_all(self.download())
        self.assertEqual(self.ranges(IMAGES), ["bytes=3000-", "bytes=5000-"])

    def test_an_answer_that_is_not_the_file_leaves_the_part(self):
        self.have_all_but(IMAGES)
        part = self.folder / f"{IMAGES}.part"
        answers = [(status, b"") for status in (200, 204, 302, 304, 416)]
        for status, body in [*answers, (200, b"<html>Log in</html>"),
                             (206, b"")]:
            with self.subTest(status=status, body=body):
                part.write_bytes(FILES[IMAGES][:3000])
                self.server.how = lambda answer, *_, status=status, body=body: (
                    answer.send_whole(status, body) or True)
                self.refusal()
                self.assertEqual(part.read_bytes(), FILES[IMAGES][:3000])
        self.server.how = lambda *_: False
        self.expect_all(self.download())

    def test_a_file_without_its_length_may_have_been_cut(self):
        self.have_all_but(IMAGES)

        def cut_without_length(answer, name, asked):
            if asked:
                return False
            answer.send_response(200)
            answer.end_headers()
            answer.wfile.write(FILES[name][:3000])
            answer.close_connection = True
            return True
        self.server.how = cut_without_length
        self.expect_all(self.download())
        self.assertEqual(self.ranges(IMAGES), [None, "bytes=3000-"])

    def test_passwords_are_not_printed(self):
        self.have_all_but(IMAGES)
        self.server.files.clear()
        address = self.server.address.replace("//", "//user:secret@")
        self.assertNotIn("secret", self.refusal(base=address))
        for proxy in ("http://user:secret@127.0.0.1:1", "no://user:secret@h",
                      "http://user:secret@h:x"):
            with self.subTest(proxy=proxy):
                self.assertNotIn("secret", self.refusal(
                    variables={"no_proxy": "", "http_proxy": proxy}))

    @unittest.skipUnless(shutil.which("openssl"), "needs openssl")
    def test_certificates_are_checked_and_encryption_is_kept(self):
        self.have_all_but(LABELS)
        key, certificate = (self.folder.parent / name for name in ("key", "cert"))
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes",
             "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
             "-keyout", key, "-out", certificate], check=True,
            capture_output=True, timeout=WAIT_S)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        open_address = self.server.address
        encrypted = Server()
        encrypted.socket = context.wrap_socket(encrypted.socket, server_side=True)
        self.serve(encrypted)
        base = encrypted.address.replace("http:", "https:")
        trust = {"SSL_CERT_FILE": str(certificate)}
        error = self.refusal(base=base)
        self.assertIn("update-ca-certificates", error)
        self.assertIn("SSL_CERT_FILE", error)
        encrypted.how = lambda answer, name, asked: (
            answer.redirect(f"{open_address}/{name}") or True)
        self.refusal(base=base, variables=trust)
        self.assertEqual(self.server.requests, [])
        encrypted.how = lambda *_: False
        self.expect_all(self.download(base=base, variables=trust))

    def test_a_server_that_sends_no_parts_is_asked_from_the_beginning(self):
        self.have_all_but(IMAGES)
        (self.folder / f"{IMAGES}.part").write_bytes(FILES[IMAGES][:3_000_000])

        def ignore_range(answer, name, asked):
            answer.send_part(FILES[name], None)
            return True
        self.server.how = ignore_range
        result = self.download()
        self.expect_all(result)
        self.assertIn(f"{IMAGES}: 4.4 MB", result.stdout)
        self.assertEqual(self.ranges(IMAGES), ["bytes=3000000-"])

    def test_another_part_than_the_one_asked_for_is_not_used(self):
        self.have_all_but(IMAGES)
        (self.folder / f"{IMAGES}.part").write_bytes(FILES[IMAGES][:3000])

        def answer_from_2000(answer, name, asked):
            if asked is None:
                return False
            answer.send_part(FILES[name], "bytes=2000-")
            return True
        self.server.how = answer_from_2000
        self.assertIn("another part", self.refusal())
        self.expect_all(self.download())

    def test_a_complete_part_needs_no_server(self):
        self.have_all_but(IMAGES)
        (self.folder / f"{IMAGES}.part").write_bytes(FILES[IMAGES])
        result = self.download(base=NOWHERE)
        self.expect_all(result)
        self.assertIn(f"{IMAGES}: complete\n", result.stdout)

    def test_a_complete_part_of_a_file_compressed_anew_is_right(self):
        self.have_all_but(LABELS)
        contents = (DEBIAN / LABELS).read_bytes()
        (self.folder / f"{LABELS}.part").write_bytes(contents)
        self.server.files[LABELS] = contents
        result = self.download()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual((self.folder / LABELS).read_bytes(), contents)

    def test_wrong_bytes_are_removed(self):
        self.have_all_but(LABELS)
        wrong = bytearray(FILES[LABELS])
        wrong[2000] ^= 1
        for contents in bytes(wrong), b"<html>Please log in</html>":
            with self.subTest(bytes=len(contents)):
                self.server.files[LABELS] = contents
                error = self.refusal()
                self.assertIn("bb300cfdad3c16e7a12a480ee83cd310", error)
                self.assertIn(f"found:    {len(contents)} bytes", error)
                self.assertEqual(list(self.folder.glob(f"{LABELS}*")), [])

    def test_a_part_of_another_file_is_removed(self):
        self.have_all_but(LABELS)
        (self.folder / f"{LABELS}.part").write_bytes(b"x" * 3000)
        self.assertIn("is not the known file", self.refusal())
        self.expect_all(self.download())

    def test_a_file_without_an_end_is_refused(self):
        self.have_all_but(LABELS)

        def send_without_end(answer, name, asked):
            answer.send_response(200)
            answer.end_headers()
            answer.close_connection = True
            while True:
                answer.wfile.write(b"x" * 65536)
        self.server.how = send_without_end
        self.assertIn("larger than the 5148 bytes", self.refusal())
        self.server.how = lambda *_: False
        self.expect_all(self.download())

    def test_a_missing_file_is_named(self):
        self.have_all_but(LABELS)
        del self.server.files[LABELS]
        error = self.refusal()
        self.assertIn(f"{self.server.address}/{LABELS}", error)
        self.assertIn("404 (not found)", error)
        self.assertEqual(len(self.server.requests), 1)
        self.assertEqual(list(self.folder.glob(f"{LABELS}*")), [])
        self.assertIn(LABELS, self.refusal(base=self.folder.as_uri() + "/no"))

    def test_an_error_of_the_server_may_pass(self):
        self.have_all_but(LABELS)

        def unavailable(answer, name, asked):
            if len(self.server.requests) > 2:
                return False
            answer.send_error((503, 429)[len(self.server.requests) - 1])
            return True
        self.server.how = unavailable
        self.expect_all(self.download())
        self.assertEqual(len(self.server.requests), 3)

    def test_a_server_that_stalls_is_left(self):
        self.have_all_but(IMAGES)
        for count in 0, 100_000:
            with self.subTest(bytes=count):
                def stall(answer, name, asked, count=count):
                    if count:
                        answer.send_some(FILES[name], asked, count)
                    self.server.released.wait(WAIT_S)
                    return True
                self.server.how = stall
                self.assertIn("for 1 s", self.refusal("--timeout=1"))
        self.assertEqual((self.folder / f"{IMAGES}.part").stat().st_size, 100_000)

    def test_redirects_are_followed_to_servers_alone(self):
        self.have_all_but(LABELS)
        self.server.how = lambda answer, name, asked: (
            "moved" not in answer.path and
            (answer.redirect(f"/moved/{name}") or True))
        self.expect_all(self.download())
        (self.folder / LABELS).unlink()
        target = DEBIAN.as_uri()
        self.server.how = lambda answer, name, asked: (
            answer.redirect(f"{target}/{name}") or True)
        self.refusal()
        self.server.how = lambda answer, name, asked: (
            answer.redirect(f"/{name}") or True)
        self.refusal()
        self.assertFalse((self.folder / LABELS).exists())

    def test_a_wrong_file_is_replaced_by_force_alone(self):
        self.have_all_but()
        (self.folder / LABELS).write_bytes(b"my own file")
        error = self.refusal()
        self.assertIn(str(self.folder / LABELS), error)
        self.assertIn("--force", error)
        self.assertEqual((self.folder / LABELS).read_bytes(), b"my own file")
        self.assertEqual(self.server.requests, [])
        self.expect_all(self.download("--force"))

    def test_a_file_that_training_would_read_instead_is_named(self):
        self.have_all_but()
        plain = (self.folder / LABELS).with_suffix("")
        plain.write_bytes(b"my own file")
        for flags in (), ("--force",):
            self.assertIn(f"{plain} is another file", self.refusal(*flags))
        self.assertEqual(plain.read_bytes(), b"my own file")

    def stall_at_half(self, answer, name, asked):
        if self.server.released.is_set() or name != IMAGES:
            return False
        half = len(FILES[name]) // 2
        answer.send_response(200)
        answer.send_header("Content-Length", len(FILES[name]))
        answer.end_headers()
        answer.wfile.write(FILES[name][:half])
        answer.wfile.flush()
        self.server.released.wait(WAIT_S)
        answer.wfile.write(FILES[name][half:])
        return True

    def wait_for_part(self, process):
        """Until half a file has arrived."""
        part = self.folder / f"{IMAGES}.part"
        while not part.exists() or part.stat().st_size < len(FILES[IMAGES]) // 2:
            self.assertIsNone(process.poll())
            self.server.released.wait(0.01)
        return part

    def test_an_output_that_cannot_be_written_is_an_error(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = self.download(stdout=full)
        self.assertEqual(result.returncode, 1)
        self.assertIn("cannot be written", result.stderr)
        self.expect_all(self.download(base=NOWHERE))

    def test_a_line_that_moves_is_no_longer_than_the_terminal_is_wide(self):
        self.have_all_but(IMAGES)
        leader, follower = pty.openpty()
        self.addCleanup(os.close, leader)
        fcntl.ioctl(follower, termios.TIOCSWINSZ,
                    struct.pack("HHHH", 24, 20, 0, 0))
        with self.started(stdout=follower,
                          variables={"TERM": "xterm"}) as process:
            os.close(follower)
            output = b""
            with contextlib.suppress(OSError):  # EIO: the program has ended
                while piece := os.read(leader, 4096):
                    output += piece
            process.communicate(timeout=WAIT_S)
        moving = output.split(b"\r\x1b[K")[1:-1]
        self.assertTrue(moving, output)
        for line in moving:
            self.assertTrue(b"t10k-images".startswith(line[:11]), line)
            self.assertLessEqual(len(line), 19)

    def test_a_closed_output_is_not_written_into_a_file(self):
        program = os.environ.get("LOCKSTEP_DOWNLOAD_PROGRAM") or str(
            Path(COMMAND).with_name("lockstep-download"))
        words = command(self.folder, self.server.address)[3:]
        result = subprocess.run(
            ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", program, *words],
            env=environment(), check=False, timeout=WAIT_S)
        self.assertEqual(result.returncode, 1)  # of the printed lines
        self.expect_all(self.download(base=NOWHERE))
        shown = subprocess.run([program, "--help"], text=True, check=True,
                               capture_output=True, timeout=WAIT_S)
        self.assertIn("lockstep data download --help", shown.stdout)

    def test_neither_libtorch_nor_a_current_folder_is_needed(self):
        self.have_all_but()
        self.expect_all(self.download(variables={"LOCKSTEP_TORCH": "/none"}))
        gone = self.folder.parent / "gone"
        gone.mkdir()
        result = subprocess.run(
            ["sh", "-c", 'rmdir "$0"; exec "$@"', str(gone),
             *command("relative", NOWHERE)], env=environment(), cwd=gone,
            text=True, capture_output=True, check=False, timeout=WAIT_S)
        self.assertEqual(result.returncode, 1)
        self.assertIn("the current folder cannot be found", result.stderr)
        self.assertIn("\n  next:", result.stderr)

    def test_a_part_is_removed_once_its_file_is_right(self):
        self.have_all_but()
        (self.folder / f"{IMAGES}.part").write_bytes(b"stale")
        self.expect_all(self.download(base=NOWHERE))

    def test_a_second_process_leaves_a_file_to_the_first(self):
        self.have_all_but(IMAGES)
        self.server.how = self.stall_at_half
        with self.started() as first:
            self.wait_for_part(first)
            self.assertIn(f"is being written by process {first.pid}",
                          self.refusal())
            self.server.released.set()
            _, errors = first.communicate(timeout=WAIT_S)
            self.assertEqual(first.returncode, 0, errors)
        self.expect_all(self.download(base=NOWHERE))

    def test_an_interrupted_download_goes_on(self):
        self.have_all_but(IMAGES)
        self.server.how = self.stall_at_half
        with self.started() as first:
            part = self.wait_for_part(first)
            first.send_signal(signal.SIGINT)
            self.assertEqual(first.wait(WAIT_S), -signal.SIGINT)
        size = part.stat().st_size
        self.server.released.set()
        self.expect_all(self.download())
        self.assertEqual(self.ranges(IMAGES)[-1], f"bytes={size}-")

    def test_what_cannot_be_written_is_named(self):
        file = self.folder.parent / "file"
        file.write_bytes(b"")
        self.assertIn(f"cannot make the folder {file}",
                      self.refusal(folder=file))
        self.assertIn("cannot make the folder /proc/none",
                      self.refusal(folder="/proc/none"))
        self.assertIn("ulimit -f", self.refusal(preexec_fn=small_files))
        (self.folder / "train-images-idx3-ubyte.gz.part").symlink_to(file)
        self.assertIn(".part", self.refusal())
        self.assertEqual(file.read_bytes(), b"")

    def test_the_archive_of_cifar_is_checked_before_it_is_unpacked(self):
        self.server.files["cifar-10-binary.tar.gz"] = gzip.compress(b"no tar")
        result = subprocess.run(
            command(self.folder, self.server.address, dataset="cifar10"),
            env=environment(), text=True, capture_output=True, check=False,
            timeout=WAIT_S)
        self.assertEqual(result.returncode, 1)
        self.assertIn("c32a1d4ab5d03f1284b67883e8d87530", result.stderr)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_wrong_arguments_are_refused(self):
        for base in ("ftp://host/", "host/folder", "http://", "https://h/?a=b"):
            with self.subTest(base=base):
                self.refusal(base=base, code=2)
        self.assertIn(f"file://{DEBIAN}", self.refusal(base=DEBIAN, code=2))
        for flag in "--from", "--data-dir":
            result = self.download(flag, "")
            self.assertEqual(result.returncode, 2)
            self.assertIn("expected a value", result.stderr)
        result = subprocess.run(
            command(self.folder, NOWHERE, dataset="fashion-mnst"), text=True,
            capture_output=True, check=False, timeout=WAIT_S)
        self.assertEqual(result.returncode, 2)
        self.assertIn('did you mean "fashion-mnist"?', result.stderr)
        self.assertFalse(self.folder.exists())
        self.assertIn("127.0.0.1", self.refusal(base=NOWHERE))


if __name__ == "__main__":
    unittest.main()
