#include "src/comm/testing/conformance_rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/base/error.h"
#include "src/comm/group/group_core.h"
#include "src/comm/reference/reference_arithmetic.h"
#include "src/comm/testing/any_collective.h"
#include "src/comm/testing/device_block.h"
#include "src/comm/testing/random_elements.h"

namespace lockstep {
namespace {

// The elements of a list, buffer after buffer.
using Contents = std::vector<std::vector<std::byte>>;

Contents random_contents(const ConformanceCase& c, std::uint64_t seed, int rank,
                         const Counts& counts) {
  const std::size_t size = size_of(c.type);
  Contents contents;
  std::uint64_t element = 0;
  for (const std::int64_t count : counts) {
    auto& bytes = contents.emplace_back(static_cast<std::size_t>(count) * size);
    for (std::size_t at = 0; at < bytes.size(); at += size)
      store_element(c.type,
                    mix_bits(seed + element++ * 64 +
                             static_cast<std::uint64_t>(rank) + 0x9e3779b9),
                    bytes.data() + at, c.floats);
  }
  return contents;
}

// The counts of each rank's own elements, without other ranks' blocks.
Counts own_counts(const ConformanceCase& c) {
  if (c.cut == Cut::kOneBuffer) return {c.elements};
  if (c.cut == Cut::kSeveralBuffers) {
    const std::int64_t third = c.elements / 3;
    return {third, third / 2, c.elements - third - third / 2};
  }
  Counts counts;
  std::int64_t left = c.elements;
  for (int i = 0; i < 40; ++i) {
    const std::int64_t count =
        i % 4 == 0 ? 0 : std::min<std::int64_t>(left, 1 + c.elements / 29);
    counts.push_back(count);
    left -= count;
  }
  counts.push_back(left);
  return counts;
}

// Uneven: the number of elements that rank `from` has for rank `to`.
std::int64_t uneven_count(const ConformanceCase& c, int from, int to) {
  const bool pairs_differ = c.kind == OperationKind::kAllToAll;
  const int owner = c.kind == OperationKind::kAllGather ? from : to;
  const int mixed = pairs_differ ? from + 2 * to : owner;
  return c.elements * ((mixed + 1) % 3) / 2;
}

ListSizes sizes_of(const ConformanceCase& c) {
  ListSizes sizes{.kind = c.kind, .ranks = c.ranks};
  if (c.cut == Cut::kPerRank)
    sizes.uneven = [&c](int from, int to) { return uneven_count(c, from, to); };
  else
    sizes.own = own_counts(c);
  return sizes;
}

// Memory for one list of buffers, with a guard around each in ordinary memory
// that shows writes beyond the ends.
class BufferList {
 public:
  BufferList(ProcessGroup& group, const ConformanceCase& c,
             const Counts& counts, const Gpu* gpu)
      : type_(c.type) {
    if (gpu) device_ = {DeviceKind::kCuda, gpu->index()};
    const bool from_group =
        c.memory == Memory::kGroup ||
        (c.memory == Memory::kEvenRanksGroup && group.rank() % 2 == 0);
    if (gpu) {
      image_.resize(bytes_with_guards(counts), kGuard);
      // For a collective, all ranks pass a group's memory or none does.
      if (c.memory == Memory::kGroup)
        device_block_.emplace(*gpu,
                              group.core().allocate_on(device_, image_.size()),
                              image_.size());
      else
        device_block_.emplace(*gpu, image_.size());
    }
    for (const std::int64_t count : counts) add(group, count, from_group);
  }

  std::span<const Buffer> buffers() const { return buffers_; }

  void fill(const Contents& contents) {
    for (std::size_t i = 0; i < hosts_.size(); ++i)
      std::ranges::copy(contents[i], hosts_[i].data());
  }

  // Copies host memory to the GPU, and back; does nothing without a GPU.
  void send() const {
    if (device_block_) device_block_->upload(image_.data());
  }
  void fetch() {
    if (device_block_) device_block_->download(image_.data());
  }

  Contents contents() const {
    Contents all;
    for (const auto& host : hosts_) all.emplace_back(host.begin(), host.end());
    return all;
  }

