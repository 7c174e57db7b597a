// A rank's request to its group, as plain data.
//
// ProcessGroup fills an Operation in and a Backend carries it out; the mismatch
// check, and all other code that concerns every operation of every backend,
// reads only this struct.
//
// Threads: a value. The caller's spans and label must live while Backend::start
//          runs, the memory of the buffers until the Work is done.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/buffer.h"
#include "lockstep/comm/work.h"

namespace lockstep {

// The position of a rank in a list with one entry per rank.
inline std::size_t index_of(int rank) { return static_cast<std::size_t>(rank); }

class CapturedGraph;

// Signatures carry the numbers: append, never renumber.
enum class OperationKind : std::uint8_t {
  kBarrier = 0,
  kBroadcast = 1,
  kAllReduce = 2,
  kAllGather = 3,
  kReduce = 4,
  kGather = 5,
  kScatter = 6,
  kReduceScatter = 7,
  kAllToAll = 8,
  kSend = 9,
  kReceive = 10,
  kShardedUpdate = 11,
  kReplay = 12,
};

inline constexpr std::array kAllCollectives{
    OperationKind::kBarrier,   OperationKind::kBroadcast,
    OperationKind::kAllReduce, OperationKind::kAllGather,
    OperationKind::kReduce,    OperationKind::kGather,
    OperationKind::kScatter,   OperationKind::kReduceScatter,
    OperationKind::kAllToAll};

// How the longer list of an operation is divided among the ranks.
enum class Division : std::uint8_t {
  kEven = 0,     // each buffer into `size` equal blocks, in rank order
  kPerRank = 1,  // list[r] belongs to rank r: all_gather_v and similar
};

// The name in messages: "all_reduce".
std::string_view name_of(OperationKind kind);

// Whether the kind combines elements, and so uses `reduction`.
bool reduces(OperationKind kind);
// Whether one rank, the root, has a special part.
bool has_root(OperationKind kind);
// Whether the kind moves elements between two ranks instead of among all.
bool is_point_to_point(OperationKind kind);

inline constexpr auto kNotRecorded = ~std::uint64_t{0};

// The callback of sharded_update, a reduction whose result is consumed at once.
// Each rank combines all ranks' inputs of the elements that it updates, passes
// them to its ShardUpdate, which changes the outputs there, and gives the
// changed elements to all ranks. The operation runs if all ranks reach all
// buffers; otherwise it does nothing on every rank.
class ShardUpdate {
 public:
  // Elements [begin, begin + count) of outputs[buffer].
  struct Piece {
    std::size_t buffer = 0;
    std::size_t begin = 0;
    std::size_t count = 0;
  };

  // The elements that this rank updates. The pieces of all ranks hold every
  // element exactly once.
  virtual std::span<const Piece> pieces() const = 0;

  // Updates elements [begin, begin + count) of pieces()[piece], counted from
  // the piece's begin; `combined` holds the combined inputs there. The thread
  // that carries the operation forward calls it, one thread at a time.
  virtual void update(std::size_t piece, std::size_t begin, std::size_t count,
                      const std::byte* combined) = 0;

  // Set when the Work is done without an error.
  bool carried_out = false;

