// Attention over one page for any number of query rows: scores, softmax and mix of a table, up to eight rows at a time.
// May depend on: kernels.h. Next for the token: backend/cpu joins the shares of all pages.
#pragma once

#include "kernels/kernels.h"
#include "quant/kv_fine.h"

namespace kvart {

// The kernels of one kind of page, and its layout where it is made of integers.
struct PageKernels {
  const ScoreKernel* score = nullptr;
  const MixKernel* mix = nullptr;
  const KvBlock* keys = nullptr;
  const KvBlock* values = nullptr;
};

// The share of one page in the attention of n_tokens * group query rows that use one KV head.
struct AttendPageArgs {
  const uint8_t* k = nullptr;  // float: (page tokens / 8, head_dim, 8); integers: a KvBlock
  const uint8_t* v = nullptr;  // float: (page tokens, head_dim); integers: a KvBlock
  KvFine::Head fine;           // of integer keys that have them
  int head_dim = 0;            // a multiple of 8
  int first = 0;               // tokens before this one are not looked at
  int64_t n_tokens = 0;
  int group = 0;             // query heads per KV head
  const float* q = nullptr;  // token i, head g at q + i * q_stride + g * head_dim; scaled by log2(e) / sqrt(head_dim)
  int64_t q_stride = 0;
  const int32_t* visible = nullptr;  // (n_tokens), each <= page tokens
  float* m = nullptr;                // (n_tokens * group): the highest score, -inf when nothing is visible
  float* l = nullptr;                // (n_tokens * group): sum of weights
  float* o = nullptr;                // (n_tokens * group, head_dim): sum of weighted values
  Ahead next_k, next_v;              // the keys and values of the page behind: fetched meanwhile
};

void AttendPage(const KernelTable& table, const PageKernels& kernels, const AttendPageArgs& args);

}  // namespace kvart
