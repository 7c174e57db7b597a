// Lockstep: data-parallel deep-learning training for C++ on LibTorch.
//
// The one header that a training program includes.
#pragma once

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/torch/distributed_data_parallel.h"
