// Reads a safetensors file and writes its tensors to another, for the test that
// compares our reader and writer with another implementation.
#include <cstdio>
#include <exception>

#include "src/checkpoint/safetensors.h"

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: safetensors_copy FROM TO\n");
    return 2;
  }
  try {
    const lockstep::SafetensorsFile from(arguments[1]);
    lockstep::write_safetensors(arguments[2], from.view().tensors,
                                from.view().metadata);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