 protected:
  ~ShardUpdate() = default;
};

// Which list holds what:
//
//                    inputs                      outputs
//   broadcast                                    in place
//   all_reduce                                   in place
//   reduce                                       in place; only the root's
//                                                change
//   all_gather       own elements                a block per rank
//   gather           own elements                root: a block per rank
//   scatter          root: a block per rank      own elements
//   reduce_scatter   a block per rank            own block, reduced
//   all_to_all       a block for each rank       a block from each rank
//   send             the message
//   receive                                      the message
//   sharded_update   own gradients               own parameters; all end equal
//   replay           no buffers: those of the captured operations
//
// Lists are one operation: inputs[i] goes with outputs[i].
struct Operation {
  OperationKind kind = OperationKind::kBarrier;
  Division division = Division::kEven;
  std::span<const Buffer> inputs{};
  std::span<const Buffer> outputs{};
  ReduceOp reduction = ReduceOp::kSum;  // of the kinds that reduce
  int root = 0;                         // of the kinds that have a root
  int peer = 0;  // send: to whom; receive: from whom, or kAnySource
  int tag = 0;   // send and receive: messages match when their tags do
  // Counts the group's collectives from 1; for send and receive, this rank's
  // messages.
  std::uint64_t sequence = 0;
  std::chrono::nanoseconds timeout{};  // from the call on
  std::string_view label{};            // the caller's name for it, or ""
  ShardUpdate* update = nullptr;       // sharded_update's; the caller's
  CapturedGraph* graph = nullptr;      // replay's; a backend shares it
  // For buffers on a GPU: the cudaStream_t in whose order it begins; null is
  // current_stream().
  void* stream = nullptr;
  // The caller waits for it at once, and advances it while it waits: a backend
  // need not wake a thread for it.
  bool attended = false;
  // If set, a thread that waits for it for long calls this about every 50 ms
  // (on `shm`). What it throws ends the wait but not the operation, so that the
  // caller must abort the group.
  const std::function<void()>* meanwhile = nullptr;
  // Its number in the recorder.
  std::uint64_t record = kNotRecorded;
};

// The device of its buffers or its graph; the CPU if it has neither.
Device device_of(const Operation& operation);

// One line for messages: `all_reduce #412 (sum, 16777216 x float32)`.
std::string describe(const Operation& operation);

// The part of an operation in which all ranks must agree; it travels with the
// operation itself. Two ranks call the same operation exactly when their
// signatures are equal. Where ranks may differ (the counts of all_to_all_v),
// the backend compares the elements that it moves.
struct Signature {
  std::uint64_t sequence = 0;
  std::uint64_t elements = 0;  // that a rank brings or gets, without other
                               // ranks' blocks; of the whole list if uneven
  std::uint32_t layout = 0;    // a hash of the list's counts
  std::uint8_t kind = 0;
  std::uint8_t type = 0;
  std::uint8_t reduction = 0;
  std::uint8_t division = 0;
  std::int32_t root = 0;
  std::uint32_t buffers = 0;  // how many

  friend bool operator==(const Signature&, const Signature&) = default;
};
static_assert(sizeof(Signature) == 32);

Signature signature_of(const Operation& operation);

// The same line, for another rank's call.
std::string describe(const Signature& signature);

// The same from separate values. `peer` and `tag` apply to messages.
std::string describe(const Signature& signature, int peer, int tag,
                     std::string_view label);

// What a rank announces of its call of a collective, besides elements: the
// signature and, for errors, the caller's name for the call.
struct AnnouncedCall {
  static constexpr std::size_t kLabelBytes = 48;

  Signature signature{};
  char label[kLabelBytes] = {};  // zero-terminated, unless truncated

  std::string_view label_text() const;
};
static_assert(sizeof(AnnouncedCall) == 80);

AnnouncedCall announced_call_of(const Operation& operation);

// Copies a name; of a long one the ends: copy_shortened() in
// src/base/printable.h.
void set_label(std::span<char, AnnouncedCall::kLabelBytes> room,
               std::string_view label);

// The text of a Mismatch: a table of each rank's call and label. `calls[r]` is
// rank r's; the signatures are not all equal.
std::string describe_mismatch(std::span<const AnnouncedCall> calls, int rank,
                              std::string_view group);

// The counts that the signature of all_to_all_v leaves out: the elements that
// this rank has for each rank, then those that it expects from each. Empty for
// other kinds.
std::vector<std::int64_t> counts_of(const Operation& operation);

// Throws Mismatch unless each rank has as many elements for each other rank as
// that rank expects. `counts[r]` is rank r's counts_of().
void check_counts(const Operation& operation,
                  std::span<const std::vector<std::int64_t>> counts,
                  std::string_view group);

// The same for a message: the sent signature must be the receive's.
void check_message(const Operation& receive, int source, const Signature& sent,
                   std::string_view group);

}  // namespace lockstep
