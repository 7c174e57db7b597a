// How the ranks of a job are asked for their records, and ask each other what
// they are doing: keys of the job's store, all below "record/".
//
// Requests and questions are numbered from 1, so that whoever answers waits for
// the next one. Each rank says once that it is there.
//
// Threads: pure functions, but for request_records().
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/cancellation.h"
#include "lockstep/store/store.h"

namespace lockstep {

// Set by rank `rank` once it listens.
std::string listening_key(int rank);
// Set to make every rank write its record.
std::string request_key(std::int64_t number);
// Set by rank `rank` once it has.
std::string written_key(std::int64_t number, int rank);
// Set to make rank `rank` say what it is doing, and what it then sets.
std::string question_key(int rank, std::int64_t number);
std::string answer_key(int rank, std::int64_t number);

// Numbers a question to `rank`, and sets its key.
std::int64_t ask(Store& store, int rank, Deadline deadline);

// Makes every rank write its record and waits for those of `ranks` that listen.
// Returns the ranks that have written when all have, or the deadline passes.
std::vector<int> request_records(Store& store, std::span<const int> ranks,
                                 Deadline deadline,
                                 const Cancellation* cancellation = nullptr);

}  // namespace lockstep
