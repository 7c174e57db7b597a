#include "src/comm/operation/validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "src/comm/operation/routes.h"

namespace lockstep {
namespace {

// For all ranks together; far below the overflow of a byte count.
constexpr std::int64_t kMostElements = std::int64_t{1} << 56;

class Validation {
 public:
  Validation(const Operation& operation, const GroupIdentity& identity)
      : operation_(operation), identity_(identity) {}

  void run() const {
    if (has_root(operation_.kind)) check_root();
    if (is_point_to_point(operation_.kind)) check_peer();
    check_buffers(operation_.inputs);
    check_buffers(operation_.outputs);
    check_counts();
    check_overlaps();
    check_reduction();
  }

 private:
  template <class... Values>
  [[noreturn]] void refuse(fmt::format_string<Values...> why,
                           Values&&... values) const {
    throw InvalidArgument(fmt::format(
        "{}{}: {} (rank {} of group \"{}\")", name_of(operation_.kind),
        operation_.division == Division::kPerRank ? "_v" : "",
        fmt::format(why, std::forward<Values>(values)...), identity_.rank,
        identity_.name));
  }

  bool in_group(int rank) const { return rank >= 0 && rank < identity_.size; }

  void check_root() const {
    if (!in_group(operation_.root))
      refuse("the root is rank {}, but the group has ranks 0 to {}",
             operation_.root, identity_.size - 1);
  }

  void check_peer() const {
    const bool sends = operation_.kind == OperationKind::kSend;
    if (!sends && operation_.peer == kAnySource) {
    } else if (!in_group(operation_.peer)) {
      refuse("{} rank {}, but the group has ranks 0 to {}",
             sends ? "to" : "from", operation_.peer, identity_.size - 1);
    } else if (operation_.peer == identity_.rank) {
      refuse("a rank cannot send to itself; copy the elements instead");
    }
    if (operation_.tag < 0)
      refuse("the tag is {}; tags count from 0", operation_.tag);
  }

  const Buffer& first() const {
    return operation_.inputs.empty() ? operation_.outputs.front()
                                     : operation_.inputs.front();
  }

  void check_buffers(std::span<const Buffer> buffers) const {
    for (const Buffer& buffer : buffers) {
      if (buffer.count < 0)
        refuse("a buffer has {} elements; a count cannot be negative",
               buffer.count);
      if (buffer.count > kMostElements / identity_.size)
        refuse("a buffer has {} elements, more than any memory", buffer.count);
      if (buffer.data == nullptr && buffer.count > 0)
        refuse("a buffer of {} elements has a null address", buffer.count);
      if (std::ranges::find(kAllDataTypes, buffer.type) == kAllDataTypes.end())
        refuse("a buffer has the unknown data type {}",
               static_cast<int>(buffer.type));
      if (buffer.type != first().type)
        refuse(
            "the buffers of one operation must have one type, but there are {} "
            "and {}; use one operation per type",
            name_of(first().type), name_of(buffer.type));
      if (!(buffer.device == first().device))
        refuse(
            "the buffers of one operation must be on one device; move them to "
            "one");
    }
  }

  bool is_root() const { return operation_.root == identity_.rank; }

  void check_counts() const {
    switch (operation_.kind) {
      case OperationKind::kBarrier:
      case OperationKind::kReplay:
      case OperationKind::kBroadcast:
      case OperationKind::kAllReduce:
      case OperationKind::kReduce:
      case OperationKind::kSend:
      case OperationKind::kReceive:
        return;
      case OperationKind::kAllGather:
        return check_blocks("input", operation_.inputs, "output",
                            operation_.outputs);
      case OperationKind::kGather:
        if (is_root())
          check_blocks("input", operation_.inputs, "output",
                       operation_.outputs);
        return;
      case OperationKind::kScatter:
        if (is_root())
          check_blocks("output", operation_.outputs, "input",
                       operation_.inputs);
        return;
      case OperationKind::kReduceScatter:
        return check_blocks("output", operation_.outputs, "input",
                            operation_.inputs);
      case OperationKind::kAllToAll:
        return check_all_to_all();
      case OperationKind::kShardedUpdate:
        return check_pairs();
    }
  }

  void check_pairs() const {
    const bool fit = std::ranges::equal(operation_.inputs, operation_.outputs,
                                        std::ranges::equal_to(), &Buffer::count,
                                        &Buffer::count);
    if (!fit) refuse("each output needs an input of as many elements");
  }

  // Checks each of `own` against the blocks of all ranks.
  void check_blocks(const char* own_name, std::span<const Buffer> own,
                    const char* blocks_name,
                    std::span<const Buffer> blocks) const {
    if (operation_.division == Division::kPerRank)
      return check_one_a_rank(own_name, own, blocks_name, blocks);
    if (own.size() != blocks.size())
      refuse("{} {}s but {} {}s; each {} needs its {}", own.size(), own_name,
             blocks.size(), blocks_name, own_name, blocks_name);
    for (std::size_t i = 0; i < own.size(); ++i)
      if (blocks[i].count != own[i].count * identity_.size)
        refuse("{} {} has {} elements; {} ranks with {} elements each need {}",
               blocks_name, i, blocks[i].count, identity_.size, own[i].count,
               own[i].count * identity_.size);
  }

