// Looks for the files that every rank of a command will read, so that the user
// gets one error before ranks start. Only the command calls it, because ranks
// may run on other hosts, where the files lie elsewhere.
//
// Threads: any thread; reads the disk.
// Errors:  InvalidArgument for what is missing or of another kind; SystemError
//          for a folder that cannot be listed.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/data/image_dataset.h"

namespace lockstep {

// The files of both splits of `dataset`, a name of kDatasets or kImageFolder,
// in `data_dir` (empty: the usual place), as training reads them.
void check_training_data(const std::string& dataset,
                         const std::string& data_dir);

// Those of one split. `dataset` may be empty: the model's file will name it.
void check_split(const std::string& dataset, const std::string& data_dir,
                 Split split);

// Whether a trained model may be in `file`: by its first bytes, or because it
// is a folder. A file that is only damaged is the ranks' to describe.
void check_may_be_model(const std::filesystem::path& file);

}  // namespace lockstep
