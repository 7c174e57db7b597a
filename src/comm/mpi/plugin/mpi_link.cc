#include "src/comm/mpi/plugin/mpi_link.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

namespace lockstep {
namespace {

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING + 1> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw MpiError(std::string(what) + ": " + text.data());
}

// The level at which the program itself has initialised MPI, if it has.
int level_of_program() {
  if (MpiLink::is_over())
    throw MpiError(
        "the program has finalised MPI already\n  next:    leave that to "
        "Lockstep, or do it after the last group is destroyed");
  int initialised = 0;
  MPI_Initialized(&initialised);
  int level = -1;
  if (initialised != 0) MPI_Query_thread(&level);
  return level;
}

}  // namespace

void MpiLink::check_launcher() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK"})
    if (std::getenv(variable) != nullptr) return;
  throw MpiError(
      "the backend \"mpi\" was asked for, but this process was not started by "
      "Open MPI's mpirun, nor by an srun with PMIx\n"
      "  next:    start the program with `mpirun -n RANKS PROGRAM`, or choose "
      "another backend between hosts, such as \"gloo\"");
}

void MpiLink::start() {
  check_launcher();
  const int before = level_of_program();
  if (before >= 0 && before < MPI_THREAD_MULTIPLE)
    throw MpiError(
        "the program has initialised MPI without MPI_THREAD_MULTIPLE, which "
        "the backend \"mpi\" needs to use it as well\n  next:    call "
        "MPI_Init_thread with MPI_THREAD_MULTIPLE, or leave it to Lockstep");
  int level = before;
  if (before < 0) {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level),
          "MPI_Init_thread");
    initialised_here_ = true;
  }
  if (level < MPI_THREAD_FUNNELED)
    throw MpiError("this MPI was built without support for threads");
  check(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  int* last_tag = nullptr;
  int known = 0;
  MPI_Comm_get_attr(comm_, MPI_TAG_UB, &last_tag, &known);
  if (known != 0) last_tag_ = *last_tag;
}

bool MpiLink::is_over() {
  int finished = 0;
  MPI_Finalized(&finished);
  return finished != 0;
}

void MpiLink::finish() {
  if (initialised_here_) MPI_Finalize();
}

MpiTransfer MpiLink::send(int to, int tag, MpiBlock block) {
  MpiTransfer transfer;
  transfer.block = std::move(block);
  check(MPI_Isend(transfer.block.data(), static_cast<int>(transfer.block.bytes),
                  MPI_BYTE, to, tag, comm_, &transfer.request),
        "MPI_Isend");
  return transfer;
}

MpiTransfer MpiLink::receive(int from, int tag, std::size_t bytes) {
  MpiTransfer transfer;
  transfer.receives = true;
  transfer.block = MpiBlock(bytes);
  check(MPI_Irecv(transfer.block.data(), static_cast<int>(bytes), MPI_BYTE,
                  from, tag, comm_, &transfer.request),
        "MPI_Irecv");
  return transfer;
}

bool MpiLink::done(MpiTransfer& transfer) {
  int is_done = 0;
  MPI_Status status;
  check(MPI_Test(&transfer.request, &is_done, &status), "MPI_Test");
  if (is_done == 0) return false;
  int count = 0;
  MPI_Get_count(&status, MPI_BYTE, &count);
  transfer.received = count > 0 ? static_cast<std::size_t>(count) : 0;
  return true;
}

void MpiLink::forget(MpiTransfer transfer) {
  if (transfer.request == MPI_REQUEST_NULL) return;
  forgotten_.push_back(std::move(transfer));
}

void MpiLink::cancel(MpiTransfer& transfer) {
  if (transfer.request == MPI_REQUEST_NULL) return;
  MPI_Cancel(&transfer.request);
  MPI_Request_free(&transfer.request);
}

void MpiLink::look_at_forgotten() {
  std::erase_if(forgotten_, [&](MpiTransfer& each) { return done(each); });
}

bool MpiLink::has_forgotten_sends() const {
  return std::ranges::any_of(
      forgotten_, [](const MpiTransfer& each) { return !each.receives; });
}

void MpiLink::cancel_forgotten() {
  for (MpiTransfer& each : forgotten_)
    if (each.receives) cancel(each);
}

}  // namespace lockstep
