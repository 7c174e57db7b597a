// A child process of the store's tests:
//
//   lockstep_store_child add URL TOKEN KEY COUNT
//       adds 1 to KEY, COUNT times
//   lockstep_store_child leave-will URL TOKEN KEY
//       leaves a will for KEY, sets KEY/ready and waits to be killed
//   lockstep_store_child fill URL TOKEN
//       sets a value that exceeds a limit on the file's size, then one that
//       fits
#include <sys/resource.h>

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/store/store.h"
#include "src/base/testing/test_timeout.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

int add(Store& store, const std::string& key, const std::string& count) {
  int times = 0;
  std::from_chars(count.data(), count.data() + count.size(), times);
  for (int i = 0; i < times; ++i) store.add(key, 1, kTimeout);
  return 0;
}

int leave_will(Store& store, const std::string& key) {
  store.set_last_will({key}, to_bytes("dead"), kTimeout);
  store.set(key + "/ready", {}, kTimeout);
  store.get("a key that is never set", kTimeout);
  return 1;
}

int fill(Store& store) {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{1000, RLIM_INFINITY};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  store.set("before", to_bytes("small"), kTimeout);
  try {
    store.set("large", Bytes(2000), kTimeout);
    return 1;
  } catch (const SystemError&) {
    store.set("after", to_bytes("small"), kTimeout);
  }
  return 0;
}

int run(const std::vector<std::string>& words) {
  const auto store = open_store(
      words.at(1), {.token = words.at(2), .deadline = Deadline(kTimeout)});
  if (words[0] == "add") return add(*store, words.at(3), words.at(4));
  if (words[0] == "leave-will") return leave_will(*store, words.at(3));
  if (words[0] == "fill") return fill(*store);
  return 2;
}

}  // namespace
}  // namespace lockstep

int main(int count, char** words) {
  try {
    return lockstep::run({words + 1, words + count});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lockstep_store_child: %s\n", error.what());
    return 3;
  }
}
