// Compiles with the usage requirements of lockstep::store and uses a store.
#include <chrono>
#include <cstdio>

#include "lockstep/store/store.h"

int main() {
  const auto store = lockstep::open_store("memory:");
  const auto sum = store->add("ranks", 2, std::chrono::seconds(1));
  std::printf("%lld\n", static_cast<long long>(sum));
  return sum == 2 ? 0 : 1;
}
