// Progress records as text: the lines of the display.
//
// No function ends its lines with a newline.
#pragma once

#include <string>
#include <vector>

#include "src/base/progress_record.h"
#include "src/launch/output/terminal_style.h"

namespace lockstep {

// Two lines about the job: model, data set, ranks and backend; then its notes.
std::vector<std::string> start_lines(const StartRecord& record,
                                     const TerminalStyle& style);

// The moving line: a bar and numbers, at most `style.columns` - 1 wide. A
// narrow terminal loses the bar first, then the numbers from the right.
std::string bar_line(const StepRecord& record, const TerminalStyle& style);

// The same without a bar, for outputs whose lines cannot move.
std::string step_line(const StepRecord& record);

// The table of epochs.
std::string epoch_table_header();
std::string epoch_table_row(const EpochRecord& record);

// The result, the path of the model, and commands to try next.
std::vector<std::string> end_lines(const EndRecord& record,
                                   const TerminalStyle& style);

// Seconds as "0:07", "12:05" or "1:02:03"; "-:--" for a number that is not
// finite.
std::string clock_text(double seconds);

}  // namespace lockstep
