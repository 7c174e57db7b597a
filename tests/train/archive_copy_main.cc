// Reads a file of tensors in any format and writes the tensors to another file,
// in the format of its extension: .safetensors or .pt.
#include <cstdio>
#include <exception>
#include <string_view>

#include "src/checkpoint/tensor_archive.h"

int main(int count, char** arguments) {
  using lockstep::CheckpointFormat;
  if (count != 3) {
    std::fprintf(stderr, "usage: archive_copy FROM TO\n");
    return 2;
  }
  try {
    const bool libtorch = std::string_view(arguments[2]).ends_with(".pt");
    lockstep::write_archive(
        arguments[2],
        lockstep::parse_archive(lockstep::read_bytes(arguments[1]),
                                arguments[1]),
        libtorch ? CheckpointFormat::kLibTorch
                 : CheckpointFormat::kSafetensors);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
