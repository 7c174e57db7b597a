// A program that computes in a group and then crashes as its argument says.
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>

#include "lockstep/comm/groups.h"

namespace {

[[gnu::noinline]] int follow_a_lost_pointer(const volatile int* pointer) {
  return *pointer + 1;
}

[[gnu::noinline]] void throw_what_nothing_catches() {
  throw std::runtime_error("no more data");
}

[[gnu::noinline]] int recurse_without_end(volatile int* depth) {
  *depth = *depth + 1;
  return *depth < 0 ? 0 : recurse_without_end(depth) + *depth;
}

}  // namespace

int main(int, char** arguments) {
  const auto group = lockstep::init_process_group();
  group->barrier().wait();
  const std::string how = arguments[1];
  volatile int depth = 0;
  if (how == "exception") throw_what_nothing_catches();
  if (how == "recursion") return recurse_without_end(&depth);
  if (how == "own handler") std::signal(SIGSEGV, [](int) { std::_Exit(9); });
  return follow_a_lost_pointer(nullptr);
}
