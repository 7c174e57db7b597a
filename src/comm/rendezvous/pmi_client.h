// A client of PMI-1, the protocol by which hydra, the mpirun of MPICH and of
// Intel MPI, lets the processes of a job exchange keys and values. It was not
// run with Intel MPI.
//
// Each process inherits a connection to hydra at the descriptor PMI_FD. It
// sends lines of text such as "cmd=get kvsname=… key=…", and hydra answers each
// of them with one line.
//
// Threads: one thread at a time per object.
// Errors:  NetworkError when the descriptor is no connection to hydra, and when
//          hydra closes it (PmiClosed), refuses or answers something else;
//          Timeout when hydra does not answer by the deadline. No message holds
//          a value, which may be a secret.
// Source:  Balaji et al., "PMI: A Scalable Parallel Process-Management
//          Interface for Extreme-Scale Systems", EuroMPI 2010, and MPICH's
//          documentation of the "PMI v1 wire protocol".
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "src/net/file_descriptor.h"

namespace lockstep {

// hydra has closed the connection: it ends the job, or served an earlier client
// of this process.
class PmiClosed : public NetworkError {
 public:
  using NetworkError::NetworkError;
};

class PmiClient {
 public:
  // Takes the connection at `descriptor` out of use for the rest of the
  // process, whose copy then is /dev/null: hydra serves one client per process,
  // so an MPI_Init that follows must fail, and a child of this process must not
  // speak in its name. `deadline` limits all calls.
  PmiClient(int descriptor, Deadline deadline);

  // Without a finalize() hydra ends the job when the connection ends, before
  // this process can report its error. So the connection stays open then.
  ~PmiClient();
  PmiClient(const PmiClient&) = delete;
  PmiClient& operator=(const PmiClient&) = delete;

  // Neither may contain a space or the end of a line. The other processes see
  // the value after the next barrier.
  void put(std::string_view key, std::string_view value);

  // Returns once every process of the job has called it.
  void barrier();

  std::string get(std::string_view key);

  // The last call.
  void finalize();

 private:
  PmiClient(FileDescriptor socket, Deadline deadline);

  // Sends `command` with `arguments`; returns the answer if it is `expected`.
  std::string ask(std::string_view command, std::string_view arguments,
                  std::string_view expected);
  void send_line(std::string_view command, std::string line);
  std::string read_line(std::string_view command);

  FileDescriptor socket_;
  const Deadline deadline_;
  std::string unread_;
  std::string space_name_;  // the job's keys
  std::size_t most_key_bytes_ = 0;
  std::size_t most_value_bytes_ = 0;
};

}  // namespace lockstep
