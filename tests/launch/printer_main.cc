// A typical C++ program: prints a line, then computes until the file named by
// its argument is readable.
#include <cstdio>
#include <fstream>
#include <string>

#include "lockstep/comm/groups.h"

int main(int, char** arguments) {
  std::printf("printed%s\n", lockstep::is_initialized() ? " in a group" : "");
  std::string line;
  return std::getline(std::ifstream(arguments[1]), line) ? 0 : 1;
}
