// How a collective is measured, the same for ours and for its peers: only the
// Engine differs.
//
// A question reads "COLLECTIVE MEMORY BYTES SECONDS": all_reduce, broadcast,
// all_gather, barrier or copy; shared or plain; of how many bytes a rank; for
// about how long. Before each repetition the rank writes its buffer anew, as a
// training step does, and a barrier lets all begin together. The time is that
// of each rank from the barrier to its result: the answer gives the median and
// the mean over the repetitions, averaged over the ranks. Results are verified
// after the first and the last repetition.
//
// Threads: single-threaded.
// Errors:  std::runtime_error for a wrong result or question.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace lockstep {

// What does the collectives: a group of ours, or a peer. Buffers are float32.
class Engine {
 public:
  // Whether peers can reach the memory: a difference to ours alone.
  enum class Memory { kPlain, kShared };

  virtual ~Engine() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::shared_ptr<float> allocate(std::size_t count, Memory memory) = 0;

  virtual void barrier() = 0;
  // The sum, in place.
  virtual void all_reduce(float* data, std::size_t count) = 0;
  // Rank 0's elements, in place.
  virtual void broadcast(float* data, std::size_t count) = 0;
  // `count` elements of each rank, in rank order.
  virtual void all_gather(const float* input, float* output,
                          std::size_t count) = 0;
  // Every rank's `value`, in rank order.
  virtual std::vector<double> gather(double value) = 0;
};

// Memory on a cache line's border that no peer reaches.
std::shared_ptr<float> allocate_plain(std::size_t count);

// Measures what `request` names. Every rank calls it; the answer is the same on
// all.
std::string measure_collective(Engine& engine, const std::string& request);

// Answers questions until there are no more.
void answer_requests(Engine& engine, const std::string& prefix);

}  // namespace lockstep
