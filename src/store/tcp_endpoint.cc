#include "src/store/tcp_endpoint.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "src/base/number_in.h"

namespace lockstep {

void refuse_url(const std::string& url, std::string_view reason) {
  throw InvalidArgument(
      fmt::format("\"{}\" names no store: {}\n"
                  "  next:    use tcp://host:port, file:///path or memory:",
                  url, reason));
}

TcpEndpoint parse_tcp_url(const std::string& url) {
  const std::string_view rest = std::string_view(url).substr(kTcpScheme.size());
  const auto colon = rest.rfind(':');
  if (colon == std::string_view::npos) refuse_url(url, "the port is missing");
  std::string_view host = rest.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']'))
    host = host.substr(1, host.size() - 2);
  else if (host.find(':') != std::string_view::npos)
    refuse_url(url,
               "an IPv6 address stands in brackets, as in tcp://[::1]:29500");
  if (host.empty()) refuse_url(url, "the host is missing");
  const std::string_view digits = rest.substr(colon + 1);
  const int port = number_in<int>(digits).value_or(-1);
  if (port < 0 || port > 65535)
    refuse_url(url, "the port must be a number from 0 to 65535");
  return {std::string(host), port};
}

}  // namespace lockstep
