// One rank of MPI in the benchmark of collectives, started by mpirun:
//
//   mpi_collectives REQUESTS          answers the driver
//   (measure_collectives.h)
#include <mpi.h>

#include <exception>
#include <iostream>

#include "benchmarks/measure_collectives.h"

namespace {

class MpiEngine : public lockstep::Engine {
 public:
  MpiEngine() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::shared_ptr<float> allocate(std::size_t count, Memory) override {
    return lockstep::allocate_plain(count);
  }

  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }
  void all_reduce(float* data, std::size_t count) override {
    MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT,
                  MPI_SUM, MPI_COMM_WORLD);
  }
  void broadcast(float* data, std::size_t count) override {
    MPI_Bcast(data, static_cast<int>(count), MPI_FLOAT, 0, MPI_COMM_WORLD);
  }
  void all_gather(const float* input, float* output,
                  std::size_t count) override {
    MPI_Allgather(input, static_cast<int>(count), MPI_FLOAT, output,
                  static_cast<int>(count), MPI_FLOAT, MPI_COMM_WORLD);
  }
  std::vector<double> gather(double value) override {
    std::vector<double> all(static_cast<std::size_t>(size_));
    MPI_Allgather(&value, 1, MPI_DOUBLE, all.data(), 1, MPI_DOUBLE,
                  MPI_COMM_WORLD);
    return all;
  }

 private:
  int rank_ = 0;
  int size_ = 0;
};

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
