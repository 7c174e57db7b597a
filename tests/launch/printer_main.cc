// A C++ program as users write them: prints a line, then computes for long,
// which here is until the file that its argument names can be read.
#include <cstdio>
#include <fstream>
#include <string>

#include "lockstep/comm/init.h"

int main(int, char** arguments) {
  std::printf("printed%s\n", lockstep::is_initialized() ? " in a group" : "");
  std::string line;
  return std::getline(std::ifstream(arguments[1]), line) ? 0 : 1;
}
