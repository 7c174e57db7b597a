// The address of a tcp:// store's server.
//
// Errors:  InvalidArgument for a malformed url.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

constexpr std::string_view kTcpScheme = "tcp://";

// Where launchers meet when --rdzv-endpoint names no port, and when
// --master-addr does without --master-port: torchrun's.
constexpr int kEndpointPort = 29400;
constexpr int kMasterPort = 29500;

// `host` holds an IPv6 number without brackets.
struct TcpEndpoint {
  std::string host;
  int port = 0;
};

// Throws InvalidArgument, as open_store() does, for what is no url of a store.
void check_store_url(const std::string& url);

// Host and port of tcp://host:port.
TcpEndpoint parse_tcp_url(const std::string& url);

// Throws open_store()'s error for a url that names no store.
[[noreturn]] void refuse_url(const std::string& url, std::string_view reason);

}  // namespace lockstep
