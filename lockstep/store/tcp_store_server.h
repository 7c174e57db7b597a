// The server of a tcp:// store, in a thread of its own.
//
// It keeps every key in memory and serves until it is destroyed. Its clients
// then see their connections close. Last wills are executed when a client's
// connection ends, not when the server does.
//
// Threads: construct and destroy it in one thread; the rest from any.
// Errors:  NetworkError from the constructors: port in use, no such address;
//          InvalidArgument for a token beyond 256 bytes.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "lockstep/base/own_process.h"
#include "lockstep/net/file_descriptor.h"

namespace lockstep {

// What strangers may cost. The defaults suit every job.
struct TcpStoreServerLimits {
  // A connection that has not proved that it has the token by then is closed.
  std::chrono::milliseconds introduction = std::chrono::seconds(10);
  // As many may be about to, or as a quarter of the process's descriptors, if
  // that is less. A further one takes the place of the oldest that has not sent
  // its challenge, if those are more than half, else of the oldest that has. A
  // client that loses its place tries again.
  int strangers = 1024;
};

class TcpStoreServer {
 public:
  // Serves at the address that `host` stands for; port 0 lets the kernel
  // choose. Clients must prove that they have `token`; an empty one lets every
  // process in that has none either, which is logged as a warning.
  TcpStoreServer(const std::string& host, int port, std::string token,
                 const TcpStoreServerLimits& limits = {});

  // Serves on a socket that listens already (see listen_at), which a launcher
  // may have opened, or inherited, to know the port before anybody serves it.
  TcpStoreServer(FileDescriptor listener, std::string token,
                 const TcpStoreServerLimits& limits = {});

  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  int port() const { return port_; }

  // What clients pass to open_store().
  const std::string& url() const { return url_; }

 private:
  class Loop;

  void serve(FileDescriptor listener, std::string token,
             const TcpStoreServerLimits& limits);

  int port_ = 0;
  std::string url_;
  OwnProcessPointer<Loop> loop_;
};

}  // namespace lockstep
