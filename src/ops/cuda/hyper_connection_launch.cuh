// What hc_mix's two paths share.
#pragma once

#include "ops/cuda/linear_launch.cuh"
#include "ops/hyper_connection.h"

namespace quern::cuda {

inline constexpr int kMaxStreams = 4;

struct MixerView {
  const float* x = nullptr;  // [T, streams·width]
  int64_t x_stride = 0;
  float* h = nullptr;  // [T, width]
  int64_t h_stride = 0;
  float* inj = nullptr;  // [T, streams] or null
  int64_t inj_stride = 0;
  const float* norm = nullptr;  // [streams·width]
  WeightView down, up, inject;
  int32_t n_rows = 0, streams = 0, width = 0, rank = 0;
  float eps = 0;
};

void hc_mix_decode(Stream& s, const MixerView& m);
// What a stream's width must be a multiple of for it.
int hc_step(const MixerView& m);
void hc_mix_prefill(Stream& s, const MixerView& m);
// Any width, one block a row, for streams that are no multiple of 64 wide.
void hc_mix_plain(Stream& s, const MixerView& m);

}  // namespace quern::cuda
