// A worker that starts like a framework: it joins the others at the launcher's
// store, and rank 0 binds MASTER_PORT.
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdio>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/store/store.h"
#include "src/base/settings.h"

namespace {

using namespace std::chrono_literals;
using lockstep::Settings;

// Like a program without SO_REUSEADDR.
bool can_serve_at(int port) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return ::bind(listener, reinterpret_cast<const sockaddr*>(&address),
                sizeof address) == 0 &&
         ::listen(listener, 1) == 0;
}

void meet(const Settings& settings) {
  const auto store =
      lockstep::open_store(settings.store.value(), {.token = settings.token});
  const auto arrived = store->add("arrived", 1, 60s);
  if (arrived == settings.world_size) store->set("all", {}, 60s);
  store->get("all", 60s);
}

}  // namespace

int main() {
  try {
    const Settings settings = Settings::from_environment();
    if (settings.rank == 0 && !can_serve_at(settings.master_port.value())) {
      std::puts("MASTER_PORT cannot be bound");
      return 1;
    }
    meet(settings);
    std::printf("rank %d met %d\n", settings.rank.value(),
                settings.world_size.value());
    return 0;
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 1;
  }
}
