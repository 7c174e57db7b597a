// Objects that travel between ranks, as pickles of LibTorch's.
//
// A pickle of LibTorch's holds the whole memory that a tensor lies in, which
// for a row of a large matrix is the matrix. Here it holds the tensor's
// elements; so views of one memory arrive as tensors with a memory each.
//
// Threads: any thread.
// Errors:  LibTorch's, for what it cannot pickle or read.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstddef>
#include <span>
#include <vector>

namespace lockstep {

std::vector<char> pickle(const c10::IValue& object);
c10::IValue unpickle(std::span<const std::byte> bytes);

}  // namespace lockstep
