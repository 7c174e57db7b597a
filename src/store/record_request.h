// Requests for the ranks' records, and questions of one rank to another about
// its state. They are keys of the job's store, below "record/".
//
// Requests and questions are numbered from 1, so a rank that answers waits for
// the next number. Each rank announces once that it listens.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/store/store.h"

namespace lockstep {

// Rank `rank` sets it once it listens.
std::string listening_key(int rank);
// Setting it makes every rank write its record.
std::string request_key(std::int64_t number);
// Rank `rank` sets it once it has written its record.
std::string written_key(std::int64_t number, int rank);
// Setting the first makes rank `rank` report its state in the second.
std::string question_key(int rank, std::int64_t number);
std::string answer_key(int rank, std::int64_t number);

// The name of the job that the store serves: the `suggestion` of the first rank
// that asked. No other job should suggest the same.
std::string job_name(Store& store, std::string_view suggestion,
                     Deadline deadline);

// The number of the next request.
std::int64_t next_request(Store& store, Deadline deadline);
// The number of the first question that `rank` has not answered.
std::int64_t next_question(Store& store, int rank, Deadline deadline);

// Numbers a question to `rank`, and sets its key.
std::int64_t ask(Store& store, int rank, Deadline deadline);

// Answers question `number` to `rank`.
void answer(Store& store, int rank, std::int64_t number, std::string_view text,
            Deadline deadline);

// Makes every rank write its record and waits for those of `ranks` that listen,
// at most until the deadline. Returns the ranks that have written.
std::vector<int> request_records(Store& store, std::span<const int> ranks,
                                 Deadline deadline,
                                 const Cancellation* cancellation = nullptr);

}  // namespace lockstep
