#include "src/comm/group/crash_trace.h"

#include <absl/debugging/symbolize.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <string_view>
#include <typeinfo>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::array<int, 5> kSignals{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
// With the program's own message they fit into the last lines that a launcher
// reports.
constexpr int kMostFrames = 20;
// Those of print_stack() and the handler, and the kernel's return from it.
constexpr int kOwnFrames = 3;
constexpr std::size_t kStackBytes = std::size_t{64} << 10;
// How long another thread that crashes waits for the first one's report.
constexpr timespec kPause{.tv_sec = 0, .tv_nsec = 10'000'000};
constexpr int kMostPauses = 500;

std::array<char, 128> title{};  // "rank 1"
pid_t owner = 0;                // the process that has this title

std::atomic<int> first_signal{0};
thread_local bool is_printing = false;

void put(std::string_view text) {
  [[maybe_unused]] const auto written =
      ::write(STDERR_FILENO, text.data(), text.size());
}

void put_number(std::uintptr_t number) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::array<char, 2 * sizeof number> text{};
  std::size_t first = text.size();
  do {
    text[--first] = kDigits[number % 16];
    number /= 16;
  } while (number > 0);
  put("0x");
  put({text.data() + first, text.size() - first});
}

// "  name (file+0x12)": the same on every rank, and good for addr2line.
// `is_return`: the address follows a call, and may belong to the next function.
void put_frame(void* address, bool is_return) {
  std::array<char, 256> name{};
  const auto find_name = [&](int back) {
    return absl::Symbolize(static_cast<char*>(address) - back, name.data(),
                           static_cast<int>(name.size()));
  };
  put("  ");
  put((is_return && find_name(1)) || find_name(0) ? name.data() : "?");
  Dl_info info{};
  if (::dladdr(address, &info) != 0 && info.dli_fname != nullptr) {
    const std::string_view file = info.dli_fname;
    put(" (");
    put(file.substr(file.rfind('/') + 1));
    put("+");
    put_number(reinterpret_cast<std::uintptr_t>(address) -
               reinterpret_cast<std::uintptr_t>(info.dli_fbase));
    put(")");
  }
  put("\n");
}

// Calls what is safe in a signal handler, and two things that take the loader's
// lock: the unwinder and dladdr().
[[gnu::noinline]] void print_stack(int signal) {
  std::array<void*, kMostFrames + kOwnFrames> frames{};
  const int count = ::backtrace(frames.data(), static_cast<int>(frames.size()));
  put(::getpid() == owner ? "lockstep: " : "lockstep: a child of ");
  put(title.data());
  put(" received SIG");
  put(::sigabbrev_np(signal));
  put("; its calls, the last first:\n");
  for (int i = kOwnFrames; i < count; ++i)
    put_frame(frames[static_cast<std::size_t>(i)], i > kOwnFrames);
}

// A rank that only lost its peer says so in one line; its stack tells nothing.
bool is_survivor(int signal) {
  const std::type_info* const thrown =
      signal == SIGABRT ? abi::__cxa_current_exception_type() : nullptr;
  return thrown != nullptr && *thrown == typeid(PeerFailure);
}

// The first signal ends the process, also where another thread crashes
// meanwhile, or the report itself does.
void on_crash(int signal) {
  int none = 0;
  if (first_signal.compare_exchange_strong(none, signal)) {
    is_printing = true;
    if (!is_survivor(signal)) print_stack(signal);
  } else if (!is_printing) {
    for (int i = 0; i < kMostPauses; ++i) ::nanosleep(&kPause, nullptr);
  }
  const int last = first_signal.load();
  ::signal(last, SIG_DFL);
  ::raise(last);
}

bool has_default_handler(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 &&
         action.sa_handler == SIG_DFL;
}

// An overflow of the stack leaves no room on it.
void add_stack_for_handlers() {
  static std::array<std::byte, kStackBytes> memory;
  stack_t present{};
  if (::sigaltstack(nullptr, &present) != 0 ||
      (present.ss_flags & SS_DISABLE) == 0)
    return;
  const stack_t stack{
      .ss_sp = memory.data(), .ss_flags = 0, .ss_size = memory.size()};
  ::sigaltstack(&stack, nullptr);
}

}  // namespace

void trace_crashes(const std::string& who) {
  if (std::ranges::none_of(kSignals, has_default_handler)) return;
  std::strncpy(title.data(), who.c_str(), title.size() - 1);
  owner = ::getpid();
  absl::InitializeSymbolizer("/proc/self/exe");
  // The first call loads the unwinder.
  std::array<void*, 1> frame{};
  ::backtrace(frame.data(), 1);
  add_stack_for_handlers();
  for (const int signal : kSignals) {
    if (!has_default_handler(signal)) continue;
    struct sigaction action {};
    action.sa_handler = on_crash;
    action.sa_flags = SA_ONSTACK | SA_NODEFER;
    ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace lockstep
