// Keeps the files of this process small, as ulimit -f does.
//
// Threads: the limit is the process's; one at a time.
#pragma once

#include <sys/resource.h>

#include <csignal>

namespace lockstep {

// As long as it lives no file can grow beyond so many bytes. The kernel's own
// way of saying so is SIGXFSZ, which ends a program that does not ignore it, as
// this does not.
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

// As long as it lives that is an error of the call that meets it.
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
