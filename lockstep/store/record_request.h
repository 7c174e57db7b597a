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
#include <string_view>
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

// The name of the job that the store serves: what the first of its ranks to ask
// made of `suggestion`, which no other job should suggest.
std::string job_name(Store& store, std::string_view suggestion,
                     Deadline deadline);

// The number of the first request that is still to come.
std::int64_t next_request(Store& store, Deadline deadline);
// The number of the first question to `rank` that it has not answered.
std::int64_t next_question(Store& store, int rank, Deadline deadline);

// Numbers a question to `rank`, and sets its key.
std::int64_t ask(Store& store, int rank, Deadline deadline);

// Answers question `number` to `rank`.
void answer(Store& store, int rank, std::int64_t number, std::string_view text,
            Deadline deadline);

// Makes every rank write its record and waits for those of `ranks` that listen.
// Returns the ranks that have written when all have, or the deadline passes.
std::vector<int> request_records(Store& store, std::span<const int> ranks,
                                 Deadline deadline,
                                 const Cancellation* cancellation = nullptr);

}  // namespace lockstep
