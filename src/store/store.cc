#include "lockstep/store/store.h"

#include <utility>

#include "src/store/file_store.h"
#include "src/store/memory_store.h"
#include "src/store/prefix_store.h"
#include "src/store/tcp_endpoint.h"
#include "src/store/tcp_store.h"

namespace lockstep {
namespace {

constexpr std::string_view kMemory = "memory:";
constexpr std::string_view kFile = "file://";

}  // namespace

void check_store_url(const std::string& url) {
  if (url == kMemory) return;
  if (url.starts_with(kTcpScheme))
    parse_tcp_url(url);
  else if (!url.starts_with(kFile))
    refuse_url(url, "it starts with an unknown scheme");
  else if (!url.substr(kFile.size()).starts_with('/'))
    refuse_url(url, "the path must start with /, as in file:///tmp/job");
}

std::shared_ptr<Store> open_store(const std::string& url,
                                  const StoreOptions& options) {
  check_store_url(url);
  if (url == kMemory) return make_memory_store();
  if (url.starts_with(kFile))
    return open_file_store(url.substr(kFile.size()), options);
  return open_tcp_store(parse_tcp_url(url), options);
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
