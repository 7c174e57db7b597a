// The errors of Lockstep: one exception type for each thing a caller may want
// to handle differently.
//
// A message says what failed, where (rank, group, sizes), who is missing, the
// likely cause and the next step; see docs/design/style.md. LOCKSTEP_CHECK
// reports bugs in Lockstep as `InternalError`. The library never prints, aborts
// or exits; tools do.
//
// Threads: exceptions may be thrown and caught on any thread.
#pragma once

#include <stdexcept>
#include <string>

namespace lockstep {

// The base class of all Lockstep exceptions.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller passed something that can never work: a negative size, a root
// outside the group, a malformed environment variable or file.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// A deadline passed before the awaited event.
class Timeout : public Error {
 public:
  using Error::Error;
};

// A wait ended because its `Cancellation` was cancelled.
class Cancelled : public Error {
 public:
  using Error::Error;
};

// A host, port or connection could not be used.
class NetworkError : public Error {
 public:
  using Error::Error;
};

// Ranks called operations that do not fit together.
class Mismatch : public Error {
 public:
  using Error::Error;
};

// Another rank of the group died or left while an operation needed it.
class PeerFailure : public Error {
 public:
  PeerFailure(int rank, const std::string& message)
      : Error(message), rank_(rank) {}

  // The rank, within the group, that is gone.
  int rank() const { return rank_; }

 private:
  int rank_;
};

// A system call failed. The message ends with the reason and, when the limit on
// open files is reached, with how to raise it.
class SystemError : public Error {
 public:
  // `what` names the failed action; `error_number` is an errno value.
  SystemError(const std::string& what, int error_number);

  int error_number() const { return error_number_; }

 private:
  int error_number_;
};

// A bug in Lockstep itself.
class InternalError : public Error {
 public:
  using Error::Error;
};

// Throws InternalError naming the file, line and condition. Only LOCKSTEP_CHECK
// calls it.
[[noreturn]] void fail_check(const char* file, int line, const char* condition,
                             const std::string& detail);

}  // namespace lockstep

// Checks an invariant, in every build. A violation is a bug in Lockstep.
#define LOCKSTEP_CHECK(condition, detail)                               \
  do {                                                                  \
    if (!(condition)) [[unlikely]]                                      \
      ::lockstep::fail_check(__FILE__, __LINE__, #condition, (detail)); \
  } while (false)