  bool guards_intact() const {
    const auto intact = [](std::byte b) { return b == kGuard; };
    return std::ranges::all_of(hosts_, [&](std::span<std::byte> host) {
      return std::all_of(host.data() - margin(), host.data(), intact) &&
             std::all_of(host.data() + host.size(),
                         host.data() + host.size() + margin(), intact);
    });
  }

 private:
  static constexpr std::byte kGuard{0x5a};

  // An odd multiple of the element's size keeps only natural alignment.
  std::size_t margin() const { return size_of(type_) * 17; }
  std::size_t bytes_of(std::int64_t count) const {
    return static_cast<std::size_t>(count) * size_of(type_);
  }
  std::size_t bytes_with_guards(const Counts& counts) const {
    std::size_t bytes = 0;
    for (const std::int64_t count : counts)
      bytes += bytes_of(count) + 2 * margin();
    return bytes;
  }

  void add(ProcessGroup& group, std::int64_t count, bool from_group) {
    const std::size_t bytes = bytes_of(count) + 2 * margin();
    std::byte* const block = device_block_
                                 ? next_of_image(bytes)
                                 : new_block(group, bytes, from_group);
    std::byte* const host = block + margin();
    hosts_.emplace_back(host, bytes_of(count));
    if (!device_block_) return buffers_.push_back({host, count, type_});
    buffers_.push_back({device_block_->data() + (host - image_.data()), count,
                        type_, device_});
  }

  std::byte* next_of_image(std::size_t bytes) {
    std::byte* const block = image_.data() + used_;
    used_ += bytes;
    return block;
  }

  std::byte* new_block(ProcessGroup& group, std::size_t bytes,
                       bool from_group) {
    std::shared_ptr<std::byte> block =
        from_group
            ? group.allocate(bytes)
            : std::shared_ptr<std::byte>(new std::byte[bytes],
                                         std::default_delete<std::byte[]>());
    std::fill_n(block.get(), bytes, kGuard);
    return blocks_.emplace_back(std::move(block)).get();
  }

  DataType type_;
  Device device_{};
  std::vector<std::byte> image_;  // all blocks, for buffers on a GPU
  std::size_t used_ = 0;
  std::optional<DeviceBlock> device_block_;
  std::vector<std::shared_ptr<std::byte>> blocks_;
  std::vector<std::span<std::byte>> hosts_;  // buffers in host memory
  std::vector<Buffer> buffers_;
};

// A rank's expected contents afterwards: the obvious result of all ranks'
// inputs.
class Expectation {
 public:
  Expectation(const ConformanceCase& c, int root, int rank,
              std::vector<Contents> sources)
      : case_(c), root_(root), rank_(rank), sources_(std::move(sources)) {}

  Contents contents() const {
    Contents result;
    const std::size_t buffers = sizes_of(case_).gained(rank_).size();
    for (std::size_t i = 0; i < buffers; ++i) result.push_back(buffer(i));
    return result;
  }

 private:
  bool uneven() const { return case_.cut == Cut::kPerRank; }

  const std::vector<std::byte>& source(int rank, std::size_t i) const {
    return sources_[static_cast<std::size_t>(rank)][i];
  }

  // Rank `of`'s block of rank `rank`'s buffer i.
  std::vector<std::byte> block(int rank, std::size_t i, int of) const {
    const auto index = static_cast<std::size_t>(of);
    if (uneven()) return source(rank, index);
    const auto& whole = source(rank, i);
    const std::size_t bytes =
        whole.size() / static_cast<std::size_t>(case_.ranks);
    const auto begin =
        whole.begin() + static_cast<std::ptrdiff_t>(index * bytes);
    return {begin, begin + static_cast<std::ptrdiff_t>(bytes)};
  }

