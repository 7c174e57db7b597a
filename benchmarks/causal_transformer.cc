#include "benchmarks/causal_transformer.h"

#include <ATen/ATen.h>
#include <torch/nn/init.h>

#include <string>

namespace lockstep {

namespace {

using torch::nn::Embedding;
using torch::nn::LayerNorm;
using torch::nn::LayerNormOptions;
using torch::nn::Linear;
using torch::nn::LinearOptions;

// GPT-2's. LibTorch's deviation of 1 hides what the blocks add, and gradients
// are so small then that clipping them changes nothing.
constexpr double kEmbeddingDeviation = 0.02;

}  // namespace

class TransformerBlock : public torch::nn::Module {
 public:
  TransformerBlock(std::int64_t width, std::int64_t heads)
      : heads_(heads),
        attention_norm_(LayerNormOptions({width})),
        queries_keys_values_(width, 3 * width),
        projection_(width, width),
        feed_forward_norm_(LayerNormOptions({width})),
        expand_(width, 4 * width),
        contract_(4 * width, width) {
    register_module("attention_norm", attention_norm_);
    register_module("queries_keys_values", queries_keys_values_);
    register_module("projection", projection_);
    register_module("feed_forward_norm", feed_forward_norm_);
    register_module("expand", expand_);
    register_module("contract", contract_);
  }

  at::Tensor forward(at::Tensor x) {
    x = x + attend(attention_norm_(x));
    return x + contract_(at::gelu(expand_(feed_forward_norm_(x))));
  }

 private:
  // Each token attends to itself and those before it.
  at::Tensor attend(const at::Tensor& x) {
    const auto sequences = x.size(0), length = x.size(1), width = x.size(2);
    const auto parts = queries_keys_values_(x)
                           .view({sequences, length, 3, heads_, width / heads_})
                           .permute({2, 0, 3, 1, 4})
                           .unbind();
    const at::Tensor mixed =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {},
                                         /*dropout_p=*/0, /*is_causal=*/true);
    return projection_(mixed.transpose(1, 2).reshape_as(x));
  }

  std::int64_t heads_;
  LayerNorm attention_norm_;
  Linear queries_keys_values_, projection_;
  LayerNorm feed_forward_norm_;
  Linear expand_, contract_;
};

CausalTransformer::CausalTransformer(const CausalTransformerOptions& options)
    : tokens_(register_module("tokens",
                              Embedding(options.vocabulary, options.width))),
      positions_(register_module("positions",
                                 Embedding(options.length, options.width))),
      norm_(nullptr),
      head_(nullptr) {
  for (int i = 0; i < options.layers; ++i)
    blocks_.push_back(register_module(
        "block" + std::to_string(i),
        std::make_shared<TransformerBlock>(options.width, options.heads)));
  norm_ = register_module("norm", LayerNorm(LayerNormOptions({options.width})));
  head_ = register_module(
      "head",
      Linear(LinearOptions(options.width, options.vocabulary).bias(false)));
  for (const Embedding& embedding : {tokens_, positions_})
    torch::nn::init::normal_(embedding->weight, 0, kEmbeddingDeviation);
}

at::Tensor CausalTransformer::forward(const at::Tensor& tokens) {
  at::Tensor x =
      tokens_(tokens) + positions_->weight.slice(0, 0, tokens.size(1));
  for (const auto& block : blocks_) x = block->forward(x);
  return head_(norm_(x)).flatten(0, 1);
}

}  // namespace lockstep
