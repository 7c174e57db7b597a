// The smallest outside project without LibTorch.
#include <lockstep/store/store.h>

#include <chrono>

int main() {
  const auto store = lockstep::open_store("memory:");
  return store->add("ranks", 2, std::chrono::seconds(1)) == 2 ? 0 : 1;
}
