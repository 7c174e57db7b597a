// One rank of MPI in the benchmarks of collectives, started by mpirun:
//
//   mpi_collectives REQUESTS          answers the driver (collective_answers.h)
#include <mpi.h>

#include <exception>
#include <iostream>

#include "benchmarks/collective_answers.h"

namespace {

using lockstep::BenchCollective;
using lockstep::CollectiveCall;

constexpr int kRoot = 0;

// The driver asks for float32 and sum only.
class MpiEngine : public lockstep::Engine {
 public:
  MpiEngine() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::shared_ptr<std::byte> allocate(std::size_t bytes, Memory) override {
    return lockstep::allocate_plain(bytes);
  }
  void run(const CollectiveCall& call) override;
  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }
  std::vector<double> gather(double value) override {
    std::vector<double> all(static_cast<std::size_t>(size_));
    MPI_Allgather(&value, 1, MPI_DOUBLE, all.data(), 1, MPI_DOUBLE,
                  MPI_COMM_WORLD);
    return all;
  }

 private:
  void send_and_receive(const CollectiveCall& call) const {
    constexpr int kTag = 0;
    const int count = static_cast<int>(call.count);
    MPI_Sendrecv(call.input, count, MPI_FLOAT, (rank_ + 1) % size_, kTag,
                 call.output, count, MPI_FLOAT, (rank_ + size_ - 1) % size_,
                 kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  void reduce_in_place(const CollectiveCall& call) const {
    const void* const own = rank_ == kRoot ? MPI_IN_PLACE : call.output;
    MPI_Reduce(own, call.output, static_cast<int>(call.count), MPI_FLOAT,
               MPI_SUM, kRoot, MPI_COMM_WORLD);
  }

  int rank_ = 0;
  int size_ = 0;
};

void MpiEngine::run(const CollectiveCall& call) {
  const int count = static_cast<int>(call.count);
  const auto world = MPI_COMM_WORLD;
  switch (call.collective) {
    case BenchCollective::kAllReduce:
      MPI_Allreduce(MPI_IN_PLACE, call.output, count, MPI_FLOAT, MPI_SUM,
                    world);
      return;
    case BenchCollective::kBroadcast:
      MPI_Bcast(call.output, count, MPI_FLOAT, kRoot, world);
      return;
    case BenchCollective::kReduce:
      return reduce_in_place(call);
    case BenchCollective::kAllGather:
      MPI_Allgather(call.input, count, MPI_FLOAT, call.output, count, MPI_FLOAT,
                    world);
      return;
    case BenchCollective::kGather:
      MPI_Gather(call.input, count, MPI_FLOAT, call.output, count, MPI_FLOAT,
                 kRoot, world);
      return;
    case BenchCollective::kScatter:
      MPI_Scatter(call.input, count, MPI_FLOAT, call.output, count, MPI_FLOAT,
                  kRoot, world);
      return;
    case BenchCollective::kReduceScatter:
      MPI_Reduce_scatter_block(call.input, call.output, count, MPI_FLOAT,
                               MPI_SUM, world);
      return;
    case BenchCollective::kAllToAll:
      MPI_Alltoall(call.input, count, MPI_FLOAT, call.output, count, MPI_FLOAT,
                   world);
      return;
    case BenchCollective::kBarrier:
      return barrier();
    case BenchCollective::kSendRecv:
      return send_and_receive(call);
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  try {
    MpiEngine engine;
    if (argc == 2) lockstep::answer_requests(engine, argv[1]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}
