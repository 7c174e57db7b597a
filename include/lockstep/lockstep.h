// Lockstep: data-parallel deep-learning training for C++ on LibTorch.
//
// The one header that a training program includes. The interfaces of Horovod,
// TensorFlow and torch.nn.DataParallel are namespaces and headers of their own:
// lockstep/torch/horovod.h, strategies.h and data_parallel.h.
#pragma once

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/comm/groups.h"
#include "lockstep/comm/run_files.h"
#include "lockstep/comm/spawn.h"
#include "lockstep/comm/training_loop.h"
#include "lockstep/data/image_dataset.h"
#include "lockstep/data/image_folder.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sample_order.h"
#include "lockstep/data/transforms.h"
#include "lockstep/evaluate/evaluation.h"
#include "lockstep/evaluate/event_file.h"
#include "lockstep/store/store.h"
#include "lockstep/torch/comm_hooks.h"
#include "lockstep/torch/consistency.h"
#include "lockstep/torch/device_batches.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/distributed_sampler.h"
#include "lockstep/torch/elastic.h"
#include "lockstep/torch/gpu_pass.h"
#include "lockstep/torch/gradient_scaler.h"
#include "lockstep/torch/logical_shards.h"
#include "lockstep/torch/optimizers.h"
#include "lockstep/torch/sync_batch_norm.h"
#include "lockstep/torch/tensor_collectives.h"
#include "lockstep/torch/tensor_loader.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
