#include "src/launch/worker/worker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "src/net/pipe.h"

namespace lockstep {
namespace {

bool contains(StreamSet set, OutputStream stream) {
  return (set & (stream == OutputStream::kOut ? kOutStream : kErrStream)) != 0;
}

std::string tag_of(const WorkerOptions& options) {
  if (options.company == Company::kAlone) return "";
  return fmt::format("[rank {}] ", options.rank);
}

// A terminal's width without the tag.
std::optional<winsize> beside_tag(std::optional<winsize> window,
                                  const std::string& tag) {
  if (window && window->ws_col > 2 * tag.size())
    window->ws_col -= static_cast<unsigned short>(tag.size());
  return window;
}

void set_variable(std::vector<std::string>& environment,
                  const std::string& name, const std::string& value) {
  std::erase_if(environment, [&](const std::string& variable) {
    return variable.starts_with(name + "=");
  });
  environment.push_back(name + "=" + value);
}

// With a log no worker writes to one, because a log should hold no colours and
// bars.
bool is_on_terminal(OutputStream stream, const Screen& screen,
                    const WorkerOptions& options) {
  return options.log_path.empty() && screen.window(stream).has_value();
}

// A worker writes to pseudo-terminals when the launcher writes to a terminal,
// so it buffers at most a line. A pager on a terminal would wait for keys,
// which no worker receives.
WorkerCommand with_terminals(WorkerCommand command, const Screen& screen,
                             const std::string& tag,
                             const WorkerOptions& options) {
  if (!options.log_path.empty()) return command;
  command.output_window = beside_tag(screen.window(OutputStream::kOut), tag);
  command.error_window = beside_tag(screen.window(OutputStream::kErr), tag);
  if (command.output_window)
    for (const char* name : {"PAGER", "GIT_PAGER", "SYSTEMD_PAGER", "MANPAGER"})
      set_variable(command.environment, name, "cat");
  return command;
}

void make_log_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw SystemError(
        fmt::format("cannot create the folder {} for logs; name another with "
                    "--log-dir",
                    folder.string()),
        error.value());
}

bool is_still_at(const std::string& path, const FileDescriptor& log) {
  struct stat here {};
  struct stat there {};
  return ::fstat(log.get(), &here) == 0 && ::stat(path.c_str(), &there) == 0 &&
         here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

// Renames the log of an earlier job: PATH.1, or the next number that is free.
// Returns whether that was necessary and possible; the log must be locked.
bool set_earlier_log_aside(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_size == 0)
    return false;
  constexpr int kMostLogs = 10000;
  for (int number = 1; number < kMostLogs; ++number) {
    const std::string aside = fmt::format("{}.{}", path, number);
    // Unlike rename(), link() replaces no file.
    if (::link(path.c_str(), aside.c_str()) == 0)
      return ::unlink(path.c_str()) == 0;
    // Not every file system has links; there the log's lock must suffice.
    if (errno != EEXIST && ::access(aside.c_str(), F_OK) != 0)
      return ::rename(path.c_str(), aside.c_str()) == 0;
  }
  return false;
}

// The log stays locked while the job runs, so that no other job sets it aside.
// A file system without locks has only O_APPEND, which keeps both jobs' later
// lines.
FileDescriptor make_log(const std::string& path) {
  make_log_folder(std::filesystem::path(path).parent_path());
  constexpr mode_t kMode = 0666;
  // Without O_NONBLOCK, open() waits until a process reads the pipe, and the
  // launcher has blocked the signals that would end it.
  constexpr int kFlags =
      O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  FileDescriptor log(::open(path.c_str(), kFlags, kMode));
  if (!log && errno == ENXIO)
    throw SystemError(
        fmt::format("cannot write the log {}, a pipe that no process reads, or "
                    "a socket; name another folder with --log-dir",
                    path),
        errno);
  if (log && ::fcntl(log.get(), F_SETFL, O_APPEND) != 0)
    throw SystemError(fmt::format("cannot write the log {}", path), errno);
  if (log && ::flock(log.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw InvalidArgument(
        fmt::format("a job that is still running writes {}; name another "
                    "folder with --log-dir",
                    path));
  // Another launcher may have set the file aside before this one locked it.
  if (log && (!is_still_at(path, log) || set_earlier_log_aside(path)))
    return make_log(path);
  // EINVAL: a pipe or a device, which holds no earlier job's lines.
  if (!log || (::ftruncate(log.get(), 0) != 0 && errno != EINVAL))
    throw SystemError(fmt::format("cannot create the log {}", path), errno);
  return log;
}

FileDescriptor open_log(const WorkerOptions& options, Screen& screen) try {
  if (options.log_path.empty()) return {};
  return make_log(options.log_path);
} catch (const SystemError& error) {
  if (options.log_need == LogNeed::kNeeded) throw;
  screen.print_line(OutputStream::kErr,
                    fmt::format("lockstep: rank {} goes on without a log: {}",
                                options.rank, error.what()));
  return {};
}

}  // namespace

Worker::Worker(const WorkerOptions& options, WorkerCommand command,
               Screen& screen, LineFolder* folder)
    : rank_(options.rank),
      local_rank_(options.local_rank),
      tag_(tag_of(options)),
      screen_(screen),
      folder_(folder),
      folded_(options.folded),
      raw_(options.company == Company::kAlone),
      logged_(options.logged),
      shown_(options.shown),
      log_(open_log(options, screen)),
      log_path_(options.log_path),
      process_(with_terminals(std::move(command), screen, tag_, options),
               options.rank == 0 ? ProgressPipe::kOpen : ProgressPipe::kNone),
      out_{OutputStream::kOut, &process_.standard_output,
           OutputTagger(tag_,
                        [this](std::string_view line) {
                          show_line(OutputStream::kOut, line);
                        }),
           is_on_terminal(OutputStream::kOut, screen, options)},
      err_{OutputStream::kErr, &process_.standard_error,
           OutputTagger(tag_,
                        [this](std::string_view line) {
                          show_line(OutputStream::kErr, line);
                        }),
           is_on_terminal(OutputStream::kErr, screen, options)},
      records_(
          "", [this](std::string_view line) { show_record(line); },
          kMaxProgressLineBytes) {}

void Worker::watch_output(PollSet& set) {
  for (Channel* channel : {&out_, &err_})
    set.watch(channel->pipe->get(), POLLIN,
              [this, channel] { read_output(*channel); });
  set.watch(process_.progress.get(), POLLIN, [this] { read_progress(); });
}

void Worker::watch_end(PollSet& set) {
  // If the worker ends at this moment, SIGCHLD is pending and wakes the loop.
  if (!process_.exit_status())
    set.watch(process_.end(), POLLIN, [this] { process_.exit_status(); });
}

bool Worker::read_output(Channel& channel) {
  return read_once(*channel.pipe, [&](std::string_view bytes) {
    if (contains(logged_, channel.stream)) keep_log(bytes);
    if (raw_ && is_shown(channel.stream))
      screen_.print_bytes(channel.stream, bytes);
    channel.tagger.add(bytes);
    show_state(channel);
  });
}

bool Worker::read_progress() {
  return read_once(process_.progress,
                   [this](std::string_view bytes) { records_.add(bytes); });
}

// The screen already shows the lines that have begun, so only their rest is
// still to be printed.
void Worker::share_screen() {
  if (!raw_) return;
  for (Channel* channel : {&out_, &err_}) channel->tagger.break_line();
  raw_ = false;
}

void Worker::show_record(std::string_view line) {
  share_screen();
  try {
    if (const auto record = decode_progress(line)) screen_.show(*record);
  } catch (const InvalidArgument&) {
    show_line(OutputStream::kErr, tag_ + std::string(line));
  }
}

void Worker::show_line(OutputStream stream, std::string_view line) {
  tail_.add(line.substr(tag_.size()));
  lines_since_error_ =
      stream == OutputStream::kErr ? 0 : lines_since_error_ + 1;
  if (!raw_ && is_shown(stream)) pass_on(stream, line);
  lines_before_ = screen_.lines();
  printed_elsewhere_ |= !is_shown(stream) || (stream == OutputStream::kOut &&
                                              !screen_.is_one_place());
}

// A bar of one of several ranks becomes a line at most once a second, because
// the line that the bar overwrites comes only at its end.
void Worker::show_state(Channel& channel) {
  constexpr std::chrono::seconds kBetweenStates{1};
  if (raw_ || !channel.on_terminal || !is_shown(channel.stream) ||
      !channel.next_state.expired())
    return;
  const std::string_view state = channel.tagger.overwritten();
  if (state.empty() || state == channel.state) return;
  channel.state = state;
  channel.next_state = Deadline(kBetweenStates);
  pass_on(channel.stream, tag_ + channel.state);
}

void Worker::pass_on(OutputStream stream, std::string_view line) {
  if (!contains(folded_, stream)) return screen_.print_line(stream, line);
  folder_->add(stream, rank_, line.substr(tag_.size()), Deadline::Clock::now());
}

bool Worker::is_shown(OutputStream stream) const {
  return contains(shown_, stream);
}

bool Worker::in_sight() const {
  return !printed_elsewhere_ &&
         screen_.lines() - lines_before_ < std::int64_t{LineTail::kLines};
}

void Worker::resize() {
  process_.resize(beside_tag(screen_.window(OutputStream::kOut), tag_),
                  beside_tag(screen_.window(OutputStream::kErr), tag_));
}

void Worker::keep_log(std::string_view bytes) {
  while (log_ && !bytes.empty()) {
    const ssize_t written = ::write(log_.get(), bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      screen_.print_line(OutputStream::kErr,
                         fmt::format("lockstep: {} is no longer written: {}",
                                     log_path_, std::strerror(errno)));
      log_.reset();
    }
  }
}

void Worker::drain() {
  // A descendant that keeps writing must not delay this.
  constexpr int kMostReads = 64;
  for (Channel* channel : {&out_, &err_}) {
    for (int i = 0; i < kMostReads && read_output(*channel); ++i) {
    }
    channel->tagger.finish();
  }
  for (int i = 0; i < kMostReads && read_progress(); ++i) {
  }
  records_.finish();
}

}  // namespace lockstep
