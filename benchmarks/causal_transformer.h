// A small causal transformer that predicts the next token: pre-normalised
// blocks of self-attention and a feed-forward layer, without dropout. The
// defaults have 3,307,008 parameters.
//
// The initial weights are those of its twin in peers/models.py after
// torch.manual_seed() with the same seed: LibTorch's layers draw what Python's
// do, and both models make theirs in the same order.
//
// Threads: a model belongs to one thread at a time.
// Errors:  LibTorch's, for tokens outside the vocabulary and for sequences
//          longer than `length`.
// Source:  Radford et al., "Language Models are Unsupervised Multitask
//          Learners", 2019 (the architecture of GPT-2).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace lockstep {

struct CausalTransformerOptions {
  std::int64_t vocabulary = 256;  // byte values
  std::int64_t length = 64;       // tokens of the longest sequence
  std::int64_t width = 256;       // a multiple of `heads`
  std::int64_t heads = 4;
  int layers = 4;
};

class TransformerBlock;

class CausalTransformer : public torch::nn::Module {
 public:
  explicit CausalTransformer(const CausalTransformerOptions& options = {});

  // Tokens (sequences x tokens, int64) to the logits of the token that follows
  // each of them (sequences · tokens x vocabulary).
  at::Tensor forward(const at::Tensor& tokens);

 private:
  torch::nn::Embedding tokens_, positions_;
  std::vector<std::shared_ptr<TransformerBlock>> blocks_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear head_;
};

}  // namespace lockstep
