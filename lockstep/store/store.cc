#include "lockstep/store/store.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/store/file_store.h"
#include "lockstep/store/memory_store.h"
#include "lockstep/store/prefix_store.h"
#include "lockstep/store/tcp_store.h"

namespace lockstep {
namespace {

constexpr std::string_view kFile = "file://";
constexpr std::string_view kTcp = "tcp://";

[[noreturn]] void refuse(const std::string& url, std::string_view reason) {
  throw InvalidArgument(
      fmt::format("\"{}\" names no store: {}\n"
                  "  next:    use tcp://host:port, file:///path or memory:",
                  url, reason));
}

TcpEndpoint parse_endpoint(const std::string& url) {
  const std::string_view rest = std::string_view(url).substr(kTcp.size());
  const auto colon = rest.rfind(':');
  if (colon == std::string_view::npos) refuse(url, "the port is missing");
  std::string_view host = rest.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']'))
    host = host.substr(1, host.size() - 2);
  else if (host.find(':') != std::string_view::npos)
    refuse(url, "an IPv6 address stands in brackets, as in tcp://[::1]:29500");
  if (host.empty()) refuse(url, "the host is missing");
  const std::string_view digits = rest.substr(colon + 1);
  int port = -1;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, port);
  if (error != std::errc() || stop != end || port < 0 || port > 65535)
    refuse(url, "the port must be a number from 0 to 65535");
  return {std::string(host), port};
}

}  // namespace

std::shared_ptr<Store> open_store(const std::string& url,
                                  const StoreOptions& options) {
  if (url == "memory:") return make_memory_store();
  if (url.starts_with(kFile)) {
    const std::string path = url.substr(kFile.size());
    if (!path.starts_with('/'))
      refuse(url, "the path must start with /, as in file:///tmp/job");
    return open_file_store(path, options);
  }
  if (url.starts_with(kTcp))
    return open_tcp_store(parse_endpoint(url), options);
  refuse(url, "it starts with none of the known schemes");
}

std::shared_ptr<Store> with_prefix(std::shared_ptr<Store> store,
                                   std::string prefix) {
  return std::make_shared<PrefixStore>(std::move(store), std::move(prefix));
}

Bytes to_bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string to_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace lockstep
