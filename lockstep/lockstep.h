// Lockstep: data-parallel deep-learning training for C++ on LibTorch.
//
// The one header that a training program includes.
#pragma once

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/data/image_dataset.h"
#include "lockstep/data/image_samples.h"
#include "lockstep/data/loader.h"
#include "lockstep/torch/batch_tensors.h"
#include "lockstep/torch/clip_gradients.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/distributed_sampler.h"
#include "lockstep/torch/fused_optimizer.h"
#include "lockstep/torch/tensor_buffer.h"
#include "lockstep/torch/tensor_collectives.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
