// The server of a tcp:// store, in its own thread.
//
// It keeps every key in memory and serves until it is destroyed. Its clients
// then see their connections close. Last wills are executed when a client's
// connection ends, not when the server does.
//
// Threads: construct and destroy it in one thread; the rest from any thread.
// Errors:  NetworkError from the constructors: port in use, no such address;
//          InvalidArgument for a token longer than 256 bytes.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "src/base/own_process.h"
#include "src/net/file_descriptor.h"

namespace lockstep {

struct TcpStoreServerOptions {
  // A job's name, which is no secret: the server turns away clients that give
  // another one.
  std::string job = {};
  // The rest limits unauthenticated connections. The defaults suit every job.
  //
  // The server closes a connection that has not proved within this time that it
  // has the token.
  std::chrono::milliseconds introduction = std::chrono::seconds(10);
  // The most unauthenticated connections; a quarter of the process's descriptor
  // limit, if that is less. A further connection replaces the oldest one that
  // has not sent its challenge, if those are more than half, else the oldest
  // one that has. A client that is replaced retries.
  int strangers = 1024;
};

class TcpStoreServer {
 public:
  // Serves at the address of `host`; port 0 lets the kernel choose. Clients
  // must prove that they have `token`. An empty token admits every client with
  // an empty token, and the server logs a warning.
  TcpStoreServer(const std::string& host, int port, std::string token,
                 const TcpStoreServerOptions& options = {});

  // Serves on a listening socket (see listen_at), which a launcher may have
  // opened or inherited to know the port before the server starts.
  TcpStoreServer(FileDescriptor listener, std::string token,
                 const TcpStoreServerOptions& options = {});

  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  int port() const { return port_; }

  // The url that clients pass to open_store().
  const std::string& url() const { return url_; }

 private:
  class Loop;

  void serve(FileDescriptor listener, std::string token,
             const TcpStoreServerOptions& options);

  int port_ = 0;
  std::string url_;
  OwnProcessPointer<Loop> loop_;
};

}  // namespace lockstep
