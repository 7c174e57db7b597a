// The parameters of a type and device, one after another, are a row of
// elements. It is cut at r/n of its length for every r; each cut then moves to
// the nearest allowed cut of its parameter, or to the parameter's end.

#include "src/planning/shard_plan.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Piece = ShardPlan::Piece;

constexpr std::size_t kCutBytes = 64;

// The first element of part `part` of `parts` parts of `total` elements,
// without overflow.
std::size_t ideal_cut(std::size_t total, std::size_t part, std::size_t parts) {
  return total / parts * part + total % parts * part / parts;
}

// Distributes the parameters of one type and device.
class Row {
 public:
  Row(std::span<const ParameterSize> parameters,
      std::span<const std::size_t> members)
      : parameters_(parameters), members_(members) {
    for (const std::size_t member : members)
      total_ += parameters[member].elements;
  }

  void deal(ShardPlan& plan) const {
    const std::size_t ranks = plan.ranks.size();
    std::size_t rank = 0;
    std::size_t before = 0;  // elements of the row before this parameter
    for (const std::size_t member : members_) {
      const std::size_t elements = parameters_[member].elements;
      std::size_t begin = 0;
      while (begin < elements) {
        const std::size_t end =
            cut_within(member, before, ideal_cut(total_, rank + 1, ranks));
        if (end > begin)
          plan.ranks[rank].push_back({member, begin, end - begin});
        begin = std::max(begin, end);
        if (begin < elements) ++rank;
      }
      before += elements;
    }
  }

 private:
  // The position of the cut at `ideal` (in the row) within the parameter that
  // begins at `before`: 0 when the cut lies before the parameter, its length
  // when after.
  std::size_t cut_within(std::size_t member, std::size_t before,
                         std::size_t ideal) const {
    const ParameterSize& size = parameters_[member];
    if (ideal <= before) return 0;
    if (ideal >= before + size.elements) return size.elements;
    const std::size_t unit = kCutBytes / size_of(size.type);
    const std::size_t nearest = (ideal - before + unit / 2) / unit * unit;
    return std::min(nearest, size.elements);
  }

  std::span<const ParameterSize> parameters_;
  std::span<const std::size_t> members_;
  std::size_t total_ = 0;
};

// The parameters' indices by type and device. A model has a handful of such
// classes, so a linear search finds them.
std::vector<std::vector<std::size_t>> classes_of(
    std::span<const ParameterSize> parameters) {
  std::vector<std::vector<std::size_t>> classes;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto found =
        std::find_if(classes.begin(), classes.end(), [&](const auto& members) {
          const ParameterSize& first = parameters[members.front()];
          return first.type == parameters[i].type &&
                 first.device == parameters[i].device;
        });
    if (found != classes.end())
      found->push_back(i);
    else
      classes.push_back({i});
  }
  return classes;
}

}  // namespace

ShardPlan plan_shards(std::span<const ParameterSize> parameters,
                      std::size_t ranks) {
  if (ranks == 0)
    throw InvalidArgument(
        "cannot plan shards: the number of ranks must be at least 1");
  ShardPlan plan{.ranks = std::vector<std::vector<Piece>>(ranks),
                 .parameters = std::vector<std::vector<ShardPlan::Owner>>(
                     parameters.size())};
  for (const auto& members : classes_of(parameters))
    Row(parameters, members).deal(plan);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    auto& pieces = plan.ranks[rank];
    std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) {
      return a.parameter < b.parameter;
    });
    for (std::size_t position = 0; position < pieces.size(); ++position)
      plan.parameters[pieces[position].parameter].push_back({rank, position});
  }
  return plan;
}

}  // namespace lockstep