  // Every rank's part of buffer i, end to end; if uneven, one rank's.
  template <class Part>
  std::vector<std::byte> joined(std::size_t i, const Part& part) const {
    if (uneven()) return part(static_cast<int>(i));
    std::vector<std::byte> all;
    for (int rank = 0; rank < case_.ranks; ++rank) {
      const std::vector<std::byte> one = part(rank);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

  template <class Part>
  std::vector<std::byte> combined(const Part& part) const {
    Contents parts;
    for (int rank = 0; rank < case_.ranks; ++rank) parts.push_back(part(rank));
    if (case_.first_host == 0) return combined_bytes(parts);
    const std::span all(parts);
    const auto first = static_cast<std::size_t>(case_.first_host);
    const Contents hosts{combined_bytes(all.first(first)),
                         combined_bytes(all.subspan(first))};
    return combined_bytes(hosts);
  }

  std::vector<std::byte> combined_bytes(
      std::span<const std::vector<std::byte>> parts) const {
    std::vector<std::byte> result(parts.front().size());
    reference_reduce(case_.reduction, case_.type, parts, result);
    return result;
  }

  std::vector<std::byte> buffer(std::size_t i) const {
    switch (case_.kind) {
      case OperationKind::kBroadcast:
        return source(root_, i);
      case OperationKind::kReduce:
        if (rank_ != root_) return source(rank_, i);
        [[fallthrough]];
      case OperationKind::kAllReduce:
        return combined([&](int rank) { return source(rank, i); });
      case OperationKind::kAllGather:
      case OperationKind::kGather:
        return joined(i,
                      [&](int rank) { return source(rank, uneven() ? 0 : i); });
      case OperationKind::kScatter:
        return block(root_, i, rank_);
      case OperationKind::kReduceScatter:
        return combined([&](int rank) { return block(rank, i, rank_); });
      case OperationKind::kAllToAll:
        return joined(i, [&](int rank) { return block(rank, i, rank_); });
      case OperationKind::kBarrier:
      case OperationKind::kSend:
      case OperationKind::kReceive:
      case OperationKind::kShardedUpdate:
      case OperationKind::kReplay:
        break;
    }
    return {};
  }

  const ConformanceCase& case_;
  int root_;
  int rank_;
  std::vector<Contents> sources_;
};

std::string compare(const ConformanceCase& c, const Contents& found,
                    const Contents& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto [a, b] = std::ranges::mismatch(found[i], expected[i]);
    if (a == found[i].end() && b == expected[i].end()) continue;
    return fmt::format(
        "{}: byte {} (element {}) of buffer {} is {:#04x}, expected {:#04x}",
        describe(c), a - found[i].begin(),
        static_cast<std::size_t>(a - found[i].begin()) / size_of(c.type), i,
        a == found[i].end() ? -1 : std::to_integer<int>(*a),
        b == expected[i].end() ? -1 : std::to_integer<int>(*b));
  }
  return "";
}

}  // namespace

std::string run_conformance_case(ProcessGroup& group, const ConformanceCase& c,
                                 std::uint64_t seed, const Gpu* gpu) {
  if (c.kind == OperationKind::kBarrier) {
    group.barrier().wait();
    return "";
  }
  const ListSizes sizes = sizes_of(c);
  std::vector<Contents> sources;
  for (int rank = 0; rank < c.ranks; ++rank)
    sources.push_back(random_contents(c, seed, rank, sizes.brought(rank)));
  const Contents mine = sources[static_cast<std::size_t>(group.rank())];
  const int root = static_cast<int>(seed % static_cast<std::uint64_t>(c.ranks));

  BufferList inputs(group, c, sizes.brought(group.rank()), gpu);
  BufferList outputs(group, c, sizes.gained(group.rank()), gpu);
  const bool in_place = works_in_place(c.kind);
  (in_place ? outputs : inputs).fill(mine);
  inputs.send();
  outputs.send();
  const AnyCollective collective{
      .kind = c.kind,
      .division = c.cut == Cut::kPerRank ? Division::kPerRank : Division::kEven,
      .reduction = c.reduction,
      .root = root};
  collective.start(group, inputs.buffers(), outputs.buffers()).synchronize();
  inputs.fetch();
  outputs.fetch();

  if (!in_place && inputs.contents() != mine)
    return describe(c) + ": the input was changed";
  if (!inputs.guards_intact() || !outputs.guards_intact())
    return describe(c) + ": memory beyond a buffer was written";
  if (c.kind == OperationKind::kGather && group.rank() != root) return "";
  const Contents found = outputs.contents();
  ConformanceCase in_one_tree = c;
  in_one_tree.first_host = 0;
  const std::string wrong =
      compare(c, found,
              Expectation(in_one_tree, root, group.rank(), sources).contents());
  if (wrong.empty() || c.first_host == 0 || c.kind != OperationKind::kAllReduce)
    return wrong;
  return compare(
      c, found,
      Expectation(c, root, group.rank(), std::move(sources)).contents());
}

}  // namespace lockstep