  void check_one_a_rank(const char* own_name, std::span<const Buffer> own,
                        const char* blocks_name,
                        std::span<const Buffer> blocks) const {
    check_list_size(blocks_name, blocks);
    const auto& mine = blocks[static_cast<std::size_t>(identity_.rank)];
    if (own.front().count != mine.count)
      refuse("the {} has {} elements, but {} {}, this rank's own, has {}",
             own_name, own.front().count, blocks_name, identity_.rank,
             mine.count);
  }

  void check_list_size(const char* name, std::span<const Buffer> list) const {
    if (list.size() != static_cast<std::size_t>(identity_.size))
      refuse("{} {}s for {} ranks; give one per rank", list.size(), name,
             identity_.size);
  }

  void check_all_to_all() const {
    const auto& [inputs, outputs] =
        std::pair(operation_.inputs, operation_.outputs);
    if (operation_.division == Division::kPerRank) {
      check_list_size("input", inputs);
      check_list_size("output", outputs);
      const auto me = static_cast<std::size_t>(identity_.rank);
      if (inputs[me].count != outputs[me].count)
        refuse(
            "input {} has {} elements and output {} has {}; both are this "
            "rank's own and must be equal",
            me, inputs[me].count, me, outputs[me].count);
      return;
    }
    if (inputs.size() != outputs.size())
      refuse("{} inputs but {} outputs; each input needs its output",
             inputs.size(), outputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].count != outputs[i].count)
        refuse("input {} has {} elements but output {} has {}", i,
               inputs[i].count, i, outputs[i].count);
      if (inputs[i].count % identity_.size != 0)
        refuse(
            "input {} has {} elements, which {} ranks cannot share evenly; use "
            "all_to_all_v",
            i, inputs[i].count, identity_.size);
    }
  }

  struct Range {
    const std::byte* begin;
    const std::byte* end;
    bool written;
  };

  static void add_ranges(std::span<const Buffer> buffers, bool written,
                         std::vector<Range>& ranges) {
    for (const Buffer& buffer : buffers) {
      const auto* begin = static_cast<const std::byte*>(buffer.data);
      if (buffer.count > 0)
        ranges.push_back({begin, begin + buffer.bytes(), written});
    }
  }

  // A buffer that this rank writes must not overlap any other buffer, except
  // its own block in place.
  void check_overlaps() const {
    const std::size_t buffers =
        operation_.inputs.size() + operation_.outputs.size();
    if (buffers < 2 || operation_.outputs.empty()) return;
    std::vector<Range> ranges;
    ranges.reserve(buffers);
    if (!in_place()) add_ranges(operation_.inputs, false, ranges);
    add_ranges(operation_.outputs, true, ranges);
    const auto before = [](const Range& a, const Range& b) {
      return a.begin < b.begin;
    };
    if (!std::ranges::is_sorted(ranges, before))
      std::ranges::sort(ranges, before);
    const Range* furthest = nullptr;  // of the ranges so far, ends last
    for (const Range& range : ranges) {
      if (furthest != nullptr && range.begin < furthest->end &&
          (range.written || furthest->written))
        refuse(
            "two buffers overlap, and at least one of them is written; give "
            "each its own memory");
      if (furthest == nullptr || range.end > furthest->end) furthest = &range;
    }
  }

  // Whether the shorter list is, buffer by buffer, this rank's own block of the
  // longer one.
  bool in_place() const {
    const bool gathers = operation_.kind == OperationKind::kAllGather ||
                         operation_.kind == OperationKind::kGather;
    const bool scatters = operation_.kind == OperationKind::kReduceScatter ||
                          operation_.kind == OperationKind::kScatter;
    if (!gathers && !scatters) return false;
    const auto own = gathers ? operation_.inputs : operation_.outputs;
    const auto blocks = gathers ? operation_.outputs : operation_.inputs;
    const auto me = static_cast<std::size_t>(identity_.rank);
    if (operation_.division == Division::kPerRank)
      return own.front().data == blocks[me].data;
    if (own.size() != blocks.size()) return false;
    for (std::size_t i = 0; i < own.size(); ++i)
      if (own[i].data !=
          static_cast<std::byte*>(blocks[i].data) + me * own[i].bytes())
        return false;
    return true;
  }

  void check_reduction() const {
    if (!reduces(operation_.kind) || operation_.outputs.empty()) return;
    if (is_defined(operation_.reduction, first().type)) return;
    refuse("{} is not defined on {}{}", name_of(operation_.reduction),
           name_of(first().type),
           operation_.reduction == ReduceOp::kAverage
               ? "; use sum and divide, or convert to a floating-point type"
               : "");
  }

  const Operation& operation_;
  const GroupIdentity& identity_;
};

}  // namespace

void validate(const Operation& operation, const GroupIdentity& identity) {
  Validation(operation, identity).run();
}

}  // namespace lockstep
