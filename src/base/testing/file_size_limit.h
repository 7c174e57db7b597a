// Keeps the files of this process small, as ulimit -f does.
//
// Threads: one thread at a time; the limit applies to the process.
#pragma once

#include <sys/resource.h>

#include <csignal>

namespace lockstep {

// While it lives no file can grow beyond `bytes`. The kernel then sends
// SIGXFSZ, which ends a program that does not ignore it; this class does not
// ignore it.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

// While it lives a write beyond the limit fails with an error instead.
class SigxfszIgnored {
 public:
  SigxfszIgnored() : before_(std::signal(SIGXFSZ, SIG_IGN)) {}
  ~SigxfszIgnored() { std::signal(SIGXFSZ, before_); }
  SigxfszIgnored(const SigxfszIgnored&) = delete;
  SigxfszIgnored& operator=(const SigxfszIgnored&) = delete;

 private:
  void (*before_)(int);
};

}  // namespace lockstep
