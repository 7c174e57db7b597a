// Moves a file from a server, or from another folder, to a PartialFile, with
// libcurl.
//
// Threads: one thread of a process at a time: while it works, libcurl ignores
//          SIGPIPE.
// Errors:  Timeout when the other end is silent or slow for too long,
//          NetworkError for everything else that the network and the server do;
//          those of PartialFile. What has arrived stays in the file.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "apps/download/partial_file.h"

namespace lockstep {

struct FileTransfer {
  std::string address{};  // http, https or file
  // A larger file is another one, and refused.
  std::uint64_t most_bytes = 0;
  // How long a connection may take, and how long less than 1 KiB per second may
  // arrive.
  std::chrono::seconds timeout{30};
  // A file with the certificates of authorities; "": libcurl's.
  std::string certificates{};
  // Called about once a second and for each piece, with the size of the file.
  std::function<void(std::uint64_t)> on_progress{};
};

// The protocols to which a server may redirect a request for `address`: never
// from an encrypted to an open one.
const char* redirect_protocols(const std::string& address);

// Keeps its connection for the next file of the same server.
class Connection {
 public:
  Connection();

  // Completes `file` and returns the number of bytes that arrived: asks for
  // what follows its present contents, and begins anew where the server has no
  // part of a file. Goes on after a lost connection or an error of the server,
  // until three attempts in a row have not made the file longer.
  std::uint64_t fetch(const FileTransfer& transfer, PartialFile& file);

 private:
  struct Close {
    void operator()(void* handle) const;
  };

  std::unique_ptr<void, Close> handle_;
};

}  // namespace lockstep
