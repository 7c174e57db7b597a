#include "src/comm/wire/share_pipeline.h"

#include <algorithm>

namespace lockstep {
namespace {

constexpr std::size_t kMostSegmentBytes = std::size_t{1} << 20;
constexpr std::size_t kLeastSegmentBytes = std::size_t{64} << 10;
// For the segments of all ranks together.
constexpr std::size_t kRoundBytes = std::size_t{4} << 20;

// The memory of a share if it is contiguous, else null.
std::byte* only_stretch(const PipelineShare& share) {
  const BufferCursor cursor(share.run, share.at);
  return cursor.left() >= share.bytes ? cursor.here() : nullptr;
}

}  // namespace

SharePipeline::SharePipeline(WireCore& core, const SharePlan& plan, int tag,
                             Deadline deadline)
    : core_(core),
      plan_(plan),
      tag_(tag),
      deadline_(deadline),
      arrivals_(core) {
  const auto peers = static_cast<std::size_t>(std::max(core.size() - 1, 1));
  segment_bytes_ = plan.segment_bytes;
  if (segment_bytes_ == 0)
    segment_bytes_ =
        std::clamp(kRoundBytes / peers, kLeastSegmentBytes, kMostSegmentBytes) /
        64 * 64;
  std::size_t largest = 0;
  for (const PipelineShare& share : plan.contributions)
    largest = std::max(largest, share.bytes);
  for (const PipelineShare& share : plan.results)
    largest = std::max(largest, share.bytes);
  segments_ =
      std::max((largest + segment_bytes_ - 1) / segment_bytes_, plan.segments);
}

void SharePipeline::run() {
  const WireCore::Needed needed(core_, [this] { check(); });
  for (std::size_t number = 0; number < segments_ + kDepth; ++number) {
    if (number >= kDepth) retire(number - kDepth);
    if (number < segments_) post(number);
    if (number >= kLead && number - kLead < segments_) combine(number - kLead);
  }
}

PipelineShare SharePipeline::segment(const PipelineShare& share,
                                     std::size_t number) const {
  const std::size_t begin = std::min(number * segment_bytes_, share.bytes);
  const std::size_t end = std::min(begin + segment_bytes_, share.bytes);
  return {share.run, share.at + begin, end - begin};
}

std::byte* SharePipeline::block(Round& round) {
  if (round.blocks_used == round.blocks.size())
    round.blocks.push_back(core_.scratch().take(segment_bytes_));
  return round.blocks[round.blocks_used++];
}

// The share's bytes as contiguous memory.
const std::byte* SharePipeline::flat(const PipelineShare& share, Round& round) {
  if (const std::byte* memory = only_stretch(share)) return memory;
  std::byte* copy = block(round);
  copy_from(share.run, share.at, {copy, share.bytes});
  return copy;
}

// Posts the receive of `share`'s elements.
SharePipeline::Landing SharePipeline::land(const PipelineShare& share, int peer,
                                           int tag, Round& round) {
  Landing landing{.peer = peer, .share = share};
  landing.memory = only_stretch(share);
  landing.direct = landing.memory != nullptr;
  if (!landing.direct) landing.memory = block(round);
  landing.request = core_.receive(
      {peer, kChannelCollective, tag, landing.memory, share.bytes});
  return landing;
}

void SharePipeline::settle(Landing& landing) {
  core_.wait(landing.request, deadline_);
  if (!landing.direct)
    copy_into(landing.share.run, landing.share.at,
              {landing.memory, landing.share.bytes});
}

// Sends this rank's parts of all shares' segments, and posts receives for the
// others'.
void SharePipeline::post(std::size_t number) {
  if (plan_.before) plan_.before(number);
  Round& now = round(number);
  now.blocks_used = 0;
  const int me = core_.rank();
  const PipelineShare own =
      segment(plan_.results[static_cast<std::size_t>(me)], number);
  if (own.bytes > 0)
    for (const int source : plan_.sources) {
      if (plan_.kernel == nullptr) {
        now.contributions.push_back(land(own, source, tag_, now));
        continue;
      }
      Landing landing{.memory = block(now), .peer = source, .share = own};
      landing.request = core_.receive(
          {source, kChannelCollective, tag_, landing.memory, own.bytes});
      now.contributions.push_back(std::move(landing));
    }
  for (Landing& landing : now.contributions) arrivals_.expect(landing.request);
  for (int step = 1; step < core_.size(); ++step) {
    const int owner = (me + step) % core_.size();
    const auto o = static_cast<std::size_t>(owner);
    const PipelineShare result = segment(plan_.results[o], number);
    if (result.bytes > 0)
      now.results.push_back(land(result, owner, tag_ + 1, now));
    const PipelineShare part = segment(plan_.contributions[o], number);
    if (part.bytes == 0) continue;
    now.sends.push_back(
        core_.send({owner, kChannelCollective, tag_,
                    const_cast<std::byte*>(flat(part, now)), part.bytes}));
  }
}

// Combines the own share's segment and sends the result.
void SharePipeline::combine(std::size_t number) {
  Round& now = round(number);
  const PipelineShare own =
      segment(plan_.results[static_cast<std::size_t>(core_.rank())], number);
  if (own.bytes == 0) return;
  for (Landing& landing : now.contributions)
    arrivals_.wait(landing.request, deadline_);
  const std::byte* result = nullptr;
  if (plan_.kernel != nullptr) {
    result = add_up(own, now);
  } else {
    settle(now.contributions.front());
    result = now.contributions.front().memory;
  }
  for (const int peer : plan_.audience)
    now.sends.push_back(
        core_.send({peer, kChannelCollective, tag_ + 1,
                    const_cast<std::byte*>(result), own.bytes}));
}

const std::byte* SharePipeline::add_up(const PipelineShare& own, Round& now) {
  const auto me = static_cast<std::size_t>(core_.rank());
  const PipelineShare& whole = plan_.results[me];
  const PipelineShare mine{plan_.contributions[me].run,
                           plan_.contributions[me].at + (own.at - whole.at),
                           own.bytes};
  std::vector<const std::byte*> sources(static_cast<std::size_t>(core_.size()));
  sources[me] = flat(mine, now);
  for (const Landing& landing : now.contributions)
    sources[static_cast<std::size_t>(landing.peer)] = landing.memory;
  std::erase(sources, nullptr);  // ranks without elements
  const bool kept = plan_.own == SharePlan::Own::kKept;
  std::byte* target = kept ? only_stretch(own) : nullptr;
  const bool direct = target != nullptr;
  if (!direct) target = block(now);
  plan_.kernel(sources, std::span(&target, 1), own.bytes / plan_.element_bytes);
  if (kept && !direct) copy_into(own.run, own.at, {target, own.bytes});
  return target;
}

// Throws if a message under way cannot come or go.
void SharePipeline::check() {
  for (Round& round : rounds_) {
    for (Landing& landing : round.contributions) landing.request.done();
    for (Landing& landing : round.results) landing.request.done();
    for (WireCore::Request& send : round.sends) send.done();
  }
}

// Waits until no message uses the round's memory.
void SharePipeline::retire(std::size_t number) {
  Round& done = round(number);
  std::vector<WireCore::Request*> pending;
  for (Landing& landing : done.results) pending.push_back(&landing.request);
  for (WireCore::Request& send : done.sends) pending.push_back(&send);
  core_.wait_for_all(pending, deadline_);
  for (Landing& landing : done.results) settle(landing);
  done.results.clear();
  done.contributions.clear();
  done.sends.clear();
  if (plan_.after) plan_.after(number);
}

}  // namespace lockstep
