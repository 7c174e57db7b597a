// What a rank asks its group to do, as plain data.
//
// ProcessGroup fills an Operation in and a Backend carries it out; the mismatch
// check, and whatever else concerns every operation of every backend, looks at
// this struct and nothing else.
//
// Threads: a value; the spans and the place borrow from the caller for as long
//          as Backend::start runs, the memory of the buffers until the Work is
//          done.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/comm/buffer.h"

namespace lockstep {

// The numbers travel in signatures: append, never renumber.
enum class OperationKind : std::uint8_t {
  kBarrier = 0,
  kBroadcast = 1,
  kAllReduce = 2,
  kAllGather = 3,
};

enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kProduct = 1,
  kMin = 2,
  kMax = 3,
  kAverage = 4,  // the sum divided by the number of ranks; floating point only
  kBand = 5,     // bitwise; integers only
  kBor = 6,
  kBxor = 7,
};

inline constexpr std::array kAllReduceOps{
    ReduceOp::kSum,     ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax,
    ReduceOp::kAverage, ReduceOp::kBand,    ReduceOp::kBor, ReduceOp::kBxor};

// The field's words: "all_reduce", "sum".
std::string_view name_of(OperationKind kind);
std::string_view name_of(ReduceOp op);

// Whether `op` is defined on `type`. On bool, sum and max are "or", product and
// min are "and"; average and the bitwise three are not defined there.
bool is_defined(ReduceOp op, DataType type);

struct Operation {
  OperationKind kind = OperationKind::kBarrier;
  // A list is one operation. broadcast and all_reduce work in place on
  // `outputs` and have no inputs; all_gather reads inputs[i] and fills
  // outputs[i], which holds `size` times as many elements, in rank order.
  std::span<const Buffer> inputs{};
  std::span<const Buffer> outputs{};
  ReduceOp reduction = ReduceOp::kSum;  // all_reduce
  int root = 0;                         // broadcast
  std::uint64_t sequence = 0;           // counts a group's operations from 1
  std::chrono::nanoseconds timeout{};   // from the call on
  std::string_view place{};             // the caller's name for it, or ""
};

// One line for messages: `all_reduce #412 (sum, 16777216 x float32)`.
std::string describe(const Operation& operation);

// The part of an operation in which all ranks must agree, as it travels with
// the operation itself. Two ranks call the same operation exactly when their
// signatures are equal.
struct Signature {
  std::uint64_t sequence = 0;
  std::uint64_t elements = 0;  // of all inputs, or outputs where there are none
  std::uint32_t layout = 0;    // a hash of the list's counts
  std::uint8_t kind = 0;
  std::uint8_t type = 0;
  std::uint8_t reduction = 0;
  std::uint8_t reserved = 0;
  std::int32_t root = 0;
  std::uint32_t buffers = 0;  // how many

  friend bool operator==(const Signature&, const Signature&) = default;
};
static_assert(sizeof(Signature) == 32);

Signature signature_of(const Operation& operation);

// The same line as describe(), for what another rank called.
std::string describe(const Signature& signature);

// The text of a Mismatch: a table of who called what. `signatures[r]` is rank
// r's; not all are equal.
std::string describe_mismatch(std::span<const Signature> signatures, int rank,
                              std::string_view group);

}  // namespace lockstep
