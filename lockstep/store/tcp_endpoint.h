// Where a tcp:// store's server is reached.
//
// Threads: values and pure functions.
// Errors:  InvalidArgument for what is no url of a store.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

constexpr std::string_view kTcpScheme = "tcp://";

// An IPv6 number stands here without brackets.
struct TcpEndpoint {
  std::string host;
  int port = 0;
};

// Host and port of tcp://host:port.
TcpEndpoint parse_tcp_url(const std::string& url);

// Throws what open_store() says of a url that names no store.
[[noreturn]] void refuse_url(const std::string& url, std::string_view reason);

}  // namespace lockstep
