#include "src/base/crash_trace.h"

#include <absl/debugging/symbolize.h>
#include <execinfo.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>

namespace lockstep {
namespace {

// With the program's own message they fit into the last lines that a launcher
// reports.
constexpr int kMostFrames = 24;
// Those of print_stack() and the handler, and the kernel's return from it.
constexpr int kOwnFrames = 3;
constexpr std::size_t kStackBytes = std::size_t{64} << 10;

std::array<char, 128> title{};  // "lockstep: rank 1 received "

void put(std::string_view text) {
  [[maybe_unused]] const auto written =
      ::write(STDERR_FILENO, text.data(), text.size());
}

void put_address(const void* address) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::array<char, 2 * sizeof address> text{};
  auto number = reinterpret_cast<std::uintptr_t>(address);
  for (std::size_t i = text.size(); i-- > 0; number /= 16)
    text[i] = kDigits[number % 16];
  put("0x");
  put({text.data(), text.size()});
}

// The address after a call may belong to the next function.
bool find_name(void* address, char* name, int bytes) {
  return absl::Symbolize(static_cast<char*>(address) - 1, name, bytes) ||
         absl::Symbolize(address, name, bytes);
}

// Calls only what is safe in a signal handler, but for the unwinder, which
// takes no lock once it has been used.
[[gnu::noinline]] void print_stack(int signal) {
  std::array<void*, kMostFrames + kOwnFrames> frames{};
  const int count = ::backtrace(frames.data(), static_cast<int>(frames.size()));
  put(title.data());
  put("SIG");
  put(::sigabbrev_np(signal));
  put("; its calls, the last first:\n");
  for (int i = kOwnFrames; i < count; ++i) {
    void* const address = frames[static_cast<std::size_t>(i)];
    std::array<char, 256> name{};
    put("  ");
    put_address(address);
    put(" ");
    put(find_name(address, name.data(), name.size()) ? name.data() : "?");
    put("\n");
  }
}

void on_crash(int signal) {
  static std::atomic_flag printed;
  if (!printed.test_and_set()) print_stack(signal);
  ::raise(signal);  // its own handler is gone
}

}  // namespace

void trace_crashes(const std::string& who) {
  const std::string text = "lockstep: " + who + " received ";
  std::strncpy(title.data(), text.c_str(), title.size() - 1);
  absl::InitializeSymbolizer("/proc/self/exe");
  // The first call loads the unwinder.
  std::array<void*, 1> frame{};
  ::backtrace(frame.data(), 1);
  // An overflow of the stack leaves no room on it.
  static std::array<std::byte, kStackBytes> memory;
  const stack_t stack{
      .ss_sp = memory.data(), .ss_flags = 0, .ss_size = memory.size()};
  if (::sigaltstack(&stack, nullptr) != 0) return;
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) != 0 ||
        action.sa_handler != SIG_DFL)
      continue;
    action.sa_handler = on_crash;
    action.sa_flags = static_cast<int>(SA_ONSTACK | SA_RESETHAND | SA_NODEFER);
    ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace lockstep
