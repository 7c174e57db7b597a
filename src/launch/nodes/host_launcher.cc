#include "src/launch/nodes/host_launcher.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace lockstep {
namespace {

WorkerCommand with_input(WorkerCommand command, const FileDescriptor& input) {
  command.standard_input = input.get();
  return command;
}

}  // namespace

HostLauncher::HostLauncher(const HostOrder& order, bool is_alone,
                           WorkerCommand command, Screen& screen)
    : HostLauncher(order, is_alone, std::move(command), screen, make_pipe()) {}

HostLauncher::HostLauncher(const HostOrder& order, bool is_alone,
                           WorkerCommand command, Screen& screen, Pipe input)
    : host_(order.host),
      rank_(order.node_rank),
      is_alone_(is_alone),
      screen_(screen),
      unsent_(encode_order(order)),
      input_(std::move(input.write)),
      process_(with_input(std::move(command), input.read), ProgressPipe::kNone),
      out_(
          "",
          [this](std::string_view line) {
            screen_.print_line(OutputStream::kOut, line);
          },
          kMostLineBytes),
      err_(
          "",
          [this](std::string_view line) {
            screen_.print_line(OutputStream::kErr, line);
          },
          kMostLineBytes) {
  make_nonblocking(input_);
}

bool HostLauncher::look_for_end() {
  constexpr int kLastReads = 64;
  if (ended_ || !process_.exit_status()) return false;
  ended_ = true;
  for (auto* pipe : {&process_.standard_output, &process_.standard_error})
    for (int i = 0; i < kLastReads && read(*pipe); ++i) {
    }
  out_.finish();
  err_.finish();
  input_.reset();
  return true;
}

void HostLauncher::watch(PollSet& set) {
  if (ended_) return;
  set.watch(process_.end(), POLLIN, [] {});
  if (!unsent_.empty()) set.watch(input_.get(), POLLOUT, [this] { send(); });
  if (screen_.full()) return;
  for (auto* pipe : {&process_.standard_output, &process_.standard_error})
    set.watch(pipe->get(), POLLIN, [this, pipe] { read(*pipe); });
}

void HostLauncher::signal(int number) {
  if (!input_) return;
  unsent_ += fmt::format("{}\n", number);
  send();
}

bool HostLauncher::read(FileDescriptor& pipe) {
  const bool is_out = &pipe == &process_.standard_output;
  return read_once(pipe, [&](std::string_view bytes) {
    if (is_alone_)
      screen_.print_bytes(is_out ? OutputStream::kOut : OutputStream::kErr,
                          bytes);
    else
      (is_out ? out_ : err_).add(bytes);
  });
}

void HostLauncher::send() {
  const ssize_t sent = ::write(input_.get(), unsent_.data(), unsent_.size());
  if (sent >= 0)
    unsent_.erase(0, static_cast<std::size_t>(sent));
  else if (errno != EAGAIN && errno != EINTR)
    unsent_.clear();  // it has ended, and says why
}

}  // namespace lockstep
