// The records of which event files consist.
//
// Threads: any thread.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// `data` as a record in TensorFlow's TFRecord format.
std::string framed_record(std::string_view data);

}  // namespace lockstep
